"""WordNet 3.0: one document for each of its 117,659 synsets.

An id is `wordnet:n07920663`: the letter of the part of speech and the eight-digit offset. ImageNet
names its classes in the same way. Satellite adjectives count as adjectives.
"""

from __future__ import annotations

from collections.abc import Iterator

from skipqa import assets
from skipqa.knowledge.sources.source import BadRow, Document
from skipqa.wordnet import PARTS_OF_SPEECH, read_synsets

IN_FULL = {"adj": "adjective", "adv": "adverb"}


class WordNet:
    name = "wordnet"

    def fingerprint(self) -> str:
        return assets.WORDNET.key

    def read(self) -> Iterator[Document | BadRow]:
        folder = assets.fetch(assets.WORDNET)
        for part_of_speech in PARTS_OF_SPEECH:
            for synset in read_synsets(folder, part_of_speech):
                kind = IN_FULL.get(part_of_speech, part_of_speech)
                yield Document(
                    id=f"wordnet:{synset.id}",
                    title=", ".join(synset.lemmas),
                    text=synset.gloss,
                    source="wordnet",
                    lead=f"{synset.lemmas[0]} ({kind}): ",
                )
