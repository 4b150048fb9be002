"""The table of visual concepts: what a vision encoder can name.

Enters: the WordNet asset and a text encoder. Leaves: for each of the thousand ImageNet classes
its names, its definition, the kinds it belongs to ("espresso" is a coffee, a beverage, a drink)
and an embedding, so that visual evidence can be compared with words. The table is made once and
then read from the cache. A tagger adds its own names after the classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
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
from skipqa.nn.tagger import Tagger, bare_name
from skipqa.wordnet import Synset, read_synsets

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


def with_tags(concepts: Concepts, tagger: Tagger) -> Concepts:
    """The table and after it the tagger's fine-grained names: breeds, flowers, products, flags. A
    common object ("person") describes an image but is nothing to retrieve passages about."""
    config = tagger.config
    chosen = [i for i, kind in enumerate(config.kinds) if kind]
    entries = tuple(
        Concept("", tuple(dict.fromkeys((config.word(i), config.names[i]))), "", _kinds(kind))
        for i in chosen
        for kind in [config.kinds[i]]
    )
    embeddings = torch.cat((concepts.embeddings, tagger.meanings[chosen]))
    return Concepts(concepts.entries + entries, embeddings)


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

    def ancestors(synset: Synset) -> list[Synset]:
        """All hypernyms once each, breadth first, so that nearer kinds come first."""
        found: dict[str, Synset] = {}
        level = [synset]
        while level:
            above = [synsets[id] for below in level for id in below.hypernyms]
            level = [one for one in above if one.id not in found]
            found |= {one.id: one for one in level}
        return list(found.values())

    def concept(synset: Synset) -> Concept:
        kinds = tuple(ancestor.lemmas for ancestor in ancestors(synset))
        return Concept(synset.id, synset.lemmas, synset.gloss, kinds)

    return [concept(synsets[id]) for id in imagenet_synsets()]
