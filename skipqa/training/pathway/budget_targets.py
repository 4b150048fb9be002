"""What a budget controller is trained on besides the value of its answers.

Enters: records of held-out and of training questions. Leaves: targets that need no answering: what
the reader gains by passages where that was measured, the type of the question, and which indexes
had something useful. The scores of training questions are optimistic, as stage I trained on them;
these targets are less so. Nothing is trained here.

Shape letters: m questions, I indexes, D the width of their embeddings, K passages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skipqa.knowledge import Library
from skipqa.stages.budget_sources import DescribedIndexes
from skipqa.training.pathway.answering import controller_inputs
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records

TYPES = ("lookup", "ocr", "other", "speculative")  # of OK-VQA's questions
ALWAYS = -1  # the fold of training questions, which judge nothing
# [N] of all records: by how much passages raise the reader's log-probability of the answer; NaN
# where it was not measured
ReaderGains = Callable[[TrainingContext], Tensor]


def not_measured(context: TrainingContext) -> Tensor:
    return torch.full((len(context.records),), torch.nan)


@dataclass(frozen=True, slots=True)
class Targets:
    visual: Tensor  # [m, d]
    question: Tensor  # [m, d]
    signals: Tensor  # [m, S]
    reader_gain: Tensor  # [m], scaled to a deviation of 1; NaN: unknown
    type: Tensor  # [m] int64, of TYPES; -1: unknown
    useful: Tensor  # [m, I] 1 where the index had a useful passage; NaN: no index had
    fold: Tensor  # [m]
    indexes_ID: Tensor

    def __len__(self) -> int:
        return len(self.fold)

    def without(self, fold: int) -> Targets:
        some = self.fold != fold
        names = ("visual", "question", "signals", "reader_gain", "type", "useful", "fold")
        return replace(self, **{name: getattr(self, name)[some] for name in names})


def collect_targets(
    context: TrainingContext, rows: Sequence[int], fold_m: Tensor, gains: ReaderGains
) -> Targets:
    records, pipeline = context.records, context.pipeline
    types = [records.about[i]["type"] for i in rows]
    return Targets(
        *controller_inputs(records, rows),
        _scaled(gains(context)[list(rows)]),
        torch.tensor([TYPES.index(kind) if kind in TYPES else -1 for kind in types]),
        useful_indexes(records, rows, pipeline.library),
        fold_m,
        DescribedIndexes(pipeline.library, pipeline.backbone).embeddings_ID.clone(),
    )


def useful_indexes(records: Records, rows: Sequence[int], library: Library) -> Tensor:
    """[m, I]"""
    some = list(rows)
    passages_mK = records["passages"][some].long()
    useful_mK = (records["gold"][some] | records["stated"][some]) & (passages_mK >= 0)
    first = torch.as_tensor(library.bases[1:])  # row of the first passage of the next index
    index_mK = torch.searchsorted(first, passages_mK.clamp(min=0), right=True)
    found = torch.zeros(len(some), len(library.names))
    found.scatter_add_(1, index_mK, useful_mK.float())
    return torch.where(useful_mK.any(1, keepdim=True), found.clamp(max=1), torch.nan)


def _scaled(values: Tensor) -> Tensor:
    known = values[~values.isnan()]
    return values.float() / known.std().clamp(min=1e-6) if len(known) > 1 else values.float()
