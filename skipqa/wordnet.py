"""Reads the data files of WordNet 3.0.

Enters: the folder of the WordNet asset. Leaves: synsets with lemmas, gloss and hypernyms, and the
most common sense of a noun. The id of a synset is its part of speech and its offset in the file,
for example `n07920663`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PARTS_OF_SPEECH = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}


@dataclass(frozen=True, slots=True)
class Synset:
    id: str
    part_of_speech: str  # noun, verb, adj, adv
    lemmas: tuple[str, ...]  # most common first, with spaces instead of underscores
    gloss: str
    hypernyms: tuple[str, ...]  # ids, also for instances ("Rome" is an instance of "city")
    file: int = 3  # of the lexicographers: 5 animals, 6 artefacts, 13 food; 3 is the top of all


def read_synsets(folder: Path, part_of_speech: str) -> Iterator[Synset]:
    with (folder / f"data.{part_of_speech}").open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("  "):  # the license, in the first lines
                yield _synset(line, part_of_speech)


class Nouns:
    """Single nouns, found without parsing the others."""

    def __init__(self, folder: Path) -> None:
        with (folder / "data.noun").open(encoding="utf-8") as lines:
            self._line_of_id = {"n" + line[:8]: line for line in lines}
        with (folder / "index.noun").open(encoding="utf-8") as lines:
            self._line_of_name = {line.partition(" ")[0]: line for line in lines}

    def __getitem__(self, id: str) -> Synset:
        return _synset(self._line_of_id[id], "noun")

    def first_sense(self, name: str) -> str | None:
        """The id of its most common sense; None where it is no noun."""
        line = self._line_of_name.get(name.lower().replace(" ", "_"))
        if line is None:
            return None
        fields = line.split()
        return "n" + fields[len(fields) - int(fields[2])]


def _synset(line: str, part_of_speech: str) -> Synset:
    data, _, gloss = line.partition("|")
    fields = data.split()
    num_words = int(fields[3], 16)
    words = fields[4 : 4 + 2 * num_words : 2]
    pointers = fields[5 + 2 * num_words :]
    hypernyms = tuple(
        pointers[i + 2] + pointers[i + 1]
        for i in range(0, len(pointers) - 3, 4)
        if pointers[i] in ("@", "@i")
    )
    # Adjectives may have a syntactic marker, for example "galore(ip)".
    lemmas = tuple(word.partition("(")[0].replace("_", " ") for word in words)
    id = PARTS_OF_SPEECH[part_of_speech] + fields[0]
    return Synset(id, part_of_speech, lemmas, gloss.strip(), hypernyms, int(fields[1]))
