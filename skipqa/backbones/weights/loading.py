"""Loads networks from files of published weights and of the deltas that training added.

Enters: how to build a network, and a folder or file of weights. Leaves: the network, ready for
inference. It is built without initialising weights that would be overwritten at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from skipqa.backbones.networks import int8
from skipqa.errors import UserError
from skipqa.nn import compact, low_rank

Network = TypeVar("Network", bound=nn.Module)


def load(build: Callable[[], Network], folder: Path) -> Network:
    """The network with the weights in `folder`, memory-mapped: they are read on first use."""
    with _no_initialisation():
        network = build()
    try:
        state = load_file(folder / "weights.safetensors")
    except (OSError, SafetensorError) as error:
        raise damaged(folder, error) from None
    for name, value in state.items():
        if value.dtype == torch.int8 and value.data_ptr() % int8.ALIGNMENT:
            state[name] = value.clone()  # a copy is aligned
    network.load_state_dict(state, assign=True)
    return network.eval().requires_grad_(False)


def tuned(published: Mapping[str, Tensor], delta: Path) -> dict[str, Tensor]:
    """Published weights plus the trained delta in a file."""
    return dict(tuned_one_by_one(published.items(), delta))


def tuned_one_by_one(
    published: Iterable[tuple[str, Tensor]], delta: Path
) -> Iterator[tuple[str, Tensor]]:
    """As `tuned`, for a network that is too large to be in memory twice."""
    try:
        yield from low_rank.applied(published, compact.unpack(load_file(delta)))
    except (
        OSError,
        SafetensorError,
        KeyError,
        RuntimeError,
    ) as error:  # damaged, or another size
        reason = " ".join(str(error).split())
        raise UserError(f"{delta} does not fit the published network ({reason})") from None


def load_tokenizer(folder: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise damaged(folder, error) from None


def damaged(folder: Path, error: Exception) -> UserError:
    return UserError(
        f"{folder} is damaged ({error}); delete that folder and the next start makes it again"
    )


@contextmanager
def _no_initialisation() -> Iterator[None]:
    """The meta device would do the same, but importing it takes a second."""
    kinds: tuple[Any, ...] = (nn.Linear, nn.Embedding, nn.Conv2d)
    kept = [kind.reset_parameters for kind in kinds]
    for kind in kinds:
        kind.reset_parameters = lambda self: None
    try:
        yield
    finally:
        for kind, method in zip(kinds, kept, strict=True):
            kind.reset_parameters = method
