"""Which questions a step is trained on: rare categories as often as common ones.

Enters: the category of each question. Leaves: `step -> rows`, drawn from the seed and the step's
number alone, so that a run that goes on after a kill draws what it would have drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def inverse_frequency(
    rows: Sequence[int], categories: Sequence[str], size: int, seed: int
) -> Callable[[int], Tensor]:
    """`size` of `rows` a step, with replacement; `categories` has one for each of `rows`."""
    count = Counter(categories)
    weights = torch.tensor([1.0 / count[category] for category in categories])
    pool = torch.tensor(rows)

    def at(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return pool[torch.multinomial(weights, size, replacement=True, generator=generator)]

    return at
