"""WordNet 3.0: one document for each of its 117,659 synsets.

Ids are `wordnet:n07920663`: the letter of the part of speech and the eight-digit offset,
which is also how ImageNet names its classes.
"""

from __future__ import annotations

from collections.abc import Iterator

from skipqa import assets
from skipqa.knowledge.corpus import BadRow, Document
from skipqa.wordnet import PARTS_OF_SPEECH, Synset, read_synsets

FOR_READERS = {"adj": "adjective", "adv": "adverb"}


class WordNet:
    name = "wordnet"

    def fingerprint(self) -> str:
        assert assets.WORDNET.archive_sha256 is not None
        return assets.WORDNET.archive_sha256

    def read(self) -> Iterator[Document | BadRow]:
        folder = assets.fetch(assets.WORDNET)
        for part_of_speech in PARTS_OF_SPEECH:
            yield from map(_document, read_synsets(folder, part_of_speech))


def _document(synset: Synset) -> Document:
    part_of_speech = FOR_READERS.get(synset.part_of_speech, synset.part_of_speech)
    return Document(
        id=f"wordnet:{synset.id}",
        title=", ".join(synset.lemmas),
        text=synset.gloss,
        source="wordnet",
        lead=f"{synset.lemmas[0]} ({part_of_speech}): ",
    )
