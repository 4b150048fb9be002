"""What retrieval finds for training questions, from the words of their images.

Enters: a library, learned query terms and a concept prior where there are such, questions, and what
a cross-fitted tagger says that their images show. Leaves: the excerpts that each question would
have read, best first; `excerpts.py` makes them from what is found here. It stands in for the stages
from prune to retrieve, whose encoder was fine-tuned on the training photos: what they find there is
better than what they find later, and a reader that learned from it would trust passages too far.

Shapes: S indexes, B questions, R queries per question, N terms of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from skipqa.backbones.networks.sparse_query import SparseQuery
from skipqa.config import RetrieveConfig
from skipqa.costs.environment import available_cores
from skipqa.knowledge import Index, Library
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.trained_query import MAX_TERMS, MAX_TOKENS
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.knowledge.vocabulary import cut_pieces
from skipqa.language import content_words
from skipqa.parallel import InProcess, Workers
from skipqa.training.retrieval.excerpts import (
    Excerpts,
    Searched,
    open_excerpter,
    open_excerpter_alone,
    terms_of_texts,
    vocabulary_of,
)
from skipqa.training.retrieval.stored import Stored
from skipqa.training.run import Counted

AT_ONCE = 256  # questions
PER_JOB = 16  # questions that a process reads for
FEW = 512  # questions that are not worth starting processes for
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
    """Exact search of many questions at once."""

    def __init__(
        self,
        open_library: Callable[[], Library],
        network: SparseQuery | None,
        config: RetrieveConfig,
        device: torch.device,
    ) -> None:
        """`open_library` is called here, and in every process that reads what was found."""
        self.open_library, self.network, self.config = open_library, network, config
        self.device = device
        library = open_library()
        self.shelves = [Shelf.of(index, device) for index in library.indexes.values()]
        self.vocabulary = vocabulary_of(library)
        self._terms_of_name: dict[str, list[int]] = {}

    def __call__(
        self, asked: Sequence[Asked], most: int, counted: Counted = lambda *_: None
    ) -> Iterator[Excerpts]:
        """At most `most` excerpts for each question, in their order."""
        with self._workers(len(asked), most) as workers:
            for found in workers.map(self._searched(asked, counted)):
                yield from found

    def _workers(
        self, questions: int, most: int
    ) -> InProcess[Searched, list[Excerpts]] | Workers[Searched, list[Excerpts]]:
        given = self.open_library, self.config, most
        if questions < FEW:
            return InProcess(partial(open_excerpter, *given))
        return Workers(partial(open_excerpter_alone, *given), available_cores())

    def _searched(self, asked: Sequence[Asked], counted: Counted) -> Iterator[Searched]:
        for start in range(0, len(asked), AT_ONCE):
            counted(start, len(asked))
            yield from self._search(asked[start : start + AT_ONCE]).parts(PER_JOB)

    @torch.inference_mode()
    def _search(self, asked: Sequence[Asked]) -> Searched:
        queries_SBRN = _same_length(torch.stack(self._queries(asked)))
        scores, rows = [], []
        for shelf, query_BRN in zip(self.shelves, queries_SBRN, strict=True):
            best, where = shelf.stored.best(query_BRN.flatten(0, 1), self.config.per_region)
            scores.append(best.unflatten(0, (len(asked), -1)))
            rows.append(where.unflatten(0, (len(asked), -1)))
        return Searched.of(scores, rows, queries_SBRN)

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
            (terms,) = terms_of_texts(self.vocabulary, [text]).values()
            self._terms_of_name[text] = [term for term in terms if term >= 0]
        return self._terms_of_name[text]

    def _pieces(self, text: str) -> list[int]:
        return cut_pieces(self.vocabulary.tokenizer.encode(text).ids, MAX_TOKENS)


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
