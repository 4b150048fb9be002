"""The sentences of a passage that a query is about.

Enters: a passage, the query that found it, the encoder of its index. Leaves: the sentences that
share most weight with the query, in their order, up to a number of words. Reading costs as much as
is read: most of a long passage is about something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from skipqa.knowledge.sparse_encoder import SparseEncoder
from skipqa.types import Passage, SparseVector

SENTENCE_END = re.compile(r"(?<=[.!?;])\s+(?=[^\s])")


def excerpt(passage: Passage, query: SparseVector, encoder: SparseEncoder, max_words: int) -> str:
    weights = dict(zip(query.terms.tolist(), query.weights.tolist(), strict=True))
    return excerpt_of(
        passage, weights, lambda sentence: encoder.encode_terms(sentence).terms.tolist(), max_words
    )


def excerpt_of(
    passage: Passage,
    weights: Mapping[int, float],
    terms_of: Callable[[str], Sequence[int]],
    max_words: int,
) -> str:
    """`weights` are of the query's terms, `terms_of` gives those of a sentence, each once.

    The whole text where it is no longer than `max_words`, or has one sentence. Its subject comes
    first where the chosen sentences do not name it."""
    text, sentences = passage.text, sentences_of(passage)
    if len(text.split()) <= max_words or len(sentences) == 1:
        return text
    # All of it is about its subject: a sentence that says "it" is as good as one that says the name
    subject = subject_of(passage.title)
    subject_terms = set(terms_of(subject))
    asked = {t: weight for t, weight in weights.items() if t not in subject_terms}
    scores = [sum(asked.get(t, 0.0) for t in terms_of(sentence)) for sentence in sentences]
    lengths = [len(sentence.split()) for sentence in sentences]
    chosen: list[int] = []
    # On equal scores the earlier sentence, which is more often about the passage's subject
    for place in sorted(range(len(sentences)), key=lambda place: (-scores[place], place)):
        fits = sum(lengths[i] for i in chosen) + lengths[place] <= max_words
        if not chosen or (scores[place] > 0 and fits):
            chosen.append(place)
    said = " ".join(sentences[place] for place in sorted(chosen))
    return said if subject.lower() in said.lower() else f"{subject}: {said}"


def sentences_of(passage: Passage) -> list[str]:
    return SENTENCE_END.split(passage.text)


def subject_of(title: str) -> str:
    """Of "Luxembourg: Government > Flag" Luxembourg, of "bag, traveling bag" the first name."""
    return title.partition(":")[0].partition(",")[0].strip()
