"""What a stage leaves: the delta of a fine-tuned network, the files of the stage before.

Enters: a fine-tuned network, the weights it started from, a measure of accuracy. Leaves: a file
with the smallest delta, in rank and in 8 bits, that loses next to nothing by that measure, and how
much each rank loses. Files of the stage before stay, but for a choice that is true no longer.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from skipqa.components import SETTINGS
from skipqa.files import atomic
from skipqa.nn import checkpoint, compact, low_rank
from skipqa.training.run import Run

FULL_RANK = 1_000_000  # more than any matrix has
CHOICE = "reading_choice"
LEARNED_WITH = ("fusion_reader", "reader", "cell_tagger")  # by the choice, which stage V trains


@dataclass(frozen=True, slots=True)
class Truncation:
    """Ranks to try, how much accuracy a smaller one may lose, and what is never truncated: tensors
    that were not published, so that their delta is not small."""

    ranks: Sequence[int]
    max_loss: float
    full_rank: Sequence[str] = ()


def export(
    network: nn.Module,
    published: Mapping[str, Tensor],
    accuracy: Callable[[], float],
    path: Path,
    truncation: Truncation,
    *,
    preset: str,
) -> dict[str, Any]:
    """Try ranks from the smallest up; the last one is taken whatever it loses. The network is left
    as the file will be read back."""
    device = next(network.parameters()).device
    base = {name: value.float().to(device) for name, value in published.items()}
    tuned = network.state_dict()
    uncut = {name: tuned.pop(name) for name in truncation.full_rank}
    delta = low_rank.delta(base, tuned, max(truncation.ranks))
    delta |= low_rank.delta(base, uncut, FULL_RANK)
    whole, by_rank = accuracy(), {}
    for rank in sorted(truncation.ranks):
        small = compact.pack(low_rank.truncated(delta, rank))
        network.load_state_dict(low_rank.apply(base, compact.unpack(small)))
        by_rank[str(rank)] = accuracy()
        if by_rank[str(rank)] >= whole - truncation.max_loss:
            break
    _write(small, path, preset)
    return {"whole": whole, "by_rank": by_rank, "rank": rank}


def write_delta(
    network: nn.Module, published: Mapping[str, Tensor], path: Path, *, preset: str
) -> None:
    """Of full rank, in 8 bits: for a small network."""
    base = {name: value.float() for name, value in published.items()}
    _write(compact.pack(low_rank.delta(base, network.state_dict(), FULL_RANK)), path, preset)


def _write(packed: Mapping[str, Tensor], path: Path, preset: str) -> None:
    tensors = {name: value.cpu() for name, value in packed.items()}
    checkpoint.save_tensors(tensors, path, component=path.stem, preset=preset)


def read_back(network: nn.Module, published: Mapping[str, Tensor], path: Path) -> None:
    """`network` with the delta in the file added to the published weights."""
    device = next(network.parameters()).device
    base = {name: value.float().to(device) for name, value in published.items()}
    small = {name: value.to(device) for name, value in load_file(path).items()}
    network.load_state_dict(low_rank.apply(base, compact.unpack(small)))


def copy_components(start: Path, folder: Path, without: Collection[str] = ()) -> None:
    """The files of a folder of components, but for those named, in another folder; existing ones
    stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(start.iterdir()):
        component = path.suffix == ".safetensors" and path.stem not in without
        if (component or path.name == SETTINGS) and not (folder / path.name).exists():
            _link_or_copy(path, folder / path.name)


def ship(path: Path, folder: Path) -> None:
    """A copy of the file in place of what the folder has by that name, which may be a link to a
    file that the stage began with: that one stays as it is."""
    with atomic(folder / path.name) as partial:
        shutil.copyfile(path, partial)


def drop_stale_choice(start: Path | None, run: Run) -> None:
    """Of how passages are read: what each way is worth was learned with what the stage began with
    at `start`. A choice that is new, too, stays."""
    with run.first_alone():
        path = run.folder / f"{CHOICE}.safetensors"
        if start is None or not path.is_file() or not _same(start / path.name, path):
            return
        names = [f"{name}.safetensors" for name in LEARNED_WITH]
        changed = [name for name in names if not _same(start / name, run.folder / name)]
        if changed:
            path.unlink()
            why = f"it was learned with another {changed[0]}"
            run.say(f"{path.name} is left out, as {why}: train stage5 again")


def _same(one: Path, other: Path) -> bool:
    """Neither is a file, or both are and hold the same."""
    if one.is_file() and other.is_file():
        return filecmp.cmp(one, other, shallow=False)
    return one.is_file() == other.is_file()


def _link_or_copy(path: Path, target: Path) -> None:
    if path.name == SETTINGS:  # will be rewritten
        shutil.copyfile(path, target)
        return
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)
