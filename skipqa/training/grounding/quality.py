"""Does it point at the thing that is asked about? A grounding and the rule on the same questions.

Enters: a grounding, encoded questions with boxes. Leaves, by source and for questions whose thing
has rivals of its own kind: how often the most salient token is in the box (`points`), how much of
the box is among the V' kept tokens (`kept`), and how often the asked thing is more salient than
every rival (`which`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skipqa.config import BudgetConfig
from skipqa.nn.grounding import Grounding
from skipqa.stages.regions import in_box
from skipqa.training.grounding.encode import Tables
from skipqa.training.grounding.examples import GroundedExample
from skipqa.training.stage import Metrics
from skipqa.types import Box

BATCH = 64
RIVALS = "with rivals"


class Pointed(NamedTuple):
    points: float
    kept: float
    which: float | None  # None where nothing else is of its kind


def pointing(
    model: Grounding, tables: Tables, examples: Sequence[GroundedExample], split: str
) -> Metrics:
    rows = [one for one in examples if one.split == split and one.boxes]
    groups: dict[str, list[tuple[Pointed, Pointed]]] = {}
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        for one, trained, rule in zip(some, *scores(model, tables, some), strict=True):
            pair = pointed(one, trained), pointed(one, rule)
            groups.setdefault(one.source, []).append(pair)
            if one.rivals:
                groups.setdefault(RIVALS, []).append(pair)
    return {
        name: {
            "questions": len(pairs),
            "trained": _means([pair[0] for pair in pairs]),
            "rule": _means([pair[1] for pair in pairs]),
        }
        for name, pairs in groups.items()
    }


@torch.inference_mode()
def scores(
    model: Grounding, tables: Tables, examples: Sequence[GroundedExample]
) -> tuple[Tensor, Tensor]:
    """Logits of the grounding and of the rule at high resolution, [n, V] each."""
    batch = tables.batch([e.photo for e in examples], [e.question for e in examples], True)
    logits = model(batch.scene, batch.states_BTd, batch.there_BT)
    return logits.float().cpu(), batch.scene.rule_BV.float().cpu()


def pointed(example: GroundedExample, logits_V: Tensor) -> Pointed:
    grid = int(len(logits_V) ** 0.5)
    inside_V = torch.stack([in_box(box, grid) for box in example.boxes]).any(0)
    best = logits_V.topk(BudgetConfig().kept_tokens(len(logits_V))).indices
    kept = float(inside_V[best].sum()) / min(int(inside_V.sum()), len(best))
    which = None
    if example.rivals:
        own = _mean_in(example.boxes[0], logits_V, grid)
        which = float(all(own > _mean_in(box, logits_V, grid) for box in example.rivals))
    return Pointed(float(inside_V[logits_V.argmax()]), kept, which)


def _mean_in(box: Box, logits_V: Tensor, grid: int) -> float:
    return float(logits_V.sigmoid()[in_box(box, grid)].mean())


def _means(found: Sequence[Pointed]) -> dict[str, float]:
    which = [one.which for one in found if one.which is not None]
    means = {
        "points": sum(one.points for one in found) / len(found),
        "kept": sum(one.kept for one in found) / len(found),
    }
    return means | ({"which": sum(which) / len(which)} if which else {})
