"""The loss of region queries: the gold passage by the score of what the regions ask.

Enters: a sparse region query, gated tokens, the candidates of a few questions. Leaves: the scores
of the candidates and a distance. A query is scored against passages as the index does, by the inner
product with their stored weights; terms that occur in no candidate and no untrained query are not
computed. The distance is to the training-free queries, from which a new module starts far away.

Shape letters: B questions, V visual tokens, R regions, K candidates, T terms that occur, d width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.knowledge.text_query import encode_queries, weighted_sum
from skipqa.nn.region_query import SparseRegionQuery
from skipqa.stages.retrieve import ConceptQuerier
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.gather import MOST_REGIONS
from skipqa.types import SparseVector

SCALE = 0.5  # a sparse inner product is ten to twenty where it fits
NOTHING = SparseVector(np.zeros(0, np.int32), np.zeros(0, np.float32))


class RegionQueryLoss:
    def __init__(self, context: TrainingContext, candidates_NK: Tensor, there_NK: Tensor) -> None:
        self.context, self.rows_NK, self.there_NK = context, candidates_NK, there_NK
        library, place = context.pipeline.library, context.records.table.place
        row_of = {number: row for row, number in place.items()}
        self.passage = cache(lambda number: library.stored_vector(row_of[number]))
        self.untrained = cache(self._untrained)

    def _untrained(self, i: int) -> tuple[SparseVector, ...]:
        """The training-free queries of question `i`, one per region: the mean over the indexes, as
        a trained query is the same for all of them."""
        pipeline, records = self.context.pipeline, self.context.records
        querier = ConceptQuerier(pipeline.config.retrieve, pipeline.backbone)
        written = querier.write(records.after_retrieve(i, len(pipeline.backbone.concepts)))
        encoders = [index.encoder for index in pipeline.library.indexes.values()]
        encoded, _ = encode_queries(written, encoders)
        queries = [
            weighted_sum([(1 / len(encoders), vector) for vector in of_region])
            for of_region in zip(*encoded, strict=True)
        ]
        return (*queries, *[NOTHING] * (MOST_REGIONS - len(queries)))

    def scores(
        self,
        query: SparseRegionQuery,
        batch: Tensor,
        tokens_BVd: Tensor,
        question_Bd: Tensor,
        gates_BV: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """[B, K] by the best region, and the mean distance from the untrained queries."""
        rows = batch.tolist()
        region_BV = self.context.records["region_of"][batch]
        member_BRV = region_BV[:, None, :] == torch.arange(MOST_REGIONS)[:, None]
        weight_BRV = member_BRV * gates_BV[:, None, :]
        mass_BR = weight_BRV.sum(2)
        centre_BRd = weight_BRV @ tokens_BVd / mass_BR[..., None].clamp_min(1e-6)
        passages = [self.passage(n) for i in rows for n in self.rows_NK[i].tolist()]
        untrained = [vector for i in rows for vector in self.untrained(i)]
        terms = np.unique(np.concatenate([vector.terms for vector in (*passages, *untrained)]))
        passage_BKT = _dense(passages, terms).view(len(rows), -1, len(terms))
        untrained_BRT = _dense(untrained, terms).view(len(rows), MOST_REGIONS, len(terms))
        hidden = F.gelu(query.of_region(centre_BRd) + query.of_question(question_Bd)[:, None, :])
        columns = torch.from_numpy(terms.astype(np.int64))
        weight, bias = query.to_terms.weight[columns], query.to_terms.bias[columns]
        asked_BRT = F.linear(hidden, weight, bias).relu().log1p()
        there_BR = member_BRV.any(2)
        score_BRK = asked_BRT @ passage_BKT.transpose(1, 2)
        best_BK = score_BRK.masked_fill(~there_BR[..., None], -torch.inf).amax(1)
        distance_BR = (asked_BRT - untrained_BRT.log1p()).square().sum(2)
        return SCALE * best_BK, distance_BR[there_BR].mean()


def _dense(vectors: Sequence[SparseVector], terms: np.ndarray) -> Tensor:
    """[len(vectors), T]; `terms` ascending and complete."""
    whole = np.zeros((len(vectors), len(terms)), np.float32)
    for row, vector in zip(whole, vectors, strict=True):
        row[np.searchsorted(terms, vector.terms)] = vector.weights
    return torch.from_numpy(whole)
