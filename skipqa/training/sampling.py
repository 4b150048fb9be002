"""Class-balanced sampling: rare categories are trained on as often as common ones.

Enters: the category of each question. Leaves: `step -> rows`, drawn from the seed and the step
alone, so that a resumed run draws the same batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def inverse_frequency(
    rows: Sequence[int], categories: Sequence[str], size: int, seed: int
) -> Callable[[int], Tensor]:
    """`size` of `rows` per step, with replacement; `categories` has one for each of `rows`."""
    count = Counter(categories)
    weights = torch.tensor([1.0 / count[category] for category in categories])
    pool = torch.tensor(rows)

    def at(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return pool[torch.multinomial(weights, size, replacement=True, generator=generator)]

    return at
