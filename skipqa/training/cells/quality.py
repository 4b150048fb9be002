"""Do tokens say what is at their place? The name of a box, by its cells' mean evidence.

Enters: the vision half of a backbone, with a cell tagger or without, and scenes. Leaves: by the
side of a box, how often its name has the most evidence of all names; how much of the evidence for
all concepts the thing's own name has; and, of a cell tagger, how many cells of things it calls
none. Cells are chosen as a box's tokens are anywhere else (`stages/regions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skipqa.backbones.presets.pocket_vision import TaggedVision
from skipqa.nn.cell_tagger import CellTagger, CellTaggerConfig
from skipqa.stages.regions import in_box
from skipqa.training.cells.scenes import Scenes
from skipqa.training.stage import Metrics

WINDOWS, CELLS = "windows", "cells"  # what names a token
BANDS = (("below 12 %", 0.12), ("12 to 20 %", 0.2), ("20 to 30 %", 0.3), ("larger", 1.01))


class Judged(NamedTuple):
    side: float  # of a square as large as the box, of the image's
    named: bool
    evidence: float  # mean probability of its name among all concepts
    none: float | None  # fraction of its cells, where a cell tagger judged


def quality(
    model: CellTagger, vision: TaggedVision, scored: Mapping[str, Iterable[Scenes]]
) -> Metrics:
    """As the tagger's windows say it, and cell by cell."""
    ways = {WINDOWS: vision.with_cells(None), CELLS: vision.with_cells(model)}
    found = {what: judge(ways, model.config, scenes) for what, scenes in scored.items()}
    return {
        what: {way: by_side(boxes) for way, boxes in of.items()}
        for what, of in found.items()
        if any(of.values())
    }


@torch.inference_mode()
def judge(
    ways: Mapping[str, TaggedVision], config: CellTaggerConfig, scenes: Iterable[Scenes]
) -> dict[str, list[Judged]]:
    """Every box in every way, by the names of the config. The ways have the encoder in common, and
    everything on one device."""
    found: dict[str, list[Judged]] = {name: [] for name in ways}
    for some in scenes:
        maps = feature_maps(next(iter(ways.values())), some)
        for name, vision in ways.items():
            found[name] += _judged(vision, config, some, maps)
    return found


def _judged(
    vision: TaggedVision, config: CellTaggerConfig, scenes: Scenes, maps: tuple[Tensor, Tensor]
) -> Iterator[Judged]:
    start, grid = vision.network.config.classes, maps[-1].shape[-1]
    columns = [start + column for column in config.columns(vision.tagger.config)]
    probs_BVN = vision.recognise(maps).probs_BVC[..., columns].cpu()
    none_BV = None
    if vision.cell_tagger is not None:
        none_BV = vision.cell_tagger(*maps).argmax(-1).cpu() == len(columns)
    boxes, image, names = (x.tolist() for x in (scenes.boxes, scenes.image, scenes.names))
    for box, row, name in zip(boxes, image, names, strict=True):
        inside_V = in_box(tuple(box), grid)
        mean_N = probs_BVN[row, inside_V].mean(0)
        none = None if none_BV is None else float(none_BV[row, inside_V].float().mean())
        side = ((box[2] - box[0]) * (box[3] - box[1])) ** 0.5
        yield Judged(side, int(mean_N.argmax()) == name, float(mean_N[name]), none)


def feature_maps(vision: TaggedVision, scenes: Scenes) -> tuple[Tensor, Tensor]:
    """At low and at high resolution, in half precision on a GPU."""
    device = next(vision.network.parameters()).device

    def seen(shown: Tensor) -> Tensor:
        shown = shown.to(device).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found: Tensor = vision.network(shown)
        return found.float()

    return seen(scenes.low_res), seen(scenes.high_res)


def by_side(found: Sequence[Judged]) -> Metrics:
    """In bands of `BANDS`, and all."""
    bands: dict[str, list[Judged]] = {name: [] for name, _ in BANDS}
    for one in found:
        bands[next(name for name, most in BANDS if one.side < most)].append(one)
    return {name: _means(some) for name, some in {**bands, "all": found}.items() if some}


def _means(found: Sequence[Judged]) -> Metrics:
    none = [one.none for one in found if one.none is not None]
    means = {
        "boxes": len(found),
        "named": sum(one.named for one in found) / len(found),
        "evidence": sum(one.evidence for one in found) / len(found),
    }
    return means | ({"none": sum(none) / len(none)} if none else {})
