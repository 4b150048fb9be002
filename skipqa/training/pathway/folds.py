"""Questions in folds, none of which shares a photo with another, and models of each fold.

Enters: records, or a way to train a model without the questions of a fold. Leaves: which questions
are used, the fold of each, and models of which none is asked about a photo that it saw. There are
few held-out questions, so all are trained on and all are judged. It does not know what is trained.

Shape letters: n questions, F folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from skipqa.training.pathway.records import Records

OF_STEPS = (1.0, 0.5, 0.2)  # fractions of the steps that the folds try

M = TypeVar("M")


def drawn(records: Records, split: str, most: int, random: Random) -> list[int]:
    """At most so many questions of each data set."""
    groups: dict[str, list[int]] = {}
    for i in records.select(split):
        groups.setdefault(records.about[i]["source"], []).append(i)
    return [
        i
        for _, rows in sorted(groups.items())
        for i in sorted(random.sample(rows, min(most, len(rows))))
    ]


def by_photo(records: Records, rows: Sequence[int], folds: int, random: Random) -> Tensor:
    """The fold of each question, [n]."""
    photos = sorted({records.about[i]["image"] for i in rows})
    random.shuffle(photos)
    fold_of = {photo: number % folds for number, photo in enumerate(photos)}
    return torch.tensor([fold_of[records.about[i]["image"]] for i in rows])


class CrossFitted(NamedTuple, Generic[M]):
    whole: M  # of all questions
    folds: list[M]  # each without its own
    errors: dict[int, float]  # on questions that were not seen, by the number of steps


def cross_fitted(
    train: Callable[[int, int | None], M],
    error: Callable[[M], Tensor],
    steps: int,
    folds: int,
    fold_n: Tensor,
) -> CrossFitted[M]:
    """`train` takes the steps and the fold that is left out, or None; `error` is of all questions,
    [n]. The folds choose the number of steps."""
    tried: dict[int, list[M]] = {}
    errors: dict[int, float] = {}
    for fraction in OF_STEPS:
        count = max(2, round(fraction * steps))
        models = [train(count, fold) for fold in range(folds)]
        error_Fn = torch.stack([error(model) for model in models])
        errors[count] = float(error_Fn[fold_n, torch.arange(len(fold_n))].mean())
        tried[count] = models
    best = min(errors, key=lambda count: (errors[count], count))
    return CrossFitted(train(best, None), tried[best], errors)
