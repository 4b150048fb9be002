"""The passages that questions are asked of: the default corpus and this benchmark's own.

Enters: sources of documents. Leaves: passages exactly as an index of them holds them (cut, with
the same ids), which of them name an entity, and which of them state an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from skipqa.data.pocket_kb.text import plain, says
from skipqa.knowledge.sources import Document


class Cut(Protocol):
    """Documents into the (id, text) of their passages."""

    def __call__(self, documents: Sequence[Document]) -> Iterable[tuple[str, str]]: ...


def index_cut(documents: Sequence[Document]) -> Iterable[tuple[str, str]]:
    """As `skipqa index build` cuts them."""
    from skipqa.knowledge.chunk import chunk
    from skipqa.knowledge.vocabulary import Vocabulary

    tokenizer = Vocabulary.default().tokenizer
    return ((one.passage.id, one.passage.text) for one in chunk(documents, tokenizer))


@dataclass(slots=True)
class Corpus:
    cut: Cut = index_cut
    texts: dict[str, str] = field(default_factory=dict)  # passage id -> text
    passages_of: dict[str, list[str]] = field(default_factory=dict)  # document id -> passage ids
    titles: dict[str, str] = field(default_factory=dict)  # document id -> title

    def add(self, documents: Sequence[Document]) -> None:
        for id, text in self.cut(documents):
            self.texts[id] = text
            self.passages_of.setdefault(id.partition("#")[0], []).append(id)
        self.titles |= {document.id: document.title for document in documents}

    def title(self, id: str) -> str:
        """Of the document that a passage was cut from."""
        return self.titles[id.partition("#")[0]]

    def stating(self, documents: Iterable[str], answers: Sequence[str]) -> tuple[str, ...]:
        """The passages of those documents that hold one of the answers."""
        return tuple(
            id
            for document in documents
            for id in self.passages_of.get(document, ())
            if says(self.texts[id], answers)
        )

    def count_naming(self, names: Mapping[str, Iterable[str]], but: str) -> dict[str, int]:
        """For each key, how many passages hold one of its names as whole words; those whose id
        begins with `but` do not count."""
        keys_of: dict[tuple[str, ...], list[str]] = {}  # a name's words -> who has it
        for key, forms in names.items():
            for form in forms:
                keys_of.setdefault(tuple(plain(form).split()), []).append(key)
        keys_of.pop((), None)
        lengths: dict[str, set[int]] = {}
        for name in keys_of:
            lengths.setdefault(name[0], set()).add(len(name))
        counts = dict.fromkeys(names, 0)
        for id, text in self.texts.items():
            if id.startswith(but):
                continue
            words = plain(text).split()
            named = {
                key
                for place, word in enumerate(words)
                for length in lengths.get(word, ())
                for key in keys_of.get(tuple(words[place : place + length]), ())
            }
            for key in named:
                counts[key] += 1
        return counts
