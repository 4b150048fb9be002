"""Do tokens say what is at their place? The name of a box, by its cells' mean evidence.

Enters: the vision half of a backbone, with a cell tagger or without, and scenes. Leaves: by the
side of a box, how often its name has the most evidence of all names; how much of the evidence for
all concepts the thing's own name has; and, of a cell tagger, how many cells of things it calls
none. Cells are chosen as a box's tokens are anywhere else (`stages/regions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skipqa.backbones.presets.pocket_vision import TaggedVision
from skipqa.nn.cell_tagger import CellTaggerConfig
from skipqa.stages.regions import in_box
from skipqa.training.cells.scenes import Scenes
from skipqa.training.stage import Metrics

BANDS = (("below 12 %", 0.12), ("12 to 20 %", 0.2), ("20 to 30 %", 0.3), ("larger", 1.01))


class Judged(NamedTuple):
    side: float  # of a square as large as the box, of the image's
    named: bool
    evidence: float  # mean probability of its name among all concepts
    none: float | None  # fraction of its cells, where a cell tagger judged


@torch.inference_mode()
def judge(vision: TaggedVision, config: CellTaggerConfig, scenes: Iterable[Scenes]) -> list[Judged]:
    """Every box, by the names of the config; the vision half has everything on one device."""
    start = vision.network.config.classes
    columns = [start + column for column in config.columns(vision.tagger.config)]
    found: list[Judged] = []
    for some in scenes:
        maps = feature_maps(vision, some)
        probs_BVN = vision.recognise(maps).probs_BVC[..., columns].cpu()
        none_BV = None
        if vision.cell_tagger is not None:
            none_BV = vision.cell_tagger(*maps).argmax(-1).cpu() == len(columns)
        grid = maps[-1].shape[-1]
        for box, image, name in zip(
            some.boxes.tolist(), some.image.tolist(), some.names.tolist(), strict=True
        ):
            inside_V = in_box(tuple(box), grid)
            mean_N = probs_BVN[image, inside_V].mean(0)
            none = None if none_BV is None else float(none_BV[image, inside_V].float().mean())
            side = ((box[2] - box[0]) * (box[3] - box[1])) ** 0.5
            found.append(Judged(side, int(mean_N.argmax()) == name, float(mean_N[name]), none))
    return found


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
