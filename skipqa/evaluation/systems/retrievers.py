"""Other retrievers in place of SKIP's sparse one: same regions, same index, same reading.

Enters: a pipeline over indexes with embeddings (`skipqa index build … --embeddings`). Leaves: one
whose regions ask in words, the question with the name of what the region shows, and find passages

- `skip-dpr` (Karpukhin et al., 2020): by the inner product of embeddings, one for each text;
- `skip-colbert` (Khattab and Zaharia, 2020): by late interaction, one embedding for each token.

The text encoder is the backbone's, as published: neither is trained for these corpora, as the
weights of the sparse queries are.

Shapes: R regions, N passages, T tokens of a query, L tokens of a passage, D text width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from skipqa.backbones.backbone import Backbone, EncodedTexts
from skipqa.errors import UserError
from skipqa.evaluation.systems.baselines import max_sim
from skipqa.knowledge import Index
from skipqa.knowledge.library import Hits
from skipqa.pipeline import Pipeline
from skipqa.stages.regions import posterior
from skipqa.stages.retrieve import Found, Retrieve
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.types import Hit, Region

POOL = 16  # passages for each query, found by embedding, that late interaction ranks


def dense_retrieval(base: Pipeline, seed: int) -> Pipeline:
    """DPR style: SKIP whose regions ask by embedding. Needs indexes with embeddings."""
    _check_embeddings(base)
    return base.with_stages(retrieve=retrieve_dense)


def late_retrieval(base: Pipeline, seed: int) -> Pipeline:
    """ColBERT style: SKIP whose regions ask by embedding and rank what they find token by token.
    Needs indexes with embeddings."""
    _check_embeddings(base)
    return base.with_stages(retrieve=retrieve_late)


RETRIEVERS = {"skip-dpr": dense_retrieval, "skip-colbert": late_retrieval}


class TextQuerier:
    """Compares the embedding of each region's query with all of an index."""

    def __init__(self, backbone: Backbone, per_region: int) -> None:
        self.backbone, self.per_region = backbone, per_region

    def __call__(self, state: State, indexes: Sequence[Index]) -> Found:
        encoded = self.backbone.encode_texts(self.write(state))
        hits, flops = self.nearest(encoded, indexes, self.per_region)
        return Found(hits, (), encoded.flops + flops)

    def write(self, state: State) -> list[str]:
        """The query of each region: the name in place of what stands for the thing, or after the
        question."""
        names = [self._name(region, state) for region in state.regions]
        question = state.question
        if question.span is None:
            return [f"{question.text} {name}" for name in names]
        return [question.about(name) for name in names]

    def _name(self, region: Region, state: State) -> str:
        prior, shown = state.question.concept_prior, dict(region.concepts)
        if prior is not None:
            shown = posterior(region, prior.weights) or shown
        return self.backbone.concepts[max(shown, key=shown.__getitem__)].name

    def nearest(
        self, encoded: EncodedTexts, indexes: Sequence[Index], count: int
    ) -> tuple[list[Hits], int]:
        """The passages of the highest inner products, and the FLOPs of comparing with all."""
        queries_RD = encoded.embeddings.numpy()
        hits: list[Hits] = [index.search_dense(queries_RD, count) for index in indexes]
        return hits, 2 * queries_RD.size * sum(map(len, indexes))


class LateQuerier(TextQuerier):
    """Ranks the nearest by MaxSim: the mean over a query's tokens of the highest cosine to a token
    of the passage. The index holds no token states, so what is ranked is encoded first, which is
    counted."""

    @torch.inference_mode()
    def __call__(self, state: State, indexes: Sequence[Index]) -> Found:
        encoded = self.backbone.encode_texts(self.write(state))
        pools, flops = self.nearest(encoded, indexes, max(POOL, self.per_region))
        asking = [F.normalize(states_TD, dim=-1) for states_TD in encoded.states]
        flops += encoded.flops
        hits: list[Hits] = []
        for index, pool in zip(indexes, pools, strict=True):
            rows = sorted({hit.row for of_query in pool for hit in of_query})
            read = self.backbone.encode_texts([index.passage(row).text for row in rows])
            units = (F.normalize(states_LD, dim=-1) for states_LD in read.states)
            words = dict(zip(rows, units, strict=True))
            flops += read.flops
            ranked = []
            for query_TD, of_query in zip(asking, pool, strict=True):
                found = [Hit(hit.row, max_sim(query_TD, words[hit.row])) for hit in of_query]
                flops += sum(2 * query_TD.numel() * len(words[hit.row]) for hit in of_query)
                found.sort(key=lambda hit: (-hit.score, hit.row))
                ranked.append(found[: self.per_region])
            hits.append(ranked)
        return Found(hits, (), flops)


def retrieve_dense(parts: Parts) -> Retrieve:
    config = parts.config.retrieve
    return Retrieve(TextQuerier(parts.backbone, config.per_region), parts.library, config)


def retrieve_late(parts: Parts) -> Retrieve:
    config = parts.config.retrieve
    return Retrieve(LateQuerier(parts.backbone, config.per_region), parts.library, config)


def _check_embeddings(base: Pipeline) -> None:
    """Refuse an index without embeddings before anything is asked."""
    for name, index in base.library.indexes.items():
        if index.embeddings([]) is None:
            raise UserError(f"the index {name} has no embeddings: build it with --embeddings")
