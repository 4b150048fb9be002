"""retrieve: every region sends its own query (RCSR, second half).

Untrained, the query of region r is the names of its concepts and, at a lower weight, their
definitions, weighted by their probability, plus the question's terms and, if `draft_weight` says
so, the answers that the drafter thinks of. A region that is certain of what it shows therefore
scores its passages higher. A concept prior turns the probabilities into the posterior over the
region's concepts. A trained phi reads what the region shows and the question, and adds to that
query: to its terms (variant A) or, for an index with embeddings, to the embedding of its names (B),
which names no drafted answer. Where saliency was trained to tell which thing is asked about, what a
region finds also counts by the region's saliency.

Every index of the library is asked, each with its own encoding of the queries. What they find makes
one list (knowledge/library.py), of which the best K' stay. Of a long passage the decoder reads only
the sentences that its query is about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.concepts import Concept, Concepts
from skipqa.config import RetrieveConfig
from skipqa.knowledge import Index, Library
from skipqa.knowledge.excerpt import excerpt
from skipqa.knowledge.library import Hits, RankedHit, SearchedIndex, merge
from skipqa.knowledge.text_query import TextQuery, encode_queries
from skipqa.language import content_words
from skipqa.nn import region_query as network
from skipqa.nn.region_query import DenseRegionQuery, SparseRegionQuery
from skipqa.stages.regions import probs_given, region_views
from skipqa.stages.stage import Parts, check_concepts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Hit, Question, Region, Retrieved, RetrievedPassage, SparseVector

DRAFTED = 5  # answers at most that a query names
SourceWeights = Callable[[State], Mapping[str, float]]


class Found(NamedTuple):
    """What the query of every region finds in each index."""

    hits: list[Hits]  # by index
    queries: Sequence[Sequence[SparseVector]]  # by index and region; none where they are dense
    flops: int  # of writing the queries


class RegionQuerier(Protocol):
    def __call__(self, state: State, indexes: Sequence[Index]) -> Found: ...


class ConceptQuerier:
    """Training-free: names and definitions of the region's concepts, the question's terms, and
    answers that the drafter thinks of."""

    def __init__(self, config: RetrieveConfig, backbone: Backbone) -> None:
        self.config, self.backbone = config, backbone

    def __call__(self, state: State, indexes: Sequence[Index]) -> Found:
        return search_texts(self.write(state), indexes, self.config.per_region)

    def write(self, state: State) -> list[TextQuery]:
        """The query of each region, in words."""
        question, config, concepts = state.question, self.config, self.backbone.concepts
        # The names of what a region shows take the place of "this animal".
        keywords = " ".join(content_words(question.about("")) if question.span else question.words)
        drafted = drafted_texts(state, config.draft_weight)
        return [
            TextQuery(
                question.text,
                keywords,
                config.question_weight,
                (
                    *concept_texts(region, question, concepts, config.definition_weight),
                    *((config.text_weight, text) for text in state.text_read.in_region(number)),
                    *drafted,
                ),
            )
            for number, region in enumerate(state.regions)
        ]

    def embed(self, state: State) -> Tensor:
        """[R, d]: the same as an embedding, the mean of the region's names, each by its
        probability, and the question."""
        embeddings_Cd, question = self.backbone.concepts.embeddings, state.question
        asked_d = self.config.question_weight * question.embedding
        found = [asked_d.clone() for _ in state.regions]
        for query_d, region in zip(found, state.regions, strict=True):
            for concept, prob in probs_given(question, region).items():
                query_d += prob * embeddings_Cd[concept]
        return torch.stack(found)


def search_texts(queries: Sequence[TextQuery], indexes: Sequence[Index], most: int) -> Found:
    """`most` passages for each query in each index."""
    encoded, flops = encode_queries(queries, [index.encoder for index in indexes])
    hits: list[Hits] = [
        index.search(vectors, most) for index, vectors in zip(indexes, encoded, strict=True)
    ]
    return Found(hits, encoded, flops)


class SparseQuerier:
    """Variant A: every index encodes the query by names with its own term frequencies; what phi
    adds is the same for all of them."""

    def __init__(self, query: SparseRegionQuery, names: ConceptQuerier, per_region: int) -> None:
        self.query, self.names, self.per_region = query, names, per_region

    @torch.inference_mode()
    def __call__(self, state: State, indexes: Sequence[Index]) -> Found:
        config = self.query.config
        encoders = [index.encoder for index in indexes]
        encoded, spent = encode_queries(self.names.write(state), encoders)
        views = region_views(state, config.concepts)
        added_RN = self.query(views, state.question.embedding)
        queries = [
            self.query.queries(
                self.query.weights(written_out(of_index, config.vocabulary), added_RN)
            )
            for of_index in encoded
        ]
        hits: list[Hits] = [
            index.search(of_index, self.per_region)
            for index, of_index in zip(indexes, queries, strict=True)
        ]
        return Found(hits, queries, spent + network.flops(config, len(state.regions)))


class DenseQuerier:
    """Variant B: phi also sees the region's box, and adds to the embedding of its names."""

    def __init__(self, query: DenseRegionQuery, names: ConceptQuerier, per_region: int) -> None:
        self.query, self.names, self.per_region = query, names, per_region

    @torch.inference_mode()
    def __call__(self, state: State, indexes: Sequence[Index]) -> Found:
        config, boxes = self.query.config, torch.tensor([region.box for region in state.regions])
        views = region_views(state, config.concepts)
        added_RD = self.query(views, state.question.embedding, boxes)
        vectors = (self.names.embed(state) + added_RD).numpy()
        hits: list[Hits] = [index.search_dense(vectors, self.per_region) for index in indexes]
        return Found(hits, (), network.flops(config, len(state.regions)))


def written_out(vectors: Sequence[SparseVector], vocabulary: int) -> Tensor:
    """[len(vectors), vocabulary], zeros where a vector has no term."""
    whole = torch.zeros(len(vectors), vocabulary)
    for row, vector in zip(whole, vectors, strict=True):
        row[torch.from_numpy(vector.terms).long()] = torch.from_numpy(vector.weights)
    return whole


def index_weights(library: Library, config: RetrieveConfig) -> SourceWeights:
    """Of every index by whose documents it holds; at 0 those that the budget skips."""
    known = library.weights(config.general_weight)

    def of_question(state: State) -> Mapping[str, float]:
        return {**known, **dict.fromkeys(state.budget.skipped_indexes, 0.0)}

    return of_question


class Retrieve:
    """`weights` gives how much each index of the library counts for a question, by name: the
    relative scores of its passages are multiplied by it. At 0 the index is not searched. Without
    them they are those of `index_weights`."""

    def __init__(
        self,
        querier: RegionQuerier,
        library: Library,
        config: RetrieveConfig,
        weights: SourceWeights | None = None,
    ) -> None:
        self.querier, self.library, self.config = querier, library, config
        self.weights = weights or index_weights(library, config)

    def __call__(self, state: State, record: StageRecord) -> State:
        if state.budget.passages == 0:
            record.kept, record.dropped = 0, 0
            record.why = "no retrieval for this question"
            return state.add(retrieved=Retrieved((), 0, 0))
        sources = self.library.searched(self.weights(state))
        found = self.querier(state, [source.index for source in sources])
        hits = by_saliency(found.hits, state.regions, self.config.region_sharpness)
        unique = merge(sources, hits, self.config.index_sharpness)
        record.flops = found.flops
        passages = tuple(
            self._passage(hit, sources, found) for hit in unique[: state.budget.passages]
        )
        num_hits = sum(len(of_query) for of_index in found.hits for of_query in of_index)
        record.kept, record.dropped = len(passages), num_hits - len(passages)
        record.why = (
            f"{len(state.regions)} queries, {num_hits} hits, {len(unique)} unique "
            f"of {len(self.library):,}"
        )
        queries = tuple(found.queries[0]) if found.queries else ()
        return state.add(retrieved=Retrieved(passages, num_hits, len(unique), queries))

    def _passage(
        self, hit: RankedHit, sources: Sequence[SearchedIndex], found: Found
    ) -> RetrievedPassage:
        passage, said = self.library.passage(hit.row), ""
        if found.queries and self.config.excerpt_words:
            encoder = sources[hit.source].index.encoder
            query = found.queries[hit.source][hit.query]
            said = excerpt(passage, query, encoder, self.config.excerpt_words)
        own = self.library.is_own(hit.row)
        return RetrievedPassage(hit.row, passage, hit.score, hit.query, hit.relative, said, own=own)


def build(parts: Parts) -> Retrieve:
    config, query = parts.config.retrieve, parts.components.region_query
    names = ConceptQuerier(config, parts.backbone)
    querier: RegionQuerier = names
    if query is not None:
        check_concepts("region_query", query.config.concepts, parts.backbone)
    if isinstance(query, SparseRegionQuery):
        querier = SparseQuerier(query, names, config.per_region)
    elif isinstance(query, DenseRegionQuery):
        querier = DenseQuerier(query, names, config.per_region)
    return Retrieve(querier, parts.library, config)


def region_weights(regions: Sequence[Region], sharpness: float) -> list[float]:
    """Each region's saliency relative to the highest, to the power `sharpness`: at 0 all regions
    count alike, as they do where none is salient."""
    best = max(region.saliency for region in regions)
    if sharpness == 0 or best <= 0:
        return [1.0] * len(regions)
    return [(region.saliency / best) ** sharpness for region in regions]


def by_saliency(hits: Sequence[Hits], regions: Sequence[Region], sharpness: float) -> list[Hits]:
    """What each region found, its scores times the region's weight."""
    weights = region_weights(regions, sharpness)
    if all(weight == 1 for weight in weights):
        return list(hits)
    return [
        [
            [Hit(hit.row, hit.score * weight) for hit in found]
            for found, weight in zip(of_index, weights, strict=True)
        ]
        for of_index in hits
    ]


def drafted_texts(state: State, weight: float) -> tuple[tuple[float, str], ...]:
    """The answers that the drafter thinks of, each by its probability: where it would rather
    abstain, they hardly count."""
    if not weight or "draft" not in state:
        return ()
    return tuple(
        (weight * math.exp(log_prob), answer)
        for answer, log_prob in state.draft.candidates[:DRAFTED]
    )


def concept_texts(
    region: Region, question: Question, concepts: Concepts, definition_weight: float
) -> tuple[tuple[float, str], ...]:
    """The weighted names and definitions of what the region shows."""
    texts = []
    for concept, prob in probs_given(question, region).items():
        names, definition = _describe(concepts[concept])
        texts += [(prob, names), (prob * definition_weight, definition)]
    return tuple(texts)


def _describe(concept: Concept) -> tuple[str, str]:
    """Names, and the definition without its examples. A flag is looked up as its country."""
    if concept.kinds and "flag" in concept.kinds[0]:
        return concept.names[-1], ""
    return " ".join(concept.names), concept.gloss.partition(' "')[0].partition(';"')[0]
