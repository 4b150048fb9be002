"""How good it is to choose the way to read by the question, against one way for all of them.

Enters: what every way is worth to each question (`reading_grid.py`), and which is chosen for it.
Leaves: the gain over every fixed way and over the best draw between two of them at equal FLOPs,
with intervals; what each price leads to, and whether the choice ships. Nothing is trained here.

Shape letters: n questions, R ways to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from skipqa.nn.reading_choice import WAYS, best_ways
from skipqa.training.pathway.answering import GIGA, Answered
from skipqa.training.pathway.budget_quality import (
    ALL,
    Curve,
    Outcome,
    curve,
    gain_of,
    groups,
    over_fixed,
    resampled,
)
from skipqa.training.pathway.reading_grid import NOTHING
from skipqa.training.stage import Metrics
from skipqa.types import ReadAs

# In score, of what text costs; at the last one the cheapest way is chosen
PRICES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 1e4)
ROUNDING = 1e-5  # of scores
OWN_COST = 1.001  # what a choice that equals a fixed way may cost, its own FLOPs included
MOST_LOST = 0.005  # by a data set, against the way that is set


@dataclass(frozen=True, slots=True)
class Expected:
    """What models expect of questions that they did not see."""

    scores: Tensor  # [n, R]
    cost: Tensor  # [n, R]
    flops: int  # of a choice

    def choice(self, price: Tensor) -> Tensor:
        """[n], places among WAYS; `price` is [n] or []."""
        return best_ways(self.scores, self.cost, price, torch.ones(len(WAYS), dtype=torch.bool))

    def outcome(self, price: Tensor, answered: Answered) -> Outcome:
        way_n = self.choice(price)
        every = torch.arange(len(answered))
        value, giga = answered.value[every, way_n], answered.giga[every, way_n]
        return Outcome((way_n != NOTHING).float(), value, giga + self.flops / GIGA)

    def only(self, rows: list[int]) -> Expected:
        return Expected(self.scores[rows], self.cost[rows], self.flops)


def price_curve(expected: Expected, answered: Answered, today: ReadAs) -> Curve:
    """A price is affordable if questions cost no more than in the way that is set `today`."""
    most = OWN_COST * float(answered.giga[:, WAYS.index(today)].mean())
    return curve(
        "price",
        PRICES,
        lambda price: expected.outcome(torch.tensor(price), answered),
        answered,
        lambda giga: giga[ALL] <= most,
    )


def compare_ways(expected: Expected, price_n: Tensor, answered: Answered, today: ReadAs) -> Metrics:
    """All questions together, and each data set alone among `by_source`."""
    of_sources = {
        source: _compare(expected.only(rows), price_n[rows], answered.only(rows), today)
        for source, rows in groups(answered).items()
        if source != ALL
    }
    return {**_compare(expected, price_n, answered, today), "by_source": of_sources}


@torch.inference_mode()
def _compare(expected: Expected, price_n: Tensor, answered: Answered, today: ReadAs) -> Metrics:
    way_n = expected.choice(price_n)
    _, score_n, giga_n = expected.outcome(price_n, answered)
    weight_Sn = resampled(len(answered))
    gains = weight_Sn @ (score_n[:, None] - answered.value)
    fixed = {
        way: {
            "score": float(answered.value[:, r].mean()),
            "giga_flops": float(answered.giga[:, r].mean()),
            "gain": asdict(gain_of(gains[:, r])),
        }
        for r, way in enumerate(WAYS)
    }
    return {
        **over_fixed(score_n, giga_n, answered.value, answered.giga),
        "fixed": fixed,
        "today": today,
        "chosen": {way: float((way_n == r).float().mean()) for r, way in enumerate(WAYS)},
    }


def choice_ships(held_out: Mapping[str, Any]) -> bool:
    """Not below any fixed way of the same cost, nor a draw between two; no data set loses much of
    what it has today. A choice that is always the same is none."""
    as_good = held_out["gain"]["mean"] >= -ROUNDING
    lost = [-one["fixed"][one["today"]]["gain"]["mean"] for one in held_out["by_source"].values()]
    chooses = max(held_out["chosen"].values()) < 1
    return bool(as_good and chooses and max(lost) <= MOST_LOST)
