"""Splits documents into passages of at most 100 tokens that overlap by 20.

Enters: documents. Leaves: `Chunk`s, passages with their character offsets. Tokens are those of the
30,522-term vocabulary; words are never split, except one longer than a whole passage. Prose is cut
where its paragraphs end, and within a long one between sentences: a note about the cat and one
about the umbrella are two passages, and neither breaks off before it has said where.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from skipqa.knowledge.excerpt import SENTENCE_END
from skipqa.knowledge.sources import Document
from skipqa.types import Passage

MAX_TOKENS = 100
OVERLAP = 20
SHORT = 12  # tokens; a heading or an item of a list goes with what follows


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
    long = [
        i
        for i, d in enumerate(documents)
        if len(whole_leads[i]) + len(d.text) > max_tokens or (d.prose and "\n" in d.text)
    ]
    texts = tokenizer.encode_batch([documents[i].text for i in long], add_special_tokens=False)
    leads = tokenizer.encode_batch([whole_leads[i] for i in long], add_special_tokens=False)
    encodings = dict(zip(long, zip(texts, leads, strict=True), strict=True))
    for i, document in enumerate(documents):
        cuts = [(0, len(document.text))]
        if i in encodings:
            text, lead = encodings[i]
            # At least half of each passage is reserved for the text, however long the lead is.
            room = max_tokens - min(len(lead.ids), max_tokens // 2)
            of_words = _Words(text.offsets, text.word_ids, room, min(overlap, room - 1))
            if document.prose and text.ids:
                cuts = list(_prose_cuts(document.text, of_words))
            elif len(text.ids) > room:
                cuts = list(of_words.cuts(0, len(text.ids)))
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


@dataclass(frozen=True, slots=True)
class _Words:
    """The tokens of a text, and how many go into a passage and into two neighbours."""

    offsets: Sequence[tuple[int, int]]
    words: Sequence[int | None]
    room: int
    overlap: int

    def cuts(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Character ranges of these tokens, of at most `room`; neighbours share `overlap`."""
        words = self.words
        openings = [i for i in range(begin, end) if i == begin or words[i] != words[i - 1]]
        while begin + self.room < end:
            stop = _last_at_most(openings, begin + self.room)
            if stop <= begin:  # a single word longer than `room` is split
                stop = begin + self.room
            yield self.offsets[begin][0], self.offsets[stop - 1][1]
            back = _last_at_most(openings, stop - self.overlap)
            begin = back if back > begin else stop
        yield self.offsets[begin][0], self.offsets[end - 1][1]


def _prose_cuts(text: str, tokens: _Words) -> Iterator[tuple[int, int]]:
    """Character ranges of whole sentences of one paragraph, or of a short one and what follows. In
    a paragraph that takes several, a short sentence is at the end of one and the start of the next.
    """
    starts = [start for start, _ in tokens.offsets]
    chosen: list[tuple[int, int]] = []  # sentences, as ranges of tokens
    for start, end, opens in _sentences(text):
        sentence = bisect_left(starts, start), bisect_left(starts, end)
        if sentence[0] == sentence[1]:
            continue
        begin = chosen[0][0] if chosen else sentence[0]
        full = sentence[1] - begin > tokens.room
        if chosen and (full or (opens and chosen[-1][1] - begin >= SHORT)):
            yield from tokens.cuts(begin, chosen[-1][1])
            last = chosen[-1]
            short = last[1] - last[0] <= tokens.overlap
            fits = sentence[1] - last[0] <= tokens.room
            chosen = [last] if short and fits and not opens else []
        chosen.append(sentence)
    if chosen:
        yield from tokens.cuts(chosen[0][0], chosen[-1][1])


def _sentences(text: str) -> Iterator[tuple[int, int, bool]]:
    """Where each begins and ends, and whether it opens a paragraph."""
    at = 0
    for line in text.split("\n"):
        begin = at
        for end in [*(match.end() for match in SENTENCE_END.finditer(line)), len(line)]:
            yield begin, at + end, begin == at
            begin = at + end
        at += len(line) + 1


def _last_at_most(ascending: Sequence[int], bound: int) -> int:
    return ascending[bisect_right(ascending, bound) - 1]
