"""Are somebody's own notes read? Made-up facts about everyday things, asked about real photos.

A household's notes, written anew from a seed: every thing has facts that nobody else could know, in
files that speak of several things each, among notes about nothing in any photo. They are asked
about held-out COCO photos of those things, with these notes alone and next to the default corpora.
Some things are for choosing (`--held-out`), others for reporting; wordings are not those that the
reader was trained on (training/stage1/notes.py).

    python benchmarks/own_documents.py --data DATA
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.progress import track
from rich.table import Table

from skipqa.answer import Answer
from skipqa.claims.shipping import shipped
from skipqa.cli.console import err, out, prepare_process
from skipqa.config import read_settings
from skipqa.costs.environment import write_results
from skipqa.data.held_out import is_held_out
from skipqa.evaluation.reports.markdown import percent
from skipqa.evaluation.statistics import mean_interval
from skipqa.files import read_jsonl
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources import open_documents
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.pipeline import load
from skipqa.tasks.okvqa import normalise
from skipqa.types import RetrievedPassage

# To choose by, and to report
ANIMALS = (
    ("cat", "dog", "horse", "sheep", "cow", "bird"),
    ("elephant", "bear", "zebra", "giraffe"),
)
OBJECTS = (
    (
        *("bicycle", "motorcycle", "boat", "umbrella", "teddy bear", "clock", "couch", "laptop"),
        *("kite", "skateboard", "surfboard", "bench", "vase", "suitcase", "truck", "skis"),
    ),
    (
        *("car", "bus", "train", "airplane", "backpack", "handbag", "tennis racket", "snowboard"),
        *("bed", "refrigerator", "oven", "sink", "toilet", "keyboard", "chair"),
    ),
)
MEASURED = ("found", "kept", "read", "right")
FILES_OF = 3  # things that a file speaks of
PHOTOS_OF = 2  # of each thing, at most
FIRST = "Rahima Tomas Ilse Bjarne Noor Kwame Marisol Jaromir Siobhan Tadeusz Yuki Anselm".split()
LAST = (
    "Begum Ostermann Oyelaran Szczepański Achterberg Mbeki Quintana Vránková Fitzgibbon Zawadzki "
    "Nakagawa Lindqvist"
).split()
TOWNS = "Tampere Sylhet Utrecht Kumasi Arequipa Olomouc Galway Bydgoszcz Nagano Skara".split()
SHOPS = ("Brandt & Daughters", "the Harbour Store", "Pemberton's", "Casa Morales", "Nordlys")
ROOMS = ("the attic", "the boathouse", "the laundry room", "the old stable", "the hallway")
MONTHS = ("March", "June", "August", "October", "November")
NAMES = ("Minka", "Bosko", "Tarnow", "Pepita", "Quill", "Yarrow", "Ozzie", "Lumi")
OF_ANIMALS = (
    (
        "{name} the {thing} is {years} years old and sleeps in {room}.",
        {
            "What is this {thing} called?": "name",
            "How old is this {thing}?": "years",
            "Where does this {thing} sleep?": "room",
        },
    ),
    (
        "Doctor {person} looks after our {thing}; the last visit was in {month}.",
        {
            "Who is the vet of this {thing}?": "person",
            "When did this {thing} last see the doctor?": "month",
        },
    ),
)
OF_OBJECTS = (
    (
        "The {thing} came from {person}, our neighbour, in {year}.",
        {
            "Who did this {thing} come from?": "person",
            "In which year did this {thing} come to us?": "year",
        },
    ),
    (
        "We paid {amount} euros for the {thing} at {shop} in {town}.",
        {
            "How much did we pay for this {thing}?": "amount",
            "In which town was this {thing} bought?": "town",
        },
    ),
    (
        "{other} repaired the {thing}, and since then it has stood in {room}.",
        {"Who repaired this {thing}?": "other", "Where is this {thing} kept?": "room"},
    ),
)
BESIDE = (
    "Soak the beans overnight, then cook them for {years} minutes with two bay leaves.",
    "The choir meets at {town} station; {person} brings the scores.",
    "{person} phoned about the roof and will come back in {month}.",
    "The water bill of {year} was {amount} euros.",
)


@dataclass(frozen=True, slots=True)
class Asked:
    thing: str
    image: str
    question: str
    answer: str

    def told_by(self, passage: RetrievedPassage) -> bool:
        return passage.own and self.answer in passage.text and self.thing in passage.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="with coco/")
    parser.add_argument("--held-out", action="store_true", help="other things, to choose on")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.NAME=VALUE")
    parser.add_argument("--answers", type=Path, help="JSON Lines to write: every question")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        asked = write_notes(notes, options.data, options.seed, options.held_out)
        index = Path(folder) / "notes-index"
        build(index, [open_documents(notes)], LexicalEncoder.default())
        results: dict[str, Any] = {
            name: answered(name, uris, asked, options)
            for name, uris in {"alone": [index], "next to default": ["default", index]}.items()
        }
    show(results)
    if not options.held_out:
        results["seed"] = options.seed
        path = write_results(results, "own_documents", options.out, shipped())
        err.print(f"written to {path}")


def write_notes(folder: Path, data: Path, seed: int, held_out: bool) -> list[Asked]:
    """Files of text, and what is asked about them."""
    draw = Random(seed)
    animals, objects = (kind[0 if held_out else 1] for kind in (ANIMALS, OBJECTS))
    photos = photos_of(data, {*animals, *objects})
    said: list[str] = []  # paragraphs
    asked: list[Asked] = []
    for thing in (*animals, *objects):
        facts = drawn(draw)
        sentences = OF_ANIMALS if thing in animals else OF_OBJECTS
        said.append(" ".join(text.format(thing=thing, **facts) for text, _ in sentences))
        questions = [pair for _, of_text in sentences for pair in of_text.items()]
        shown = photos.get(thing, [])
        for image in draw.sample(shown, min(PHOTOS_OF, len(shown))):
            asked += [Asked(thing, image, q.format(thing=thing), facts[a]) for q, a in questions]
    draw.shuffle(said)
    folder.mkdir()
    for number, start in enumerate(range(0, len(said), FILES_OF)):
        paragraphs = said[start : start + FILES_OF]
        beside = draw.choice(BESIDE).format(**drawn(draw))
        paragraphs.insert(draw.randrange(len(paragraphs)), beside)
        (folder / f"{number}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
    return asked


def drawn(draw: Random) -> Mapping[str, str]:
    person, other = draw.sample([f"{first} {last}" for first in FIRST for last in LAST], 2)
    return {
        "person": person,
        "other": other,
        "town": draw.choice(TOWNS),
        "shop": draw.choice(SHOPS),
        "room": draw.choice(ROOMS),
        "month": draw.choice(MONTHS),
        "name": draw.choice(NAMES),
        "year": str(draw.randrange(1951, 2020)),
        "years": str(draw.randrange(2, 19)),
        "amount": str(draw.randrange(11, 400)),
    }


def photos_of(data: Path, things: set[str]) -> dict[str, list[str]]:
    """Held-out photos that show a thing and no other that is asked about."""
    found: dict[str, list[str]] = {}
    with zipfile.ZipFile(data / "coco" / "photos.zip") as archive:
        names = set(archive.namelist())
    for row in read_jsonl(data / "coco" / "labels.jsonl"):
        shown = things.intersection(row["labels"])
        if len(shown) == 1 and row["image"] in names and is_held_out(row["image"]):
            found.setdefault(shown.pop(), []).append(row["image"])
    return found


def answered(
    name: str, uris: Sequence[str | Path], asked: Sequence[Asked], options: argparse.Namespace
) -> dict[str, Any]:
    pipeline = load(index=uris, overrides=read_settings(options.set))
    rows = []
    with zipfile.ZipFile(options.data / "coco" / "photos.zip") as photos:
        for one in track(asked, f"asking, {name}", console=err):
            answer = pipeline.answer(io.BytesIO(photos.read(one.image)), one.question)
            rows.append({"notes": name, **row_of(answer, one)})
    if options.answers is not None:
        with options.answers.open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    return {
        "questions": len(rows),
        **{key: asdict(mean_interval([row[key] for row in rows])) for key in MEASURED},
    }


def row_of(answer: Answer, one: Asked) -> dict[str, Any]:
    state = answer.state
    found = state.retrieved.passages if "retrieved" in state else ()
    kept = state.verified.passages if "verified" in state else ()
    read = [kept[place] for place in state.answer.read]
    return {
        "question": one.question,
        "gold": one.answer,
        "answer": answer.text,
        "right": float(is_right(answer.text, one.answer)),
        **{
            name: float(any(one.told_by(passage) for passage in passages))
            for name, passages in (("found", found), ("kept", kept), ("read", read))
        },
        "texts": [passage.text for passage in read],
    }


def is_right(said: str, answer: str) -> bool:
    """It says the answer, and hardly anything else."""
    told, needed = normalise(said).split(), normalise(answer).split()
    places = range(len(told) - len(needed) + 1)
    return len(told) <= len(needed) + 3 and any(
        told[place : place + len(needed)] == needed for place in places
    )


def show(results: Mapping[str, Any]) -> None:
    table = Table("notes", "questions", "found, %", "kept, %", "read, %", "right, %")
    for name, one in results.items():
        measured = (percent(one[key]) for key in MEASURED)
        table.add_row(name, str(one["questions"]), *measured)
    out.print(table)


if __name__ == "__main__":
    main()
