"""Class-balanced sampling: rare categories are trained on as often as common ones.

Enters: the category of each question, or its categories from coarse to fine. Leaves: `step ->
rows`, drawn from the seed and the step alone, so that a resumed run draws the same batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def inverse_frequency(
    rows: Sequence[int], categories: Sequence[str], size: int, seed: int
) -> Callable[[int], Tensor]:
    """`size` of `rows` per step, with replacement; `categories` has one for each of `rows`."""
    return nested_inverse_frequency(rows, [(category,) for category in categories], size, seed)


def nested_inverse_frequency(
    rows: Sequence[int], paths: Sequence[tuple[str, ...]], size: int, seed: int
) -> Callable[[int], Tensor]:
    """As `inverse_frequency`, level by level: ("okvqa", "lookup") is as frequent as any other
    category of OK-VQA, and all of these together as any other data set."""
    within: dict[tuple[str, ...], set[str]] = {}
    for path in paths:
        for depth in range(len(path)):
            within.setdefault(path[:depth], set()).add(path[depth])
    count = Counter(paths)

    def weight(path: tuple[str, ...]) -> float:
        siblings = [len(within[path[:depth]]) for depth in range(1, len(path))]
        return 1.0 / math.prod([count[path], *siblings])

    weights = torch.tensor([weight(path) for path in paths])
    pool = torch.tensor(rows)

    def at(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return pool[torch.multinomial(weights, size, replacement=True, generator=generator)]

    return at
