"""A trained network as the file that people download.

Enters: a network that was fine-tuned, the weights it began with, a measure. Leaves: a file with
the smallest difference, in rank and in 8 bits, that loses next to nothing by that measure, and
how much each rank loses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from skipqa.nn import checkpoint, compact, low_rank

WHOLE = 1_000_000  # a rank that no matrix has


def export(
    network: nn.Module,
    published: Mapping[str, Tensor],
    accuracy: Callable[[], float],
    path: Path,
    *,
    preset: str,
    ranks: Sequence[int],
    max_loss: float,
    never_cut: Sequence[str] = (),
) -> dict[str, Any]:
    """Try ranks from the smallest on; the last one stands, whatever it loses. What was not
    published, and so is no small change, is named in `never_cut`. The network is left as the file
    will be read back."""
    device = next(network.parameters()).device
    base = {name: value.float().to(device) for name, value in published.items()}
    tuned = network.state_dict()
    uncut = {name: tuned.pop(name) for name in never_cut}
    delta = low_rank.delta(base, tuned, max(ranks))
    delta |= low_rank.delta(base, uncut, WHOLE)
    whole, by_rank = accuracy(), {}
    for rank in sorted(ranks):
        small = compact.pack(low_rank.truncated(delta, rank))
        network.load_state_dict(low_rank.apply(base, compact.unpack(small)))
        by_rank[str(rank)] = accuracy()
        if by_rank[str(rank)] >= whole - max_loss:
            break
    _write(small, path, preset)
    return {"whole": whole, "by_rank": by_rank, "rank": rank}


def write_delta(
    network: nn.Module, published: Mapping[str, Tensor], path: Path, *, preset: str
) -> None:
    """Of full rank, in 8 bits: for a network whose weights are few."""
    base = {name: value.float() for name, value in published.items()}
    _write(compact.pack(low_rank.delta(base, network.state_dict(), WHOLE)), path, preset)


def _write(packed: Mapping[str, Tensor], path: Path, preset: str) -> None:
    tensors = {name: value.cpu() for name, value in packed.items()}
    checkpoint.save_tensors(tensors, path, component=path.stem, preset=preset)


def read_back(network: nn.Module, published: Mapping[str, Tensor], path: Path) -> None:
    """`network` with the difference in the file added to the published weights."""
    device = next(network.parameters()).device
    base = {name: value.float().to(device) for name, value in published.items()}
    small = {name: value.to(device) for name, value in load_file(path).items()}
    network.load_state_dict(low_rank.apply(base, compact.unpack(small)))
