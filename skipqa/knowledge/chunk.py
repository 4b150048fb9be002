"""Documents into passages of at most 100 tokens, with 20 tokens of overlap.

Enters: documents. Leaves: `Chunk`, a passage with the place it was cut from. Tokens are
those of the 30,522-term vocabulary; a cut never falls inside a word.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from skipqa.knowledge.corpus import Document
from skipqa.types import Passage

MAX_TOKENS = 100
OVERLAP = 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """`start` and `end` are the character offsets of the cut in the document's text."""

    passage: Passage
    start: int
    end: int


def chunk(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    max_tokens: int = MAX_TOKENS,
    overlap: int = OVERLAP,
) -> Iterator[Chunk]:
    """The first chunk keeps its document's id, so a short document is found by it; the
    following ones are `<id>#1`, `<id>#2` and so on."""
    assert 0 <= overlap < max_tokens
    # A token is at least one character: what is short enough need not be tokenised.
    long = [i for i, d in enumerate(documents) if len(d.lead) + len(d.text) > max_tokens]
    texts = tokenizer.encode_batch([documents[i].text for i in long], add_special_tokens=False)
    leads = tokenizer.encode_batch([documents[i].lead for i in long], add_special_tokens=False)
    encodings = dict(zip(long, zip(texts, leads, strict=True), strict=True))
    for i, document in enumerate(documents):
        cuts = [(0, len(document.text))]
        if i in encodings:
            text, lead = encodings[i]
            # A lead longer than half the room would starve the text: it counts, but not more.
            room = max_tokens - min(len(lead.ids), max_tokens // 2)
            if len(text.ids) > room:
                cuts = list(_cuts(text.offsets, text.word_ids, room, min(overlap, room - 1)))
        for number, (start, end) in enumerate(cuts):
            yield Chunk(
                Passage(
                    id=f"{document.id}#{number}" if number else document.id,
                    title=document.title,
                    text=document.lead + document.text[start:end].strip(),
                    source=document.source,
                ),
                start,
                end,
            )


def _cuts(
    offsets: Sequence[tuple[int, int]], words: Sequence[int | None], room: int, overlap: int
) -> Iterator[tuple[int, int]]:
    """Character ranges of at most `room` tokens, each `overlap` tokens into the one before."""
    openings = [i for i in range(len(words)) if i == 0 or words[i] != words[i - 1]]
    begin = 0
    while begin + room < len(words):
        stop = _last_at_most(openings, begin + room)
        if stop <= begin:  # one word fills the room: it is cut where the room ends
            stop = begin + room
        yield offsets[begin][0], offsets[stop - 1][1]
        back = _last_at_most(openings, stop - overlap)
        begin = back if back > begin else stop
    yield offsets[begin][0], offsets[-1][1]


def _last_at_most(ascending: Sequence[int], bound: int) -> int:
    return ascending[bisect_right(ascending, bound) - 1]
