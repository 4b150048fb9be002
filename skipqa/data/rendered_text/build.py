"""The rendered-text set: COCO photos with text composed into them, and three kinds of questions.

Enters: a data folder (`coco/`), WordNet and the World Factbook, typefaces, a seed. Leaves one
folder, put in place by one rename: train.jsonl, val.jsonl, photos.zip, manifest.json. "written"
asks what a thing says, "knowledge" what a passage of the default corpora says about it, "plain"
needs no text at all. Photos of `val` are ones that nothing is trained on, and its texts are not in
`train`. The same seed gives the same bytes.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from skipqa import assets
from skipqa.data.held_out import is_fresh, is_held_out
from skipqa.data.pocket_kb.build import EPOCH, read_labels
from skipqa.data.pocket_kb.corpus import Corpus, Cut, index_cut
from skipqa.data.pocket_kb.countries import Country, read_countries
from skipqa.data.pocket_kb.pictures import Archive
from skipqa.data.pocket_kb.text import accepted, says
from skipqa.data.rendered_text import fonts
from skipqa.data.rendered_text.carriers import CARRIERS
from skipqa.data.rendered_text.fonts import Face
from skipqa.data.rendered_text.scene import Pasted, background, finished, paste, placement
from skipqa.data.rendered_text.wording import (
    KNOWN,
    Place,
    Text,
    cased,
    draw_text,
    places,
    split_of,
)
from skipqa.data.scenes import to_webp
from skipqa.errors import UserError
from skipqa.files import write_json, write_jsonl
from skipqa.image import open_image
from skipqa.knowledge.sources import BadRow, Document

Progress = Callable[[str, int, int | None], None]
PICTURES = {"train": 600, "val": 200}
QUESTIONS_A_PICTURE = 2
KINDS = {"written": 0.35, "knowledge": 0.35, "plain": 0.3}
NAMES_PLACE = 0.4  # of the texts that nothing is asked about but what they say
TWO_THINGS = 0.4  # of the pictures: the second has a text that was not asked for
DRAWS = 60  # of a picture, until everything found room and can be asked about
# What a photo must not show: writing of its own, or the thing itself
RIVALS = frozenset(
    {"stop sign", "bus", "bottle", "truck", "train", "car", "book", "clock", "laptop", "tv"}
)
FILES = ("train.jsonl", "val.jsonl", "photos.zip")
INPUTS = ("coco/labels.jsonl", "coco/photos.zip")
TERMS = {
    "questions and texts": "this project's own words, under its licence",
    "COCO photos": "their Flickr terms; COCO labels CC BY 4.0",
    "typefaces": "SIL OFL 1.1, Apache-2.0 and Pillow's own",
    "CIA World Factbook": "public domain",
    "WordNet": "WordNet licence",
}


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known about places, and what to write with."""

    wordnet: Sequence[Document]
    factbook: Sequence[Document]
    faces: Mapping[str, Face]
    cut: Cut = index_cut

    @staticmethod
    def default(report: assets.Report = lambda _: None) -> Knowledge:
        from skipqa.knowledge.sources.factbook import Factbook
        from skipqa.knowledge.sources.wordnet import WordNet

        for asset in (assets.WORDNET, assets.FACTBOOK, assets.MINILM):
            assets.fetch(asset, report)
        return Knowledge(
            [one for one in WordNet().read() if not isinstance(one, BadRow)],
            [one for one in Factbook().read() if not isinstance(one, BadRow)],
            fonts.fetch(report),
        )


@dataclass(frozen=True, slots=True)
class Shown:
    """One thing in a picture."""

    carrier: str
    colour: str
    text: Text
    lines: tuple[str, ...]  # as written
    face: str
    pasted: Pasted


@dataclass(frozen=True, slots=True)
class Material:
    labels: Mapping[str, frozenset[str]]  # of each photo that may be used
    photos: Mapping[str, Sequence[str]]  # by split
    places: Mapping[tuple[str, str], Sequence[Place]]  # by split and kind
    faces: Mapping[str, Face]
    corpus: Corpus
    seed: int

    def named(self, split: str) -> dict[str, Sequence[Place]]:
        return {kind: self.places[split, kind] for kind in ("city", "country")}


def build(
    data: Path,
    out: Path,
    seed: int,
    knowledge: Knowledge,
    progress: Progress = lambda *_: None,
    pictures: Mapping[str, int] = PICTURES,
) -> dict[str, Any]:
    """Write the set into `out`, which must not exist, and return its manifest."""
    check_places(data, out)
    progress("reading the corpus", 0, 1)
    material = _material(data, knowledge, seed)
    progress("reading the corpus", 1, 1)
    rows: list[dict[str, Any]] = []
    with assets.building(out) as folder, Archive(data / "coco" / "photos.zip") as photos:
        with zipfile.ZipFile(folder / "photos.zip", "w", zipfile.ZIP_STORED) as archive:
            total = sum(pictures.values())
            for done, (of_picture, content) in enumerate(_drawn(material, photos, pictures)):
                progress("composing pictures", done, total)
                archive.writestr(zipfile.ZipInfo(of_picture[0]["image"], EPOCH), content)
                rows += of_picture
            progress("composing pictures", total, total)
        check(rows, material.corpus)
        for split in pictures:
            write_jsonl(folder / f"{split}.jsonl", [r for r in rows if r["split"] == split])
        manifest: dict[str, Any] = {
            "name": "rendered text",
            "seed": seed,
            "command": f"skipqa data rendered-text --data DATA --out FOLDER --seed {seed}",
            "counts": {
                split: dict(Counter(r["subset"][0] for r in rows if r["split"] == split))
                for split in pictures
            },
            "sha256": {name: assets.sha256_of(folder / name) for name in FILES},
            "terms": TERMS,
        }
        joined = "".join(manifest["sha256"][name] for name in FILES)
        manifest["checksum"] = hashlib.sha256(joined.encode()).hexdigest()
        write_json(folder / "manifest.json", manifest, indent=1)
    return manifest


def check_places(data: Path, out: Path) -> None:
    """Before anything is read: there is a data folder, and none of this name to write."""
    if out.exists():
        raise UserError(f"{out} exists: delete it or choose another folder")
    for name in INPUTS:
        if not (data / name).is_file():
            raise UserError(f"{data / name} does not exist")


def check(rows: Sequence[Mapping[str, Any]], corpus: Corpus) -> None:
    """Every answer is written in the picture, stated by its passages, or known of the photo."""
    for row in rows:
        (kind,) = row["subset"]
        if kind == "written":
            assert says(row["text"], accepted(row["answers"])), row
        if kind == "knowledge":
            assert row["gold"], row
            stated = (f"{corpus.title(id)} {corpus.texts[id]}" for id in row["gold"])
            assert all(says(text, accepted(row["answers"])) for text in stated), row


def _material(data: Path, knowledge: Knowledge, seed: int) -> Material:
    labels = {name: of for name, of in read_labels(data).items() if not of & RIVALS}
    corpus = Corpus(knowledge.cut)
    corpus.add(knowledge.wordnet)
    corpus.add(knowledge.factbook)
    found = places(_countries(knowledge, corpus), corpus)
    return Material(
        labels,
        {
            "train": [name for name in sorted(labels) if not is_held_out(name)],
            "val": [name for name in sorted(labels) if is_held_out(name) and not is_fresh(name)],
        },
        {
            (split, kind): [p for p in found if p.kind == kind and split_of(p.name) == split]
            for split in ("train", "val")
            for kind in ("city", "country")
        },
        knowledge.faces,
        corpus,
        seed,
    )


def _countries(knowledge: Knowledge, corpus: Corpus) -> list[Country]:
    by_lemma: dict[str, list[Document]] = {}
    for document in knowledge.wordnet:
        for lemma in document.title.split(", "):
            by_lemma.setdefault(lemma.lower(), []).append(document)
    return read_countries(corpus, knowledge.factbook, by_lemma)


def _drawn(
    material: Material, photos: Archive, pictures: Mapping[str, int]
) -> Iterator[tuple[list[dict[str, Any]], bytes]]:
    """The rows of each picture, and its bytes."""
    for split, count in pictures.items():
        names = list(material.photos[split])
        Random(f"{material.seed}:{split}").shuffle(names)
        if len(names) < count:
            raise UserError(f"{count} photos are needed for {split}, the data has {len(names)}")
        for number, name in enumerate(names[:count], 1):
            random = Random(f"{material.seed}:{split}:{number}")
            photo = open_image(BytesIO(photos.bytes(name)))
            drawn = (_draw(photo, name, split, material, random) for _ in range(DRAWS))
            picture, shown, asked = next(one for one in drawn if one is not None)
            image = f"{split}-{number:04d}.webp"
            rows = [
                {
                    "question_id": f"{split}-{number:04d}-{place}",
                    "image": image,
                    "split": split,
                    "photo": f"coco/{name}",
                    "texts": [" ".join(one.lines) for one in shown],
                    "boxes": [placement(one.pasted.text).rounded() for one in shown],
                    **row,
                }
                for place, row in enumerate(asked, 1)
            ]
            yield rows, to_webp(finished(picture, random))


def _draw(
    photo: Image.Image, name: str, split: str, material: Material, random: Random
) -> tuple[Image.Image, list[Shown], list[dict[str, Any]]] | None:
    """A picture and its questions; None where chance went wrong."""
    picture, shown = background(photo), list[Shown]()
    kinds = random.choices(list(KINDS), list(KINDS.values()), k=QUESTIONS_A_PICTURE)
    carriers = random.sample(list(CARRIERS), 2 if random.random() < TWO_THINGS else 1)
    for carrier in carriers:
        made = CARRIERS[carrier]
        colour, face = random.choice(made.colours), random.choice(list(material.faces))
        names_place = 1.0 if "knowledge" in kinds and not shown else NAMES_PLACE
        text = draw_text(carrier, split, material.named(split), names_place, random)
        lines = cased(text.lines, random) if carrier != "plate" else text.lines
        drawn = made.draw(lines, material.faces[face], colour, random)
        found = paste(picture, drawn, [one.pasted.thing for one in shown], random)
        if found is None:
            return None
        picture, pasted = found
        shown.append(Shown(carrier, colour, text, lines, face, pasted))
    asked = [_ask(kind, shown, material.labels[name], random) for kind in kinds]
    kept = [row for row in asked if row is not None]
    questions = {row["question"] for row in kept}
    return (picture, shown, kept) if len(questions) == QUESTIONS_A_PICTURE else None


def _ask(
    kind: str, shown: Sequence[Shown], labels: frozenset[str], random: Random
) -> dict[str, Any] | None:
    """A question about the first thing; None where nothing of this kind can be asked."""
    one = shown[0]
    row: dict[str, Any] = {
        "subset": [kind],
        "category": one.carrier,
        "text": " ".join(one.lines),
        "box": placement(one.pasted.text).rounded(),
        "face": one.face,
        "gold": [],
    }
    noun = CARRIERS[one.carrier].noun
    if kind == "written":
        question, answers = random.choice(one.text.written)
        return row | {"question": question, "answers": dict.fromkeys(accepted(answers), 1.0)}
    if kind == "knowledge":
        if one.text.place is None:
            return None
        known = random.choice(one.text.place.known)
        question = random.choice(KNOWN[known.relation]).format(noun=noun)
        scores = dict.fromkeys(known.answers, 1.0)
        return row | {"question": question, "answers": scores, "gold": list(known.gold)}
    if random.random() < 0.5 and one.carrier in ("sign", "bus", "shop"):
        question = f"What color is the {noun}?"
        return row | {"question": question, "answers": {one.colour: 1.0}}
    return row | _presence(labels, random)


def _presence(labels: frozenset[str], random: Random) -> dict[str, Any]:
    """Whether the photo shows a thing of COCO's that is easy to see."""
    there = random.random() < 0.5 and labels & THINGS
    known = sorted(labels & THINGS) if there else sorted(THINGS - labels)
    thing = random.choice(known)
    article = "an" if thing[0] in "aeiou" else "a"
    question = f"Is there {article} {thing} in the picture?"
    return {"question": question, "answers": {"yes" if there else "no": 1.0}}


THINGS = frozenset(
    "person,bicycle,motorcycle,airplane,boat,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,"
    "zebra,giraffe,umbrella,kite,surfboard,pizza,cake,couch,bed,toilet".split(",")
)
