"""Questions of several data sets as one list, with the photos that they are about.

Enters: a folder laid out as `okvqa/`, `coco/`, `fvqa/`, `vqav2/` (JSON Lines next to zips of
photos) and, where it was built, Pocket-KB. Leaves: examples with answers scored in [0, 1], labels,
and one table of photos. A tenth of the training photos of OK-VQA and FVQA is held out by name, so
that no choice is made on validation questions, and a tenth of the things in Pocket-KB's `train`, so
that later stages meet mistakes. A photo in its `val` is never trained on, whichever question or
label it has. COCO questions about held-out photos are kept: they need no knowledge, and the fast
path is chosen on both kinds.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skipqa.data.held_out import Split, is_held_out, photos_of_val, pocket_kb_split
from skipqa.errors import UserError
from skipqa.files import Fields, check_rows, read_jsonl
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.pocket_kb import box_from_centre
from skipqa.training.example import TrainExample
from skipqa.types import Box

AGREEING = 3  # people who make an answer fully right
# COCO's photos, labels and questions; the second set has more of the rarer classes
COCO = (
    ("photos.zip", "labels.jsonl", "questions.jsonl"),
    ("more.zip", "more_labels.jsonl", "more_questions.jsonl"),
)
# What Pocket-KB calls a kind, and what people call it; other kinds are the encoder's own classes
KINDS = {"dog": "dog", "cat": "cat", "flower": "flower", "grocery": "food", "country": "flag"}


@dataclass(slots=True)
class Mixture:
    examples: list[TrainExample] = field(default_factory=list)
    photos: dict[tuple[Path, str], int] = field(default_factory=dict)  # (zip, name) -> row
    labels: dict[int, tuple[str, ...]] = field(default_factory=dict)  # all that a photo shows
    entities: dict[int, tuple[str, str]] = field(default_factory=dict)  # (kind, name) of one thing
    boxes: dict[int, Box] = field(default_factory=dict)  # of that thing, in a composed image
    checks: dict[Split, dict[int, tuple[str, str]]] = field(default_factory=dict)  # to score by
    facts: dict[str, str] = field(default_factory=dict)  # passages that state answers, by id

    def photo(self, archive: Path, name: str) -> int:
        return self.photos.setdefault((archive, name), len(self.photos))

    def ask(self, example: TrainExample) -> None:
        """A question without answers is not trained on, but counts where it is scored."""
        if example.answers or example.split == "val":
            self.examples.append(example)

    def select(self, source: str, split: str) -> list[int]:
        return [i for i, e in enumerate(self.examples) if (e.source, e.split) == (source, split)]

    def train_photos(self) -> list[int]:
        """Rows of the photos that may be trained on."""
        asked = {example.photo for example in self.examples if example.split == "train"}
        return sorted(asked.union(self.labels, self.entities))

    def fingerprint(self) -> str:
        """The same for the same questions, labels and names of photos, wherever they lie."""
        names = [(archive.name, name) for archive, name in self.photos]
        whole = repr((self.examples, names, self.labels, self.entities, self.boxes, self.facts))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def read(data: Path, pocket_kb: Path | None = None, limit: int | None = None) -> Mixture:
    """`limit` rows of each file, for a trial."""
    mixture = Mixture()
    held_out = photos_of_val(pocket_kb)
    _read_okvqa(mixture, data, held_out["coco"], limit)
    _read_coco(mixture, data, held_out["coco"], limit)
    _read_fvqa(mixture, data, held_out["coco"], limit)
    _read_vqav2(mixture, data, limit)
    if pocket_kb is not None:
        _read_pocket_kb(mixture, pocket_kb, held_out, limit)
    _check_photos(mixture)
    return mixture


def answer_vocabulary(
    examples: Iterable[TrainExample], size: int, least: int = 4
) -> tuple[str, ...]:
    """The most common answers, first the commonest; those of knowledge questions, which are few,
    count threefold."""
    count: Counter[str] = Counter()
    for example in examples:
        if example.split == "train":
            worth = 1 if example.source == "coco" else 3
            count.update({t: worth for t, s in example.answers.items() if s > 0.5})
    common = [text for text, n in count.most_common() if n >= least and len(text.split()) <= 4]
    return tuple(common[:size])


def _read_okvqa(mixture: Mixture, data: Path, held_out: frozenset[str], limit: int | None) -> None:
    fields = {"image": str, "question": str, "answers": dict}
    for name in ("train", "val"):
        archive = data / "okvqa" / f"{name}.zip"
        rows = _rows(data / "okvqa" / f"{name}.jsonl", fields, limit)
        for number, row in enumerate(rows):
            split: Split = "val"
            if name == "train":
                if row["image"] in held_out:
                    continue
                split = "held-out" if is_held_out(row["image"]) else "train"
            mixture.ask(
                TrainExample(
                    row.get("question_id", number),
                    row["image"],
                    row["question"],
                    _scored(row["answers"]),
                    split=split,
                    source="okvqa",
                    photo=mixture.photo(archive, row["image"]),
                )
            )


def _read_coco(mixture: Mixture, data: Path, held_out: frozenset[str], limit: int | None) -> None:
    """Questions and labels of photos that nothing holds out; a photo is in one of several zips."""
    folder = data / "coco"
    sets = [names for names in COCO if (folder / names[0]).is_file()]
    find = _finder(data / "okvqa" / "train.zip", *(folder / photos for photos, _, _ in sets))

    def photo_of(row: Mapping[str, Any]) -> int | None:
        name = row["image"]
        archive = find(name)
        if archive is None or name in held_out:
            return None
        return mixture.photo(archive, name)

    fields = {"image": str, "question": str, "answers": dict}
    for _, _, questions in sets:
        for number, row in enumerate(_rows(folder / questions, fields, limit)):
            if (photo := photo_of(row)) is not None:
                mixture.ask(
                    TrainExample(
                        number,
                        row["image"],
                        row["question"],
                        _soft_scores(row["answers"]),
                        split="held-out" if is_held_out(row["image"]) else "train",
                        source="coco",
                        photo=photo,
                    )
                )
    for _, labels, _ in sets:
        for row in _rows(folder / labels, {"image": str, "labels": list}, limit):
            if not is_held_out(row["image"]) and (photo := photo_of(row)) is not None:
                mixture.labels[photo] = tuple(row["labels"])


def _read_fvqa(mixture: Mixture, data: Path, held_out: frozenset[str], limit: int | None) -> None:
    """Each question comes with the fact that supports its answer: a passage for the reader."""
    fields = {"image": str, "question": str, "answer": str, "fact": str}
    for name in ("train", "val"):
        archive, path = (data / "fvqa" / f"{name}.{kind}" for kind in ("zip", "jsonl"))
        if not path.is_file():
            continue
        for number, row in enumerate(_rows(path, fields, limit)):
            split: Split = "val"
            if name == "train":
                if row["image"] in held_out:
                    continue
                split = "held-out" if is_held_out(row["image"]) else "train"
            mixture.ask(
                TrainExample(
                    row.get("question_id", number),
                    row["image"],
                    row["question"],
                    _scored({row["answer"]: 1.0}),
                    split=split,
                    source="fvqa",
                    photo=mixture.photo(archive, row["image"]),
                    fact=" ".join(row["fact"].split()),
                )
            )


def _soft_scores(given: Mapping[str, int]) -> dict[str, float]:
    """How many people gave each answer -> how right it is; a single one is right."""
    counts: Counter[str] = Counter()
    for text, count in given.items():
        counts[normalise(text)] += count
    people = sum(counts.values())
    return {t: min(1.0, n / AGREEING) if people > 1 else 1.0 for t, n in counts.items() if t}


def _scored(answers: Mapping[str, float]) -> dict[str, float]:
    """In the form that is compared; "a", as of vitamins, is an article there and leaves nothing."""
    found = {normalise(text): float(score) for text, score in answers.items() if score > 0}
    return {text: score for text, score in found.items() if text}


def _read_vqav2(mixture: Mixture, data: Path, limit: int | None) -> None:
    fields = {"image": str, "question": str, "answer": str}
    for number, row in enumerate(_rows(data / "vqav2" / "val.jsonl", fields, limit)):
        mixture.ask(
            TrainExample(
                number,
                row["image"],
                row["question"],
                _scored({row["answer"]: 1.0}),
                split="val",
                source="vqav2",
                photo=mixture.photo(data / "vqav2" / "val.zip", row["image"]),
            )
        )


def _read_pocket_kb(
    mixture: Mixture, folder: Path, held_out: Mapping[str, frozenset[str]], limit: int | None
) -> None:
    gold = _rows(folder / "gold.jsonl", {"id": str, "text": str}, None)
    mixture.facts = {row["id"]: " ".join(row["text"].split()) for row in gold}
    fields = {"image": str, "question": str, "answers": dict, "hops": list, "entity": str}
    for name in ("train", "val"):
        path = folder / f"{name}.jsonl"
        for number, row in enumerate(_rows(path, fields | {"name": str}, limit)):
            split: Split = "val"
            if name == "train":
                _check_apart(path, row, held_out)
                split = pocket_kb_split(row)
            photo = mixture.photo(folder / "photos.zip", row["image"])
            try:
                hops = tuple(tuple(mixture.facts[id] for id in hop) for hop in row["hops"])
            except KeyError as error:
                raise UserError(f"{folder / 'gold.jsonl'} lacks the passage {error}") from None
            box = box_from_centre(row["box"], f"{path} row {number}") if row.get("box") else None
            mixture.ask(
                TrainExample(
                    row.get("question_id", number),
                    row["image"],
                    row["question"],
                    _scored(row["answers"]),
                    box=box,
                    split=split,
                    source="pocket-kb",
                    photo=photo,
                    hops=hops,
                )
            )
            kind = row["entity"].partition(":")[0]
            if kind in KINDS:
                train = split == "train"
                named = mixture.entities if train else mixture.checks.setdefault(split, {})
                named[photo] = KINDS[kind], row["name"].lower()
                if box is not None:
                    mixture.boxes[photo] = box


def _check_apart(
    path: Path, row: Mapping[str, Any], held_out: Mapping[str, frozenset[str]]
) -> None:
    for source in (row.get("photo"), row.get("background")):
        kind, _, name = (source or "").partition("/")
        if name in held_out.get(kind, ()):
            raise UserError(f"{path} trains on {source}, which held_out.json holds out")


def _finder(*archives: Path) -> Callable[[str], Path | None]:
    """Which archive holds a photo; of several, the last."""
    where: dict[str, Path] = {}
    for archive in archives:
        where |= dict.fromkeys(_names(archive), archive)
    return where.get


def _check_photos(mixture: Mixture) -> None:
    """Before anything is trained: every photo is where its row says."""
    named: dict[Path, set[str]] = {}
    for archive, name in mixture.photos:
        named.setdefault(archive, set()).add(name)
    for archive, names in named.items():
        if absent := sorted(names - _names(archive)):
            raise UserError(f"{archive} lacks {len(absent):,} photos, the first is {absent[0]}")


def _names(archive: Path) -> set[str]:
    try:
        with zipfile.ZipFile(archive) as file:
            return set(file.namelist())
    except FileNotFoundError:
        raise UserError(f"{archive} does not exist") from None
    except (zipfile.BadZipFile, OSError):
        raise UserError(f"{archive} is no zip of photos") from None


def _rows(path: Path, fields: Fields, limit: int | None) -> list[dict[str, Any]]:
    return check_rows(str(path), read_jsonl(path)[:limit], fields)
