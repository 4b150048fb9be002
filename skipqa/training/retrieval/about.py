"""What questions are about: questions of all data sets with the name of the thing they ask for.

Enters: Pocket-KB, OK-VQA with its annotated objects, FVQA. Leaves: each question, in several
wordings where there are templates, with the name as the tagger would say it of an image. The name
is empty where anything may be asked about: a whole scene. A tenth of the photos (of Pocket-KB, of
the entities) is held out; unseen entities and the photos of Pocket-KB's `val` are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from skipqa.data.held_out import is_held_out, is_id_held_out, photos_of_val, unseen_entities
from skipqa.files import Fields, check_rows, read_jsonl
from skipqa.nn.tagger import said_of_a_picture
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.question_types import read_types
from skipqa.training import objects
from skipqa.training.retrieval import paraphrases
from skipqa.training.stage1.mixture import COCO
from skipqa.training.stage1.pocket_kb import KINDS

TRAIN, TYPES = "train.jsonl", "train_types.jsonl"
POCKET_KB, OKVQA, FVQA, SCENES, OPEN = "pocket-kb", "okvqa", "fvqa", "scenes", "open questions"
SOURCES = (POCKET_KB, OKVQA, FVQA, SCENES, OPEN)
# Of the data folder, all that is read here
FILES = (
    *(f"okvqa/{name}" for name in (TRAIN, objects.FILE, TYPES)),
    f"fvqa/{TRAIN}",
    *(f"coco/{labels}" for _, labels, _ in COCO),
)
SCENE = "scene"
IN_IMAGE = "image"
OPEN_TYPES = ("other", "speculative")  # of OK-VQA: about anything that the image shows


@dataclass(frozen=True, slots=True)
class About:
    question: str
    name: str  # in lower case; empty: anything
    source: str  # of `SOURCES`
    held_out: bool
    held_out_wording: bool = False


def read(pocket_kb: Path | None, data: Path | None, reworded: int, seed: int) -> list[About]:
    found: list[About] = []
    if pocket_kb is not None:
        found += from_pocket_kb(pocket_kb, reworded, seed)
    if data is not None:
        not_trained_on = photos_of_val(pocket_kb)["coco"]
        found += from_okvqa(data / "okvqa", not_trained_on)
        found += from_fvqa(data / "fvqa", not_trained_on)
    return found


def common_names(data: Path | None) -> list[str]:
    """All that COCO's labels name, which the tagger will be trained to say."""
    if data is None:
        return []
    paths = [data / "coco" / labels for _, labels, _ in COCO]
    rows = (
        row
        for path in paths
        if path.is_file()
        for row in check_rows(str(path), read_jsonl(path), {"labels": list})
    )
    return sorted({name for row in rows for name in row["labels"]})


def from_pocket_kb(folder: Path, reworded: int, seed: int) -> Iterator[About]:
    path, unseen = folder / TRAIN, unseen_entities(folder)
    fields = {"question": str, "name": str, "entity": str, "category": str, "relation": str}
    for row in check_rows(str(path), read_jsonl(path), fields):
        if row["entity"] not in unseen:
            yield from _wordings(row, reworded, seed)


def _wordings(row: dict[str, Any], reworded: int, seed: int) -> Iterator[About]:
    """The question in each of its wordings; held-out ones for held-out entities alone."""
    question, relation, category = row["question"], row["relation"], row["category"]
    random, scene = Random(f"{seed} {row['entity']} {question}"), category == SCENE
    name = "" if scene else said_of_a_picture(row["name"].lower(), KINDS.get(category, ""))
    source, held_out = SCENES if scene else POCKET_KB, is_id_held_out(row["entity"])
    yield About(question, name, source, held_out)
    for _ in range(reworded):
        if scene and random.random() < 0.5:
            wording = random.choice(paraphrases.table()["train"]["scenes"])
        else:
            wording = paraphrases.train_wording(question, relation, category, random)
        yield About(wording, name, source, held_out)
    if held_out:
        others = paraphrases.held_out_wordings(question, relation, category)
        others += paraphrases.table()["held_out"]["scenes"] if scene else []
        if others:
            yield About(random.choice(others), name, source, held_out, held_out_wording=True)


def from_okvqa(folder: Path, not_trained_on: frozenset[str]) -> Iterator[About]:
    """Questions with an annotated object; and those that no object was looked up for."""
    thing_of, types = objects.read_objects(folder), folder / TYPES
    if not (thing_of and types.is_file()):
        return
    fields: Fields = {"question_id": (int, str), "image": str, "question": str}
    rows = check_rows(str(folder / TRAIN), read_jsonl(folder / TRAIN), fields)
    type_of = read_types(types)
    for row in rows:
        id, held_out = str(row["question_id"]), is_held_out(row["image"])
        if row["image"] in not_trained_on:
            continue
        if id in thing_of and (name := normalise(thing_of[id].name)):
            yield About(row["question"], name, OKVQA, held_out)
        elif type_of.get(id) in OPEN_TYPES:
            yield About(row["question"], "", OPEN, held_out)


def from_fvqa(folder: Path, not_trained_on: frozenset[str]) -> Iterator[About]:
    """Questions whose answer is a thing in the image: nearly any may be."""
    path = folder / TRAIN
    if not path.is_file():
        return
    fields = dict.fromkeys(("image", "question", "answer", "from"), str)
    for row in check_rows(str(path), read_jsonl(path), fields):
        if row["from"] == IN_IMAGE and row["image"] not in not_trained_on:
            name = normalise(row["answer"])
            yield About(row["question"], name, FVQA, is_held_out(row["image"]))
