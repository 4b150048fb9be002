"""Whether indexes can be left out without losing answers.

Enters: the probability, for each question, that an index is useful, by controllers that did not see
the question. Leaves: the threshold below which an index is not searched, and the score with and
without those indexes; where leaving them out loses answers, the threshold is 0. Nothing is trained
here.

Shape letters: n questions, I indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from skipqa.nn.budget import DiscreteBudget, joined
from skipqa.training.pathway.answering import question_key
from skipqa.training.pathway.budget_grid import USUAL, BudgetGrid, scores_without
from skipqa.training.pathway.context import TrainingContext


@dataclass(frozen=True, slots=True)
class SourceChoice:
    threshold: float  # as stored; 0: all indexes are searched
    tried: float  # the threshold that was compared
    recall: float  # of useful indexes, at that threshold
    searched: float  # the fraction of indexes searched, at that threshold
    questions: int  # that are looked up, with an index left out
    score_of_all: float  # of these, with all indexes
    score: float  # of these, without those left out


@torch.inference_mode()
def useful_probs(
    folds: Sequence[DiscreteBudget], fold_n: Tensor, grid: BudgetGrid, indexes_ID: Tensor
) -> Tensor:
    """[n, I], each question by the controller of its fold."""
    known = joined(grid.visual, grid.question, grid.signals)
    found = []
    for controller in folds:
        assert controller.sources is not None
        found.append(controller.sources(known, indexes_ID).sigmoid())
    return torch.stack(found)[fold_n, torch.arange(len(grid))]


def choose_sources(
    context: TrainingContext,
    rows: Sequence[int],
    grid: BudgetGrid,
    probs_nI: Tensor,
    useful_nI: Tensor,
    recall: float,
) -> SourceChoice:
    """`rows` are the records of the questions, which are looked up."""
    known = ~useful_nI[:, 0].isnan()
    if not known.any():
        return SourceChoice(0.0, 0.0, 1.0, 1.0, 0, 0.0, 0.0)
    useful = useful_nI[known] > 0
    tried = float(probs_nI[known][useful].quantile(1 - recall))
    kept_nI = (probs_nI >= tried) | (probs_nI == probs_nI.amax(1, keepdim=True))
    names, some = context.pipeline.library.names, (~kept_nI).any(1).nonzero()[:, 0].tolist()
    skipped = {
        question_key(context.records, rows[n]): tuple(
            name for name, keep in zip(names, kept_nI[n].tolist(), strict=True) if not keep
        )
        for n in some
    }
    asked = [rows[n] for n in some]
    found = context.spread(scores_without, asked, "leaving indexes out", skipped)
    # Both means in the same precision: equal answers have to give equal scores
    score = float(torch.tensor(found).mean()) if some else 0.0
    of_all = float(grid.value[some][:, USUAL[0], USUAL[1]].mean()) if some else 0.0
    return SourceChoice(
        tried if score >= of_all and some else 0.0,
        tried,
        float(kept_nI[known][useful].float().mean()),
        float(kept_nI.float().mean()),
        len(some),
        of_all,
        score,
    )
