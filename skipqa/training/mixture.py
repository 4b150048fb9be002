"""Questions of several data sets as one list, with the photos that they are about.

Enters: a folder laid out as `okvqa/`, `coco/`, `vqav2/` (JSON Lines beside zips of photos) and,
where it was built, Pocket-KB. Leaves: examples with answers scored in [0, 1], and one table of
photos. A tenth of OK-VQA's training photos is held out by name, so that choices need not look
at the validation questions.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from skipqa.data.files import read_text
from skipqa.errors import UserError
from skipqa.evaluation.scoring.okvqa import normalise

Split = Literal["train", "held-out", "val"]
HELD_OUT_OF = 10  # one photo in so many
AGREEING = 3  # people who make an answer fully right
# What Pocket-KB calls a kind, and what people do
KINDS = {"dog": "dog", "cat": "cat", "flower": "flower", "grocery": "food", "country": "flag"}


@dataclass(frozen=True, slots=True)
class Example:
    photo: int  # a row of the table of photos
    question: str
    answers: Mapping[str, float]  # normalised text -> score in (0, 1]
    source: str
    split: Split
    hops: tuple[tuple[str, ...], ...] = ()  # for each step to the answer, passages that state it


@dataclass(slots=True)
class Mixture:
    examples: list[Example] = field(default_factory=list)
    photos: dict[tuple[Path, str], int] = field(default_factory=dict)  # (zip, name) -> row
    labels: dict[int, tuple[str, ...]] = field(default_factory=dict)  # all that a photo shows
    entities: dict[int, tuple[str, str]] = field(default_factory=dict)  # (kind, name) of one thing

    def photo(self, archive: Path, name: str) -> int:
        return self.photos.setdefault((archive, name), len(self.photos))

    def select(self, source: str, split: Split) -> list[int]:
        return [i for i, e in enumerate(self.examples) if (e.source, e.split) == (source, split)]


def read(data: Path, pocket_kb: Path | None = None, limit: int | None = None) -> Mixture:
    """`limit` rows of each file, for a trial."""
    mixture = Mixture()
    _read_okvqa(mixture, data, limit)
    _read_coco(mixture, data, limit)
    if pocket_kb is not None:
        _read_pocket_kb(mixture, pocket_kb, limit)
    return mixture


def is_held_out(photo_name: str) -> bool:
    return zlib.crc32(Path(photo_name).stem.encode()) % HELD_OUT_OF == 0


def _read_okvqa(mixture: Mixture, data: Path, limit: int | None) -> None:
    for name in ("train", "val"):
        archive = data / "okvqa" / f"{name}.zip"
        for row in _rows(data / "okvqa" / f"{name}.jsonl", limit):
            split: Split = "val"
            if name == "train":
                split = "held-out" if is_held_out(row["image"]) else "train"
            photo = mixture.photo(archive, row["image"])
            answers = {normalise(text): float(s) for text, s in row["answers"].items() if s > 0}
            mixture.examples.append(Example(photo, row["question"], answers, "okvqa", split))


def _read_coco(mixture: Mixture, data: Path, limit: int | None) -> None:
    find = _finder(data / "okvqa" / "train.zip", data / "coco" / "photos.zip")
    for row in _rows(data / "coco" / "questions.jsonl", limit):
        if (archive := find(row["image"])) is None or is_held_out(row["image"]):
            continue
        counts: Counter[str] = Counter()
        for text, count in row["answers"].items():
            counts[normalise(text)] += count
        people = sum(counts.values())
        answers = {t: min(1.0, n / AGREEING) if people > 1 else 1.0 for t, n in counts.items()}
        photo = mixture.photo(archive, row["image"])
        mixture.examples.append(Example(photo, row["question"], answers, "coco", "train"))
    for row in _rows(data / "coco" / "labels.jsonl", limit):
        if (archive := find(row["image"])) is not None and not is_held_out(row["image"]):
            mixture.labels[mixture.photo(archive, row["image"])] = tuple(row["labels"])
    for row in _rows(data / "vqav2" / "val.jsonl", limit):
        photo = mixture.photo(data / "vqav2" / "val.zip", row["image"])
        answers = {normalise(row["answer"]): 1.0}
        mixture.examples.append(Example(photo, row["question"], answers, "vqav2", "val"))


def _read_pocket_kb(mixture: Mixture, folder: Path, limit: int | None) -> None:
    facts = {row["id"]: row["text"] for row in _rows(folder / "gold.jsonl", None)}
    names: dict[str, str] = json.loads(read_text(folder / "entities.json"))
    splits: tuple[Split, ...] = ("train", "val")
    for split in splits:
        for row in _rows(folder / f"{split}.jsonl", limit):
            photo = mixture.photo(folder / "photos.zip", row["image"])
            hops = tuple(tuple(facts[id] for id in hop) for hop in row["hops"])
            answers = {normalise(text): float(score) for text, score in row["answers"].items()}
            example = Example(photo, row["question"], answers, "pocket-kb", split, hops)
            mixture.examples.append(example)
            if split == "train" and row["entity"] in names:
                kind, _ = row["entity"].split(":")
                mixture.entities[photo] = KINDS[kind], names[row["entity"]]


def answer_vocabulary(examples: Iterable[Example], size: int, least: int = 4) -> tuple[str, ...]:
    """Answers that most people gave, the commonest first; knowledge questions count threefold,
    being a few among many."""
    count: Counter[str] = Counter()
    for example in examples:
        if example.split == "train":
            worth = 1 if example.source == "coco" else 3
            count.update({t: worth for t, s in example.answers.items() if s > 0.5})
    common = [text for text, n in count.most_common() if n >= least and len(text.split()) <= 4]
    return tuple(common[:size])


def _finder(*archives: Path) -> Any:
    where: dict[str, Path] = {}
    for archive in archives:
        if archive.exists():
            with zipfile.ZipFile(archive) as file:
                where |= dict.fromkeys(file.namelist(), archive)
    return where.get


def _rows(path: Path, limit: int | None) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if limit is not None and number > limit:
            return
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UserError(f"{path} line {number}: not JSON, {error}") from None
