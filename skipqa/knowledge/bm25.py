"""Okapi BM25 over whole words, directly from the formula: the baseline for every other retriever.
It is exact and keeps everything in memory, so it suits small corpora only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skipqa.knowledge.vocabulary import STOP_WORDS
from skipqa.types import Hit, Passage

WORD = re.compile(r"[^\W_]+")


class BM25:
    """score = sum over query words of idf * tf (k1 + 1) / (tf + k1 (1 - b + b length / mean))."""

    def __init__(self, passages: Sequence[Passage], k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(words(f"{p.title} {p.text}")) for p in passages]
        lengths = np.array([sum(count.values()) for count in counts], dtype=np.float64)
        norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1.0)) if len(lengths) else lengths
        postings: dict[str, tuple[list[int], list[int]]] = {}
        for row, count in enumerate(counts):
            for word, frequency in count.items():
                rows, frequencies = postings.setdefault(word, ([], []))
                rows.append(row)
                frequencies.append(frequency)
        self._num_rows = len(counts)
        self._lists: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        for word, (rows, frequencies) in postings.items():
            at, tf = np.array(rows), np.array(frequencies)
            idf = np.log1p((len(counts) - len(rows) + 0.5) / (len(rows) + 0.5))
            self._lists[word] = at, idf * tf * (k1 + 1) / (tf + norm[at])

    def search(self, question: str, k: int) -> list[Hit]:
        scores = np.zeros(self._num_rows)
        for word in set(words(question)):
            if word in self._lists:
                rows, impacts = self._lists[word]
                scores[rows] += impacts
        order = np.lexsort((np.arange(len(scores)), -scores))[:k]
        return [Hit(int(row), float(scores[row])) for row in order if scores[row] > 0]


def words(text: str) -> list[str]:
    return [word for word in WORD.findall(text.lower()) if word not in STOP_WORDS]
