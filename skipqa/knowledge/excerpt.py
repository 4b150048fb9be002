"""The sentences of a passage that a query is about.

Enters: a passage, the query that found it, the encoder of its index. Leaves: the sentences that
share most weight with the query, in their order, up to a number of words. Reading costs as much as
is read: most of a long passage is about something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from skipqa.knowledge.sparse_encoder import SparseEncoder
from skipqa.types import Passage, SparseVector

SENTENCE_END = re.compile(r"(?<=[.!?;])\s+(?=[^\s])")


def excerpt(passage: Passage, query: SparseVector, encoder: SparseEncoder, max_words: int) -> str:
    """The whole text where it is no longer than `max_words`, or has one sentence. Its subject comes
    first where the chosen sentences do not name it."""
    text = passage.text
    sentences = SENTENCE_END.split(text)
    if len(text.split()) <= max_words or len(sentences) == 1:
        return text
    weights = dict(zip(query.terms.tolist(), query.weights.tolist(), strict=True))
    scores = [_matched(sentence, weights, encoder) for sentence in sentences]
    lengths = [len(sentence.split()) for sentence in sentences]
    chosen: list[int] = []
    # On equal scores the earlier sentence, which is more often about the passage's subject
    for place in sorted(range(len(sentences)), key=lambda place: (-scores[place], place)):
        fits = sum(lengths[i] for i in chosen) + lengths[place] <= max_words
        if not chosen or (scores[place] > 0 and fits):
            chosen.append(place)
    said = " ".join(sentences[place] for place in sorted(chosen))
    subject = subject_of(passage.title)
    return said if subject.lower() in said.lower() else f"{subject}: {said}"


def subject_of(title: str) -> str:
    """Of "Luxembourg: Government > Flag" Luxembourg, of "bag, traveling bag" the first name."""
    return title.partition(":")[0].partition(",")[0].strip()


def _matched(sentence: str, weights: Mapping[int, float], encoder: SparseEncoder) -> float:
    return sum(weights.get(term, 0.0) for term in encoder.encode_terms(sentence).terms.tolist())
