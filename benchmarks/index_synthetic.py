"""Clustered, SPLADE-like vectors in any number, generated block by block from a seed.

A topic has 400 terms with decreasing probability. A passage has 120 terms, a mixture of two topics
and terms drawn from a Zipf distribution; few of them have large weights. A query combines 20
frequent terms of a topic with 12 terms of one passage, reweighted, so that its best passages have
similar scores and no single term finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from skipqa.knowledge.sources import BadRow, Document
from skipqa.knowledge.vectors import NUM_TERMS, SparseRows, sum_duplicates
from skipqa.types import Passage, SparseVector

TERMS_PER_PASSAGE = 120
TOPICS = 4_096
TERMS_PER_TOPIC = 400
BLOCK = 4_096
CEILING = 3.5  # the largest weights that SPLADE++ gives


class Synthetic:
    """Row i does not depend on the number of rows generated."""

    def __init__(self, seed: int = 2026) -> None:
        self.seed = seed
        rng = np.random.default_rng(seed)
        popularity = 1.0 / np.arange(1, NUM_TERMS + 1)
        self._zipf = np.cumsum(popularity / popularity.sum())
        self._shuffle = rng.permutation(NUM_TERMS)
        # Topics do not use the 100 most frequent terms.
        self.topic_terms = self._shuffle[
            rng.integers(100, NUM_TERMS, size=(TOPICS, TERMS_PER_TOPIC))
        ]
        # Some topics are more common than others.
        common = 1.0 / np.sqrt(np.arange(1, TOPICS + 1))
        self._topics = np.cumsum(common / common.sum())

    def block(self, number: int) -> SparseRows:
        """Rows [number * BLOCK, (number + 1) * BLOCK)."""
        rng = np.random.default_rng([self.seed, 1, number])
        drawn = 2 * TERMS_PER_PASSAGE
        topics = self._topics_of(number)
        # The first terms of a topic are the most frequent: rank = 400 u^2.
        rank = (TERMS_PER_TOPIC * rng.random((BLOCK, drawn)) ** 2).astype(np.int64)
        which = (rng.random((BLOCK, drawn)) < 0.3).astype(np.int64)
        topical = self.topic_terms[np.take_along_axis(topics, which, 1), rank]
        background = self._shuffle[np.searchsorted(self._zipf, rng.random((BLOCK, drawn)))]
        from_topic = rng.random((BLOCK, drawn)) < 0.7
        terms = np.where(from_topic, topical, background)
        heavy = np.where(from_topic, 1.1 * np.exp(-rank / 150), 0.25)
        weights = np.clip(heavy * rng.lognormal(0.0, 0.6, (BLOCK, drawn)), 0.02, CEILING)
        return _first_unique(terms, weights.astype(np.float32))

    def _topics_of(self, number: int) -> NDArray[np.int64]:
        """[BLOCK, 2] the two topics of each row; the first makes 70 % of its topical terms."""
        rng = np.random.default_rng([self.seed, 3, number])
        return np.searchsorted(self._topics, rng.random((BLOCK, 2)))

    def rows(self, count: int) -> SparseRows:
        blocks = [self.block(number) for number in range(-(-count // BLOCK))]
        offsets = [0]
        for block in blocks:
            offsets.extend((block.offsets[1:] + offsets[-1]).tolist())
        stop = offsets[count]
        return SparseRows(
            np.array(offsets[: count + 1], np.int64),
            np.concatenate([block.terms for block in blocks])[:stop],
            np.concatenate([block.weights for block in blocks])[:stop],
        )

    def queries(self, count: int, among: int, draw: int = 1) -> list[SparseVector]:
        """Each is made from one of the first `among` rows, taken from sixteen blocks.

        The default effort of search was chosen on another draw."""
        rng = np.random.default_rng([self.seed, 2, draw])
        blocks = {int(n): self.block(int(n)) for n in rng.integers(0, among // BLOCK + 1, 16)}
        made: list[SparseVector] = []
        while len(made) < count:
            number, local = int(rng.choice(list(blocks))), int(rng.integers(BLOCK))
            if number * BLOCK + local >= among:
                continue
            passage = blocks[number][local]
            own = rng.choice(len(passage), 12, replace=False, p=_probs(passage.weights))
            rank = rng.choice(60, 20, replace=False)
            topical = self.topic_terms[self._topics_of(number)[local, 0], rank]
            terms = np.concatenate([passage.terms[own], topical])
            weights = np.concatenate([passage.weights[own], 1.1 * np.exp(-rank / 150)])
            weights = weights * rng.lognormal(0.0, 0.5, len(terms))
            made.append(sum_duplicates(terms, weights.astype(np.float32)))
        return made


def _probs(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    exact = weights.astype(np.float64)
    return exact / exact.sum()


def _first_unique(terms: NDArray[np.int64], weights: NDArray[np.float32]) -> SparseRows:
    """The first TERMS_PER_PASSAGE distinct terms of each row, in ascending order."""
    num_rows, drawn = terms.shape
    row = np.repeat(np.arange(num_rows), drawn)
    key = row * NUM_TERMS + terms.ravel()
    unique, first = np.unique(key, return_index=True)
    # rank of each distinct term within its row, in the order drawn
    by_draw = np.sort(first)
    owner = by_draw // drawn
    begin = np.searchsorted(owner, np.arange(num_rows))
    chosen = by_draw[np.arange(len(by_draw)) - begin[owner] < TERMS_PER_PASSAGE]
    kept = np.isin(first, chosen, assume_unique=True)
    counts = np.bincount(unique[kept] // NUM_TERMS, minlength=num_rows)
    return SparseRows(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        (unique[kept] % NUM_TERMS).astype(np.uint16),
        weights.ravel()[first[kept]],
    )


class SyntheticSource:
    name = "synthetic"

    def __init__(self, count: int) -> None:
        self.count = count

    def fingerprint(self) -> str:
        return f"synthetic {self.count}"

    def read(self) -> Iterator[Document | BadRow]:
        for row in range(self.count):
            yield Document(str(row), "", "", self.name)


class SyntheticEncoder:
    """Returns the generated rows in order; the id of a passage is its row."""

    ceiling = CEILING

    def __init__(self, data: Synthetic) -> None:
        self.data = data
        self.tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))

    def config(self) -> dict[str, Any]:
        return {"kind": "synthetic", "seed": self.data.seed}

    def save(self, folder: Path) -> None:
        pass

    def encode_passages(self, passages: Sequence[Passage]) -> SparseRows:
        first = int(passages[0].id)
        assert first % BLOCK == 0, "batches and blocks have the same size"
        block = self.data.block(first // BLOCK)
        stop = block.offsets[len(passages)]
        return SparseRows(
            block.offsets[: len(passages) + 1], block.terms[:stop], block.weights[:stop]
        )
