"""A tiny world for Pocket-KB: drawn pictures, a dozen definitions, three countries."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from skipqa.data.pocket_kb.build import Knowledge
from skipqa.data.pocket_kb.entities import slug
from skipqa.data.pocket_kb.facts import table
from skipqa.knowledge.sources import Document
from skipqa.wordnet import Synset

SEED = 7
PICTURES = {"train": 40, "val": 12}  # of several things
COLOURS = ("red", "green", "blue", "orange", "purple", "teal", "brown", "black")


def uncut(documents: Sequence[Document]) -> Iterable[tuple[str, str]]:
    """These are short: each is one passage."""
    return ((document.id, document.lead + document.text) for document in documents)


def drawn(number: int) -> bytes:
    """A disk on a ground, another for each number."""
    picture = Image.new("RGB", (48, 36), COLOURS[number % len(COLOURS)])
    centre = 5 + number % 30
    ImageDraw.Draw(picture).ellipse((centre, 5, centre + 10, 25), fill="white")
    buffer = BytesIO()
    picture.save(buffer, "WEBP")
    return buffer.getvalue()


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_zip(path: Path, names: Iterable[str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(name, drawn(number))


LABELS = [
    *(("dogs", label) for label in ("vizsla", "kuvasz", "boxer", "affenpinscher", "afghan hound")),
    *(("pets", label) for label in ("Birman", "Sphynx", "Siamese")),
    *(
        ("flowers", label)
        for label in ("poinsettia", "sunflower", "hibiscus", "petunia", "lotus lotus")
    ),
    *(("groceries", label) for label in ("Kiwi", "Banana", "Mango", "Ginger", "Leek")),
    ("imagenet", "n01534433_junco"),
    ("imagenet", "n04372370_switch"),
]


def make_data(folder: Path) -> Path:
    photos = [
        {
            "image": f"{domain}/{label[:4]}{number}.webp",
            "domain": domain,
            "label": label,
            "split": "val" if number % 3 == 2 else "train",
        }
        for domain, label in LABELS
        for number in range(9)
    ]
    write_lines(folder / "entities" / "photos.jsonl", photos)
    write_zip(folder / "entities" / "photos.zip", [photo["image"] for photo in photos])
    facts = {
        "temperament": "Calm, Bold",
        "min_height": "53.3",
        "max_height": "61",
        "min_weight": "20",
        "max_weight": "27.2",
        "min_expectancy": "12.0",
        "max_expectancy": "14.0",
        "group": "Sporting Group",
        "grooming_frequency_category": "Weekly Brushing",
        "shedding_category": "",
    }
    breeds = [{"breed": breed} | facts for breed in ("Vizsla", "Kuvasz", "Mudi")]
    write_lines(folder / "entities" / "dog-breed-facts.jsonl", breeds)
    text = "A fruit that is rich in vitamin C."
    write_lines(
        folder / "entities" / "grocery-descriptions.jsonl",
        [{"product": "Kiwi", "description": text}],
    )
    scenes = [f"{number:012d}.webp" for number in range(80)]
    labels = [
        {"image": name, "labels": ["dog"] if number % 4 else ["car", "person"]}
        for number, name in enumerate(scenes)
    ]
    write_lines(folder / "coco" / "labels.jsonl", labels)
    write_zip(folder / "coco" / "photos.zip", scenes)
    return folder


def field(code: str, country: str, name: str, text: str) -> Document:
    section, _, title = name.partition(":")
    lead = f"{country}, {title}: "
    return Document(f"factbook:{code}:{name}", f"{country}: {section}", text, "factbook", lead)


def country(code: str, name: str, internet: str, capital: str) -> list[Document]:
    return [
        field(code, name, "government:capital", f"name: {capital}; geographic coordinates: 1 N"),
        field(code, name, "government:independence", "5 July 1811 (from Spain)"),
        field(code, name, "communications:internet-country-code", f".{internet}"),
        field(code, name, "economy:exchange-rates", "Currency: forints (HUF) per US dollar -"),
    ]


def synset(id: str, lemma: str, gloss: str, *hypernyms: str) -> Synset:
    return Synset(id, "noun", (lemma,), gloss, hypernyms)


SYNSETS = [
    synset("n02083346", "canine", "a mammal"),
    synset("n01503061", "bird", "an animal with feathers"),
    synset("n01529672", "finch", "a songbird", "n01503061"),
    synset("n01534433", "junco", "small North American finch seen chiefly in winter", "n01529672"),
    synset("n04372370", "switch", "a thing without facts"),
    synset("n02100583", "vizsla", "hunting dog of Hungary", "n02083346"),
    synset("n08850450", "Budapest", "the capital of Hungary"),
]


def make_knowledge(flags: Path) -> Knowledge:
    flags.mkdir()
    for iso, colour in (("hu", "green"), ("mx", "red"), ("cn", "red"), ("de", "black")):
        Image.new("RGB", (30, 20), colour).save(flags / f"{iso}.png")
    glosses = [
        Document(f"wordnet:{s.id}", s.lemmas[0], s.gloss, "wordnet", f"{s.lemmas[0]} (noun): ")
        for s in SYNSETS
    ]
    factbook = [
        *country("hu", "Hungary", "hu", "Budapest"),
        *country("mx", "Mexico", "mx", "Mexico City"),
        *country("ch", "China", "cn", "Beijing"),
        *country("gm", "Germany", "de", "Berlin"),
    ]
    return Knowledge(SYNSETS, glosses, factbook, flags, uncut)


@dataclass(frozen=True, slots=True)
class World:
    data: Path
    knowledge: Knowledge
    built: Path

    def rows(self, split: str | None = None) -> list[dict[str, Any]]:
        names = ("train", "val") if split is None else (split,)
        lines = (self.built / f"{name}.jsonl" for name in names)
        return [json.loads(line) for path in lines for line in path.read_text().splitlines()]

    def crowded(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if "crowded" in row["subset"]]

    def read(self, name: str) -> Any:
        text = (self.built / name).read_text()
        return (
            [json.loads(line) for line in text.splitlines()]
            if "jsonl" in name
            else json.loads(text)
        )

    def photos(self) -> list[dict[str, str]]:
        """The labelled photos of the data folder."""
        lines = (self.data / "entities" / "photos.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def labels_of(self, entities: Collection[str]) -> set[str]:
        """Domain and label of these entities' photos, by the package's table."""
        return {
            label
            for row in table("entities.tsv")
            if f"{row['category']}:{slug(row['names'].split('|')[0])}" in entities
            for label in row["labels"].split(";")
        }
