"""WordNet 3.0: one document for each of its 117,659 synsets.

Ids are `wordnet:n07920663`: the letter of the part of speech and the eight-digit offset,
which is also how ImageNet names its classes.
"""

from __future__ import annotations

from collections.abc import Iterator

from skipqa import assets
from skipqa.knowledge.corpus import BadRow, Document

# file suffix -> (letter in ids, word for a reader); satellite adjectives ("s") count as "a"
PARTS_OF_SPEECH = {
    "noun": ("n", "noun"),
    "verb": ("v", "verb"),
    "adj": ("a", "adjective"),
    "adv": ("r", "adverb"),
}
ADJECTIVE_MARKERS = ("(a)", "(p)", "(ip)")


class WordNet:
    name = "wordnet"

    def fingerprint(self) -> str:
        return assets.WORDNET.key

    def read(self) -> Iterator[Document | BadRow]:
        folder = assets.fetch(assets.WORDNET)
        for suffix, (letter, word) in PARTS_OF_SPEECH.items():
            with (folder / f"data.{suffix}").open(encoding="utf-8") as file:
                for line in file:
                    if not line.startswith("  "):  # the licence, indented, opens each file
                        yield _synset(line, letter, word)


def _synset(line: str, letter: str, part_of_speech: str) -> Document:
    """A line holds `offset lex_file type word_count {lemma lex_id} ... | gloss`."""
    head, _, gloss = line.partition(" | ")
    fields = head.split(" ")
    num_lemmas = int(fields[3], base=16)
    lemmas = [_readable(lemma) for lemma in fields[4 : 4 + 2 * num_lemmas : 2]]
    return Document(
        id=f"wordnet:{letter}{fields[0]}",
        title=", ".join(lemmas),
        text=gloss.strip(),
        source="wordnet",
        lead=f"{lemmas[0]} ({part_of_speech}): ",
    )


def _readable(lemma: str) -> str:
    for marker in ADJECTIVE_MARKERS:
        lemma = lemma.removesuffix(marker)
    return lemma.replace("_", " ")
