"""What retrieval finds for training questions, from the words of their images.

Enters: a library, learned query terms and a concept prior where there are such, questions, and what
a cross-fitted tagger says that their images show. Leaves: the excerpts that each question would
have read, best first. It stands in for the stages from prune to retrieve, whose encoder was
fine-tuned on the training photos: what they find there is better than what they find later, and a
reader that learned from it would trust passages too far.

Shapes: B questions, W words of an image, N terms of the vocabulary, C concepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from skipqa.backbones.networks.sparse_query import SparseQuery
from skipqa.config import RetrieveConfig
from skipqa.knowledge import Index, Library
from skipqa.knowledge.excerpt import excerpt_of, sentences_of, subject_of
from skipqa.knowledge.library import RankedHit, merge
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.trained_query import MAX_TERMS, MAX_TOKENS
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.knowledge.vocabulary import cut_pieces
from skipqa.language import content_words
from skipqa.training.retrieval.stored import Stored
from skipqa.training.run import Counted
from skipqa.types import Hit

AT_ONCE = 256  # questions
SINGLE = 2  # of the words ask alone, as a region that shows one thing does; all of them together


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the names of what its image shows with the posterior of each."""

    text: str
    shown: tuple[tuple[str, float], ...]  # best first, summing to 1


@dataclass(frozen=True, slots=True)
class Shelf:
    """An index with its passages on the device."""

    index: Index
    encoder: LexicalEncoder
    stored: Stored
    idf_N: Tensor

    @staticmethod
    def of(index: Index, device: torch.device) -> Shelf:
        encoder = index.encoder
        assert isinstance(encoder, LexicalEncoder)
        idf_N = torch.from_numpy(encoder.idf[:NUM_TERMS].copy()).to(device)
        stored = Stored.of(Library({"one": index})).to(device)
        return Shelf(index, encoder, stored, idf_N)


class Finder:
    """Exact search of many questions at once; the list is merged as the library merges it."""

    def __init__(
        self,
        library: Library,
        network: SparseQuery | None,
        config: RetrieveConfig,
        device: torch.device,
    ) -> None:
        self.library, self.network, self.config, self.device = library, network, config, device
        self.shelves = [Shelf.of(index, device) for index in library.indexes.values()]
        self.vocabulary = self.shelves[0].encoder.vocabulary
        self._terms_of_name: dict[str, list[int]] = {}

    def __call__(
        self, asked: Sequence[Asked], most: int, counted: Counted = lambda *_: None
    ) -> Iterator[tuple[str, ...]]:
        """At most `most` excerpts for each question, in their order."""
        for start in range(0, len(asked), AT_ONCE):
            counted(start, len(asked))
            yield from self._find(asked[start : start + AT_ONCE], most)

    @torch.inference_mode()
    def _find(self, asked: Sequence[Asked], most: int) -> Iterator[tuple[str, ...]]:
        queries_SBRN = _same_length(torch.stack(self._queries(asked)))
        hits = []
        for shelf, query_BRN in zip(self.shelves, queries_SBRN, strict=True):
            scores, rows = shelf.stored.best(query_BRN.flatten(0, 1), self.config.per_region)
            hits.append(_hits(scores, rows, len(asked)))
        sources = self.library.searched({})
        for b in range(len(asked)):
            of_question = [of_shelf[b] for of_shelf in hits]
            ranked = merge(sources, of_question, self.config.index_sharpness)[:most]
            yield tuple(self._excerpts(ranked, queries_SBRN[:, b]))

    def _queries(self, asked: Sequence[Asked]) -> list[Tensor]:
        """[B, R, N] for each shelf, with its idf."""
        factors_BN, names_BRN = self._question_factors(asked), self._name_factors(asked)
        weight = self.config.question_weight
        return [
            weight * _heaviest(factors_BN * shelf.idf_N)[:, None] + names_BRN * shelf.idf_N
            for shelf in self.shelves
        ]

    def _question_factors(self, asked: Sequence[Asked]) -> Tensor:
        """[B, N]: of the network, or of the content words."""
        if self.network is None:
            words = [" ".join(content_words(one.text)) for one in asked]
            return self._one_hot([self._terms(text) for text in words])
        ids = [self._pieces(one.text) for one in asked]
        rows = [torch.tensor(row) for row in ids]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        padded = padded.to(self.device)
        matched_as = torch.from_numpy(self.vocabulary.matched_as[:NUM_TERMS]).long()
        own, joined = self.network(padded.clamp(min=0), padded >= 0, matched_as.to(self.device))
        factors: Tensor = own + joined
        return factors

    def _name_factors(self, asked: Sequence[Asked]) -> Tensor:
        """[B, 1 + SINGLE, N]: all that is shown by its posterior, then the best names alone."""
        weights_BRN = torch.zeros(len(asked), 1 + SINGLE, NUM_TERMS)
        for b, one in enumerate(asked):
            for place, (name, prob) in enumerate(one.shown):
                terms = self._terms(name)
                weights_BRN[b, 0, terms] += prob
                if place < SINGLE:
                    weights_BRN[b, 1 + place, terms] = 1.0
        return weights_BRN.to(self.device)

    def _one_hot(self, terms: Sequence[Sequence[int]]) -> Tensor:
        found = torch.zeros(len(terms), NUM_TERMS)
        for row, some in zip(found, terms, strict=True):
            row[list(some)] = 1.0
        return found.to(self.device)

    def _terms(self, text: str) -> list[int]:
        """Whether or not an index has them: each sets its own idf."""
        if text not in self._terms_of_name:
            (terms,) = self._terms_of([text]).values()
            self._terms_of_name[text] = [term for term in terms if term >= 0]
        return self._terms_of_name[text]

    def _pieces(self, text: str) -> list[int]:
        return cut_pieces(self.vocabulary.tokenizer.encode(text).ids, MAX_TOKENS)

    def _excerpts(self, ranked: Sequence[RankedHit], queries_SRN: Tensor) -> Iterator[str]:
        passages = [self.library.passage(hit.row) for hit in ranked]
        texts = [t for one in passages for t in (subject_of(one.title), *sentences_of(one))]
        terms_of = self._terms_of(texts)
        for hit, passage in zip(ranked, passages, strict=True):
            query_N = queries_SRN[hit.source, hit.query]
            terms = query_N.nonzero()[:, 0]
            weights = dict(zip(terms.tolist(), query_N[terms].tolist(), strict=True))
            yield excerpt_of(passage, weights, terms_of.__getitem__, self.config.excerpt_words)

    def _terms_of(self, sentences: Sequence[str]) -> Mapping[str, Sequence[int]]:
        """All at once, which tokenizers do on all cores."""
        unique = list(dict.fromkeys(sentences))
        encoded = self.vocabulary.tokenizer.encode_batch(unique, add_special_tokens=False)
        matched_as = self.vocabulary.matched_as
        return {
            sentence: np.unique(matched_as[np.array(one.ids, dtype=np.int64)]).tolist()
            for sentence, one in zip(unique, encoded, strict=True)
        }


def _same_length(queries_SBRN: Tensor) -> Tensor:
    """As `text_query.same_length` does for one question: each shelf's longest query is as long as
    that of the first shelf that knows any of its terms."""
    longest_SB = queries_SBRN.norm(dim=-1).amax(2)
    first_1B = (longest_SB > 0).float().argmax(0, keepdim=True)
    length_1B = longest_SB.gather(0, first_1B)
    return queries_SBRN * (length_1B / longest_SB.clamp(min=1e-9))[..., None, None]


def _heaviest(weights_BN: Tensor) -> Tensor:
    """All but the MAX_TERMS largest set to 0, as the index's own encoder keeps them."""
    least_B1 = weights_BN.topk(MAX_TERMS).values[:, -1:]
    return weights_BN.masked_fill(weights_BN < least_B1, 0.0)


def _hits(scores: Tensor, rows: Tensor, count: int) -> list[list[list[Hit]]]:
    """By question and region."""
    found = [
        [Hit(row, score) for row, score in zip(*pair, strict=True) if score > 0]
        for pair in zip(rows.tolist(), scores.tolist(), strict=True)
    ]
    per_question = len(found) // count
    return [found[b * per_question : (b + 1) * per_question] for b in range(count)]
