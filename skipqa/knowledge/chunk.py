"""Splits documents into passages of at most 100 tokens that overlap by 20.

Enters: documents. Leaves: `Chunk`s, passages with their character offsets. Tokens are those of the
30,522-term vocabulary; words are never split, except one longer than a whole passage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from skipqa.knowledge.sources import Document
from skipqa.types import Passage

MAX_TOKENS = 100
OVERLAP = 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """`start` and `end` are character offsets into the text of the document."""

    passage: Passage
    start: int
    end: int


def chunk(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    max_tokens: int = MAX_TOKENS,
    overlap: int = OVERLAP,
) -> Iterator[Chunk]:
    """The first chunk has the id of its document, the following ones are `<id>#1`, `<id>#2`, ..."""
    assert 0 <= overlap < max_tokens
    whole_leads = [lead_of(document, "") for document in documents]
    # A token has at least one character, so short texts need not be tokenized.
    long = [i for i, d in enumerate(documents) if len(whole_leads[i]) + len(d.text) > max_tokens]
    texts = tokenizer.encode_batch([documents[i].text for i in long], add_special_tokens=False)
    leads = tokenizer.encode_batch([whole_leads[i] for i in long], add_special_tokens=False)
    encodings = dict(zip(long, zip(texts, leads, strict=True), strict=True))
    for i, document in enumerate(documents):
        cuts = [(0, len(document.text))]
        if i in encodings:
            text, lead = encodings[i]
            # At least half of each passage is reserved for the text, however long the lead is.
            room = max_tokens - min(len(lead.ids), max_tokens // 2)
            if len(text.ids) > room:
                cuts = list(_cuts(text.offsets, text.word_ids, room, min(overlap, room - 1)))
        for number, (start, end) in enumerate(cuts):
            said = document.text[start:end].strip()
            yield Chunk(
                Passage(
                    id=f"{document.id}#{number}" if number else document.id,
                    title=document.title,
                    text=lead_of(document, said) + said,
                    source=document.source,
                ),
                start,
                end,
            )


def lead_of(document: Document, text: str) -> str:
    """What is put before a chunk of the document."""
    if document.lead or not document.subject or names(text, document.subject):
        return document.lead
    return f"{document.subject}: "


def names(text: str, subject: str) -> bool:
    """Whether the subject stands in the text as whole words, in the singular or with an -s. What
    tells subjects of one name apart is not expected in a text: "Mercury (planet)"."""
    text, name = text.lower(), subject.lower().partition(" (")[0].strip()
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        end += text[end : end + 1] == "s"
        if not any(map(str.isalnum, text[at - 1 : at] + text[end : end + 1])):
            return True
        at = text.find(name, at + 1)
    return False


def _cuts(
    offsets: Sequence[tuple[int, int]], words: Sequence[int | None], room: int, overlap: int
) -> Iterator[tuple[int, int]]:
    """Character ranges of at most `room` tokens; neighbours overlap by `overlap` tokens."""
    openings = [i for i in range(len(words)) if i == 0 or words[i] != words[i - 1]]
    begin = 0
    while begin + room < len(words):
        stop = _last_at_most(openings, begin + room)
        if stop <= begin:  # a single word longer than `room` is split
            stop = begin + room
        yield offsets[begin][0], offsets[stop - 1][1]
        back = _last_at_most(openings, stop - overlap)
        begin = back if back > begin else stop
    yield offsets[begin][0], offsets[-1][1]


def _last_at_most(ascending: Sequence[int], bound: int) -> int:
    return ascending[bisect_right(ascending, bound) - 1]
