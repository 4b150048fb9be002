"""What a region query learns from: the query by names of every region, and passages to tell apart.

Enters: records of questions whose passages are known, the indexes they were retrieved from. Leaves:
what the loss reads of each question, computed once, and the logit of every passage of a batch. A
passage is scored as retrieval does: the inner product with its stored vector, by the best region,
each region counting by its saliency and each index as it does when lists are merged. Passages that
another question of the batch has are in-batch negatives, what today's query finds and is not gold
are hard ones; but for passages about unseen entities, as a query that learned not to find these
would find them no more when they are asked about. The cut to the heaviest terms is left to
answering; the regulariser over the whole vocabulary keeps queries short.

Shape letters: B questions, R regions, M passages of a batch, I indexes, T terms that occur in these
passages, N all terms, F features, C concepts, d text width.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.knowledge import Library
from skipqa.knowledge.text_query import encode_queries
from skipqa.knowledge.vectors import SparseRows
from skipqa.nn.region_query import (
    DenseRegionQuery,
    RegionViews,
    SparseRegionQuery,
    term_flops_loss,
)
from skipqa.pipeline import Pipeline
from skipqa.stages.regions import region_views
from skipqa.stages.retrieve import ConceptQuerier, region_weights
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.gains import LARGEST, Gains
from skipqa.training.pathway.gather import MOST_REGIONS
from skipqa.training.pathway.records import Records
from skipqa.types import SparseVector

SCALE = {"A": 0.5, "B": 20.0}  # a sparse inner product is ten to twenty where it fits, a cosine 1
Variant = Literal["A", "B"]
AnyRegionQuery = SparseRegionQuery | DenseRegionQuery


class Asked(NamedTuple):
    """What the regions of one question show and ask by their names; R of them, padded."""

    features: Tensor  # [R, F] half precision
    evidence: Tensor  # [R, C] half precision
    boxes: Tensor  # [R, 4]
    counts: Tensor  # [R] how much each region's scores count; 0 where there is none
    names: tuple[SparseRows, ...]  # A: the queries by names, as each index encodes them
    embedded: Tensor  # B: the same, [R, d]


@dataclass(frozen=True)
class QueryInputs:
    """Of each question that is trained on, by its place in the records."""

    records: Records
    library: Library
    variant: Variant
    asked: dict[int, Asked]
    targets: dict[int, dict[int, float]]  # its passages, by their row: 1 gold, 0 a hard negative
    scales: dict[int, Tensor]  # [I] how much the scores of each index count
    passages: dict[int, SparseVector] = field(default_factory=dict)  # stored vectors, as needed

    @cached_property
    def embeddings(self) -> dict[int, Tensor]:
        """B: of every passage that a batch may have."""
        rows = {row for of_question in self.targets.values() for row in of_question}
        return {row: torch.from_numpy(self.library.embedding(row)).float() for row in sorted(rows)}

    def loss(self, model: AnyRegionQuery, batch: Sequence[int], sparsity: float) -> Tensor:
        """Cross-entropy where several passages are right, some only in part: minus the log of the
        sum of p_m t_m; and the expected cost of what the residual adds."""
        rows = list(dict.fromkeys(row for i in batch for row in self.targets[i]))
        target_BM = torch.tensor([[self.targets[i].get(row, 0.0) for row in rows] for i in batch])
        logits_BM, added = self.logits(model, batch, rows)
        right_BM = logits_BM + target_BM.log()
        contrast = (logits_BM.logsumexp(1) - right_BM.logsumexp(1)).mean()
        return contrast + sparsity * added

    def logits(
        self, model: AnyRegionQuery, batch: Sequence[int], rows: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """[B, M] of these passages, and what the regulariser says of the queries."""
        asked = [self.asked[i] for i in batch]
        counts_BR = torch.stack([one.counts for one in asked])
        most = int(counts_BR.any(0).nonzero().max()) + 1  # regions of any question
        counts_BR = counts_BR[:, :most]
        views = RegionViews(
            torch.stack([one.features[:most] for one in asked]).float(),
            torch.stack([one.evidence[:most] for one in asked]).float(),
        )
        question_Bd = self.records["question"][list(batch)].float()
        if isinstance(model, SparseRegionQuery):
            added_BRN = model(views, question_Bd)
            score_BRM = self._sparse_scores(added_BRN, asked, rows)
            regularised = term_flops_loss(added_BRN[counts_BR > 0].relu())
        else:
            boxes_BR4 = torch.stack([one.boxes[:most] for one in asked])
            named_BRd = torch.stack([one.embedded[:most] for one in asked])
            asked_BRd = named_BRd + model(views, question_Bd, boxes_BR4)
            score_BRM = asked_BRd @ torch.stack([self.embeddings[row] for row in rows]).T
            regularised = score_BRM.new_zeros(())
        index_M = torch.tensor([self._index_of(row) for row in rows])
        scale_BM = torch.stack([self.scales[i] for i in batch])[:, index_M]
        counted_BRM = score_BRM * counts_BR[..., None]
        best_BM = counted_BRM.masked_fill(counts_BR[..., None] == 0, -torch.inf).amax(1)
        return SCALE[self.variant] * scale_BM * best_BM, regularised

    def _sparse_scores(
        self, added_BRN: Tensor, asked: Sequence[Asked], rows: Sequence[int]
    ) -> Tensor:
        """[B, R, M]: each passage by the query of its own index."""
        vectors = [self._passage(row) for row in rows]
        terms_T = np.unique(np.concatenate([vector.terms for vector in vectors]))
        place_N = np.full(added_BRN.shape[2], -1)
        place_N[terms_T] = np.arange(len(terms_T))
        passages_MT = torch.zeros(len(rows), len(terms_T))
        for row_T, vector in zip(passages_MT, vectors, strict=True):
            row_T[place_N[vector.terms]] = torch.from_numpy(vector.weights)
        added_BRT = added_BRN[..., torch.from_numpy(terms_T).long()]
        index_M = torch.tensor([self._index_of(row) for row in rows])
        score_BRM = added_BRN.new_zeros(*added_BRN.shape[:2], len(rows))
        for index in index_M.unique().tolist():
            names_BRT = torch.stack(
                [_names_at(one.names[index], place_N, len(terms_T)) for one in asked]
            )[:, : added_BRT.shape[1]]
            weights_BRT = SparseRegionQuery.weights(names_BRT, added_BRT)
            here = (index_M == index).nonzero()[:, 0]
            score_BRM = score_BRM.index_copy(2, here, weights_BRT @ passages_MT[here].T)
        return score_BRM

    def _passage(self, row: int) -> SparseVector:
        if row not in self.passages:
            self.passages[row] = self.library.stored_vector(row)
        return self.passages[row]

    def _index_of(self, row: int) -> int:
        return self.library.names.index(self.library.name_of(row))


def _names_at(names: SparseRows, place_N: np.ndarray, num_terms: int) -> Tensor:
    """[R, T] of the terms that have a place."""
    found = torch.zeros(MOST_REGIONS, num_terms)
    region = np.repeat(np.arange(len(names)), np.diff(names.offsets))
    place = place_N[names.terms]
    there = place >= 0
    found[region[there], place[there]] = torch.from_numpy(names.weights[there])
    return found


def prepare(
    context: TrainingContext, rows: Sequence[int], variant: Variant, gains: Gains
) -> QueryInputs:
    """Of these questions, which name their passages."""
    records, library = context.records, context.pipeline.library
    asked = context.spread(ask_by_names, rows, "asking by names", variant)
    unseen = frozenset(library.rows_of(context.unseen_passages))
    return QueryInputs(
        records,
        library,
        variant,
        dict(zip(rows, asked, strict=True)),
        {i: _targets(records, i, gains, unseen) for i in rows},
        {i: _scales(records, i, library, variant) for i in rows},
    )


@torch.inference_mode()
def ask_by_names(pipeline: Pipeline, records: Records, variant: Variant) -> list[Asked]:
    """As answering would before anything is trained, with the regions of gathering."""
    num_concepts = len(pipeline.backbone.concepts) - pipeline.backbone.concepts.from_photos
    querier = ConceptQuerier(pipeline.config.retrieve, pipeline.backbone)
    encoders = [index.encoder for index in pipeline.library.indexes.values()]
    found = []
    for i in range(len(records)):
        state = records.after_retrieve(i, len(pipeline.backbone.concepts))
        views = region_views(state, num_concepts)
        weights = region_weights(state.regions, pipeline.config.retrieve.region_sharpness)
        names: tuple[SparseRows, ...] = ()
        if variant == "A":
            encoded, _ = encode_queries(querier.write(state), encoders)
            names = tuple(map(SparseRows.stack, encoded))
        found.append(
            Asked(
                _padded(views.features).half(),
                _padded(views.evidence).half(),
                records["boxes"][i].clone(),
                _padded(torch.tensor(weights)),
                names,
                _padded(querier.embed(state)),
            )
        )
    return found


def _padded(values_R: Tensor) -> Tensor:
    return F.pad(values_R, (0, 0) * (values_R.ndim - 1) + (0, MOST_REGIONS - len(values_R)))


def _targets(records: Records, i: int, gains: Gains, unseen: Set[int]) -> dict[int, float]:
    """1 for gold passages; for others what the reader gains by them, where that is known. Without
    those at `unseen` rows."""
    found = {row: 0.0 for row in records["passages"][i].tolist() if row >= 0}
    if bool(gains.known[i]):
        gained = gains.passage[i].nan_to_num(0.0).clamp(min=0.0) / LARGEST
        found = {row: float(gain) for row, gain in zip(found, gained.tolist(), strict=False)}
    found |= dict.fromkeys(records.about[i]["gold_rows"], 1.0)
    return {row: target for row, target in found.items() if row not in unseen}


def _scales(records: Records, i: int, library: Library, variant: Variant) -> Tensor:
    """[I]: what a score of each index counted for today's list, relative to the index whose
    passage was the first; 1 where none of its passages was in the list."""
    found = torch.ones(len(library.names))
    passages = records.candidates(i)
    if variant == "B" or not passages:
        return found
    for one in reversed(passages):
        if one.score > 0:
            scale = one.relative * passages[0].score / (one.score * passages[0].relative)
            found[library.names.index(library.name_of(one.row))] = scale
    return found
