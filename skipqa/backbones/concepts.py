"""The table of visual concepts: what a vision encoder can name.

Enters: the WordNet asset and a text encoder. Leaves: for each of the thousand ImageNet classes
its names, its definition, the kinds it belongs to ("espresso" is a coffee, a beverage, a drink)
and an embedding, so that visual evidence can be compared with words. The table is made once and
then read from the cache. A tagger adds its own names after the classes: breeds, flowers, products,
flags, and common things, of which WordNet tells the kinds.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from skipqa import assets
from skipqa.assets import Report
from skipqa.backbones.weights.convert import converted, imagenet_synsets
from skipqa.backbones.weights.loading import damaged
from skipqa.language import base_forms
from skipqa.nn.tagger import Tagger, bare_name
from skipqa.wordnet import Nouns, Synset, read_synsets

# Where the most common sense is not what a photo shows, or WordNet writes the name differently
SENSES = {
    "banana": "n07753592",
    "book": "n02870092",
    "broccoli": "n07714990",
    "cake": "n07628870",
    "carrot": "n07730207",
    "cell phone": "n02992529",
    "hot dog": "n07697537",
    "keyboard": "n03085013",  # of a computer
    "kite": "n03621473",
    "microwave": "n03761084",
    "mouse": "n03793489",  # of a computer
    "potted plant": "n11536230",
    "sports ball": "n02778669",
    "stop sign": "n06794110",
    "toaster": "n04442312",
    "toilet": "n04446521",
    "tv": "n04405907",
    "wine glass": "n04592099",
}
MOST_NAMES = 3  # of a common thing: "person" is "mortal" too
_NOT_WORDS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Concept:
    synset: str
    names: tuple[str, ...]
    gloss: str
    kinds: tuple[tuple[str, ...], ...]  # lemmas of each hypernym, the nearest first

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class Concepts:
    """The lookups are made when they are first used: most tables need one of them, or none."""

    entries: tuple[Concept, ...]
    embeddings: Tensor  # [C, d_text], unit length: the concept's names
    from_photos: int = 0  # how many, the last ones, only labelled photos tell of

    @cached_property
    def called(self) -> Mapping[str, Sequence[int]]:
        """Concept numbers by exact name and by kind."""
        numbers: dict[str, list[int]] = {}
        for number, concept in enumerate(self.entries):
            for name in {*concept.names, *(name for kind in concept.kinds for name in kind)}:
                numbers.setdefault(name, []).append(number)
        return numbers

    @cached_property
    def by_plain_name(self) -> Mapping[str, Sequence[int]]:
        """Concept numbers by `plain_name` of each name."""
        numbers: dict[str, list[int]] = {}
        for number, concept in enumerate(self.entries):
            for name in concept.names:
                numbers.setdefault(plain_name(name), []).append(number)
        return numbers

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Concept:
        return self.entries[index]


def plain_name(text: str) -> str:
    """A name as it is matched against titles: lower case, words and numbers only, and a flag by
    its country."""
    return bare_name(_NOT_WORDS.sub(" ", text.lower()).strip())


def with_tags(concepts: Concepts, tagger: Tagger, common: Mapping[str, Concept]) -> Concepts:
    """The table and after it all of the tagger's names, in its order. Names without a kind are of
    common things; `common` has those that WordNet knows."""
    config = tagger.config
    entries = tuple(
        Concept("", tuple(dict.fromkeys((config.word(i), name))), "", _kinds(kind))
        if kind
        else common.get(name, Concept("", (name,), "", ()))
        for i, (name, kind) in enumerate(zip(config.names, config.kinds, strict=True))
    )
    embeddings = torch.cat((concepts.embeddings, tagger.meanings))
    return Concepts(concepts.entries + entries, embeddings, len(config.names) - tagger.num_known)


def common_things(names: Iterable[str], report: Report = lambda _: None) -> dict[str, Concept]:
    """What WordNet knows of these names, by the most common sense of each; "skis" is looked up as
    "ski". A synonym is a name only if it mostly means the same: "plane" does, "wheel" is seldom a
    bicycle."""
    nouns, found = Nouns(assets.fetch(assets.WORDNET, report)), {}
    for name in names:
        senses = map(nouns.first_sense, (name, *sorted(base_forms(name))))
        if id := SENSES.get(name) or next(filter(None, senses), None):
            concept = _concept(nouns[id], nouns)
            also = [lemma for lemma in concept.names if nouns.first_sense(lemma) == id]
            called = tuple(dict.fromkeys((name, *also)))[:MOST_NAMES]
            found[name] = dataclasses.replace(concept, names=called)
    return found


def _kinds(kind: str) -> tuple[tuple[str, ...], ...]:
    animal = (("animal",),) if kind in ("dog", "cat") else ()
    also = {"flower": ("plant",), "food": ("product", "grocery"), "flag": ("country",)}
    return ((kind, *also.get(kind, ())), *animal)


def load(embed: Callable[[list[str]], Tensor], report: Report = lambda _: None) -> Concepts:
    """The cached table of ImageNet classes; `embed` is called only when it is first made."""

    def write(folder: Path, target: Path) -> None:
        entries = _read(folder)
        rows = [[c.synset, c.names, c.gloss, c.kinds] for c in entries]
        (target / "concepts.json").write_text(json.dumps(rows))
        names = [", ".join(c.names) for c in entries]
        save_file({"embeddings": embed(names)}, target / "embeddings.safetensors")

    target = converted(assets.WORDNET, report, write)
    try:
        rows = json.loads((target / "concepts.json").read_text())
        embeddings = load_file(target / "embeddings.safetensors")["embeddings"]
    except (OSError, ValueError, SafetensorError) as error:
        raise damaged(target, error) from None
    return Concepts(
        tuple(
            Concept(synset, tuple(names), gloss, tuple(map(tuple, kinds)))
            for synset, names, gloss, kinds in rows
        ),
        embeddings,
    )


def _read(folder: Path) -> list[Concept]:
    synsets = {synset.id: synset for synset in read_synsets(folder, "noun")}
    return [_concept(synsets[id], synsets) for id in imagenet_synsets()]


def _concept(synset: Synset, synsets: Mapping[str, Synset] | Nouns) -> Concept:
    """Its kinds are all hypernyms once each, breadth first, so that nearer ones come first."""
    above: dict[str, Synset] = {}
    level = [synset]
    while level:
        next_level = [synsets[id] for below in level for id in below.hypernyms]
        level = [one for one in next_level if one.id not in above]
        above |= {one.id: one for one in level}
    kinds = tuple(one.lemmas for one in above.values())
    return Concept(synset.id, synset.lemmas, synset.gloss, kinds)
