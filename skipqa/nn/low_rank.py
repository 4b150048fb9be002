"""A fine-tuned network as a small difference from the published one.

Enters: two sets of weights of the same shapes. Leaves: for every matrix the best delta of a
given rank, W' = W + U^T D, everything else whole. The published weights are fetched by everyone
anyway; what was learned is a fraction of their size. It knows no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

UP, DOWN = ".up", ".down"


def delta(base: Mapping[str, Tensor], tuned: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """What `apply` needs to turn `base` into (nearly) `tuned`; unchanged tensors are left out.

    By Eckart and Young the truncated singular value decomposition is the nearest of that rank.
    A matrix too small to gain from factors, and every vector, is kept as a plain difference.
    """
    found: dict[str, Tensor] = {}
    for name, weight in tuned.items():
        delta = weight.float() - base[name].float()
        if not delta.any():
            continue
        if delta.ndim == 2 and rank * sum(delta.shape) < delta.numel():
            u, s, v = torch.linalg.svd(delta, full_matrices=False)
            root = s[:rank, None].sqrt()  # a row is one direction in both: they quantise alike
            found[name + UP], found[name + DOWN] = root * u[:, :rank].T, root * v[:rank]
        else:
            found[name] = delta
    return {name: value.contiguous() for name, value in found.items()}


def interpolated(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], fraction: float
) -> dict[str, Tensor]:
    """So far from one difference to another of the same ranks, at these ranks. The two sums of
    factors are joined, and directions that change least are cut off. What only one of the two
    changed is as published in the other."""
    found: dict[str, Tensor] = {}
    for name, value in {**other, **one}.items():
        if name.endswith(UP):
            down = name.removesuffix(UP) + DOWN
            ups = torch.cat(((1 - fraction) * value, fraction * other[name]))
            parts = balanced(ups, torch.cat((one[down], other[down])))
            found[name], found[down] = (part[: len(value)].contiguous() for part in parts)
        elif not name.endswith(DOWN):
            unchanged = torch.zeros_like(value)
            found[name] = one.get(name, unchanged).lerp(other.get(name, unchanged), fraction)
    return found


def truncated(delta: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """The same difference at a lower rank: directions are ordered by how much they change."""
    return {
        name: value[:rank].contiguous() if name.endswith((UP, DOWN)) else value
        for name, value in delta.items()
    }


def balanced(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """The same product U^T D from factors as `delta` leaves them: directions are orthogonal, in the
    order of how much they change, and as long in one factor as in the other."""
    (q_up, r_up), (q_down, r_down) = (torch.linalg.qr(part.float().T) for part in (up, down))
    u, s, v = torch.linalg.svd(r_up @ r_down.T, full_matrices=False)
    root = s[:, None].sqrt()
    return (root * (q_up @ u).T).contiguous(), (root * (v @ q_down.T)).contiguous()


def apply(base: Mapping[str, Tensor], delta: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`base` with the difference added, in base's types."""
    return dict(applied(base.items(), delta))


def applied(
    base: Iterable[tuple[str, Tensor]], delta: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """As `apply`, one tensor after another: the whole need not be in memory."""
    left = {name.removesuffix(UP).removesuffix(DOWN) for name in delta}
    for name, value in base:
        if name in left:
            left.remove(name)
            change = delta.get(name)
            if change is None:
                change = delta[name + UP].float().T @ delta[name + DOWN].float()
            value = (value.float() + change.float()).to(value.dtype)
        yield name, value
    if left:
        raise KeyError(min(left))


class Added(nn.Module):
    """A matrix as the published one plus factors that can be trained."""

    def __init__(self, up: Tensor, down: Tensor) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(up), nn.Parameter(down)

    def forward(self, published: Tensor) -> Tensor:
        return published + self.up.T @ self.down


def factor(network: nn.Module, base: Mapping[str, Tensor], rank: int) -> None:
    """Make every changed matrix of `network` its published value plus factors of that rank, in
    place: what is trained from then on is what will be shipped. Vectors stay as they are."""
    device = next(network.parameters()).device
    on_device = {name: value.to(device) for name, value in base.items()}
    factor_as(network, base, delta(on_device, network.state_dict(), rank))


def factor_as(network: nn.Module, base: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """As `factor`, with the factors of a delta that `network` has already."""
    for name in [name.removesuffix(UP) for name in found if name.endswith(UP)]:
        owner, _, parameter = name.rpartition(".")
        module = network.get_submodule(owner)
        weight = getattr(module, parameter)
        weight.data.copy_(base[name])
        weight.requires_grad_(False)
        added = Added(found[name + UP].to(weight), found[name + DOWN].to(weight))
        parametrize.register_parametrization(module, parameter, added)


@torch.no_grad()
def factored(network: nn.Module, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The delta of a network after `factor`: factors, and what else it learned."""
    found: dict[str, Tensor] = {}
    for name, module in network.named_modules():
        if isinstance(module, Added):
            matrix = name.replace(".parametrizations.", ".").removesuffix(".0")
            found[matrix + UP], found[matrix + DOWN] = balanced(module.up, module.down)
    for name, value in network.named_parameters():
        if value.requires_grad and name in base:
            found[name] = value.float() - base[name].to(value.device).float()
    return found


def merge(network: nn.Module) -> None:
    """Undo `factor`: plain matrices again, with what the factors add."""
    for module in list(network.modules()):
        if parametrize.is_parametrized(module):
            for parameter in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, parameter)
