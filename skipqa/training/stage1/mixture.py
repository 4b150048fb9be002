"""Questions of several data sets as one list, with the photos that they are about.

Enters: a folder laid out as `okvqa/`, `coco/`, `fvqa/`, `vqav2/` (JSON Lines next to zips of
photos) and, where it was built, Pocket-KB. Leaves: examples with answers scored in [0, 1], labels,
the things that photos show, and one table of photos. A tenth of the training photos of OK-VQA and
FVQA is held out by name, so that no choice is made on validation questions, and a tenth of the
things in Pocket-KB's `train`, so that later stages meet mistakes. A photo in its `val` is never
trained on, whichever question or label it has, nor is the name of an unseen entity an answer to
train on. COCO questions about held-out photos are kept: they need no knowledge, and the fast path
is chosen on both kinds.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from skipqa.data.held_out import Split, is_held_out
from skipqa.errors import UserError
from skipqa.files import Fields, check_rows, read_jsonl
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.question_types import read_types
from skipqa.training.example import TrainExample
from skipqa.training.objects import read_objects
from skipqa.training.stage1.pocket_kb import HeldOut, PocketKbData, Thing, scored

AGREEING = 3  # people who make an answer fully right
# COCO's photos, labels and questions; the second set has more of the rarer classes
COCO = (
    ("photos.zip", "labels.jsonl", "questions.jsonl"),
    ("more.zip", "more_labels.jsonl", "more_questions.jsonl"),
)


@dataclass(slots=True)
class Mixture:
    examples: list[TrainExample] = field(default_factory=list)
    photos: dict[tuple[Path, str], int] = field(default_factory=dict)  # (zip, name) -> row
    labels: dict[int, tuple[str, ...]] = field(default_factory=dict)  # COCO's, all that are shown
    things: dict[int, tuple[Thing, ...]] = field(default_factory=dict)  # one, or all of a crowd
    checks: dict[Split, dict[int, tuple[Thing, ...]]] = field(default_factory=dict)  # to score by
    facts: dict[str, str] = field(default_factory=dict)  # passages about seen entities, by id

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
        return sorted(asked.union(self.labels, self.things))

    def shown(self) -> dict[int, tuple[Thing, ...]]:
        """What photos show, those to train on and those to score by."""
        found = dict(self.things)
        for checked in self.checks.values():
            found |= checked
        return found

    def only(self, rows: Iterable[int]) -> Mixture:
        """These questions, and of the photos those that they are about."""
        chosen = [self.examples[row] for row in rows]
        kept = sorted({example.photo for example in chosen})
        place = {photo: i for i, photo in enumerate(kept)}
        names = {photo: name for name, photo in self.photos.items()}
        return Mixture(
            [replace(example, photo=place[example.photo]) for example in chosen],
            {names[photo]: i for photo, i in place.items()},
            {i: self.labels[photo] for photo, i in place.items() if photo in self.labels},
            {i: self.things[photo] for photo, i in place.items() if photo in self.things},
            {
                split: {i: shown[photo] for photo, i in place.items() if photo in shown}
                for split, shown in self.checks.items()
            },
            self.facts,
        )

    def fingerprint(self) -> str:
        """The same for the same questions, labels and names of photos, wherever they lie."""
        names = [(archive.name, name) for archive, name in self.photos]
        whole = repr((self.examples, names, self.labels, self.things, self.checks, self.facts))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def read(data: Path, pocket_kb: Path | None = None, limit: int | None = None) -> Mixture:
    """`limit` rows of each file, of Pocket-KB's of each source, for a trial."""
    mixture = Mixture()
    held_out = HeldOut.of(pocket_kb)
    _read_okvqa(mixture, data, held_out, limit)
    _read_coco(mixture, data, held_out, limit)
    _read_fvqa(mixture, data, held_out, limit)
    _read_vqav2(mixture, data, limit)
    if pocket_kb is not None:
        _read_pocket_kb(mixture, PocketKbData.of(pocket_kb, held_out), limit)
    _check_photos(mixture)
    return mixture


def read_knowledge_questions(data: Path, held_out: HeldOut) -> Mixture:
    """OK-VQA's and, where it is there, FVQA's."""
    mixture = Mixture()
    _read_okvqa(mixture, data, held_out, None)
    _read_fvqa(mixture, data, held_out, None)
    _check_photos(mixture)
    return mixture


def answer_vocabulary(
    examples: Iterable[TrainExample], size: int, least: int = 4
) -> tuple[str, ...]:
    """The most common answers to questions that an image can answer, first the commonest."""
    counts = answer_counts(examples).most_common()
    common = [text for text, n in counts if n >= least and len(text.split()) <= 4]
    return tuple(common[:size])


def answer_counts(examples: Iterable[TrainExample]) -> Counter[str]:
    """Of answers to questions that an image can answer; those of other sources than COCO, which are
    few, count threefold."""
    count: Counter[str] = Counter()
    for example in examples:
        if example.split == "train" and not example.needs_knowledge:
            worth = 1 if example.source == "coco" else 3
            count.update({t: worth for t, s in example.answers.items() if s > 0.5})
    return count


def _read_okvqa(mixture: Mixture, data: Path, held_out: HeldOut, limit: int | None) -> None:
    """With their types, and of some the thing they are about, where files next to them say so."""
    folder = data / "okvqa"
    asked = {
        id: thing
        for id, thing in read_objects(folder).items()
        if normalise(thing.name) not in held_out.names
    }
    fields = {"image": str, "question": str, "answers": dict}
    for name in ("train", "val"):
        types = _types(folder / f"{name}_types.jsonl")
        for number, row in enumerate(_rows(folder / f"{name}.jsonl", fields, limit)):
            if (split := _split(name, row["image"], held_out)) is None:
                continue
            id = row.get("question_id", number)
            span, thing = asked.get(str(id), ("", "")) if name == "train" else ("", "")
            mixture.ask(
                TrainExample(
                    id,
                    row["image"],
                    row["question"],
                    _answers(scored(row["answers"]), split, held_out),
                    type=types.get(str(id)),
                    split=split,
                    source="okvqa",
                    photo=mixture.photo(folder / f"{name}.zip", row["image"]),
                    span=span,
                    thing=thing,
                )
            )


def _types(path: Path) -> dict[str, str]:
    return read_types(path) if path.is_file() else {}


def _read_coco(mixture: Mixture, data: Path, held_out: HeldOut, limit: int | None) -> None:
    """Questions and labels of photos that nothing holds out; a photo is in one of several zips."""
    folder = data / "coco"
    sets = COCO if (folder / COCO[1][0]).is_file() else COCO[:1]
    find = _finder(data / "okvqa" / "train.zip", *(folder / photos for photos, _, _ in sets))

    def photo_of(row: Mapping[str, Any]) -> int | None:
        name = row["image"]
        archive = find(name)
        if archive is None or name in held_out.photos["coco"]:
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
                        held_out.trainable(_soft_scores(row["answers"])),
                        split="held-out" if is_held_out(row["image"]) else "train",
                        source="coco",
                        photo=photo,
                    )
                )
    for _, labels, _ in sets:
        for row in _rows(folder / labels, {"image": str, "labels": list}, limit):
            if not is_held_out(row["image"]) and (photo := photo_of(row)) is not None:
                mixture.labels[photo] = tuple(row["labels"])


def _read_fvqa(mixture: Mixture, data: Path, held_out: HeldOut, limit: int | None) -> None:
    """Each question comes with the fact that supports its answer: a passage for the reader. Its
    type says where the answer is, in the image or in the fact."""
    fields = {"image": str, "question": str, "answer": str, "fact": str, "from": str, "kb": str}
    for name in ("train", "val"):
        archive, path = (data / "fvqa" / f"{name}.{kind}" for kind in ("zip", "jsonl"))
        if not path.is_file():
            continue
        for number, row in enumerate(_rows(path, fields, limit)):
            if (split := _split(name, row["image"], held_out)) is None:
                continue
            mixture.ask(
                TrainExample(
                    row.get("question_id", number),
                    row["image"],
                    row["question"],
                    _answers(scored({row["answer"]: 1.0}), split, held_out),
                    category=row["kb"],
                    type=row["from"],
                    split=split,
                    source="fvqa",
                    photo=mixture.photo(archive, row["image"]),
                    fact=" ".join(row["fact"].split()),
                )
            )


def _split(name: str, image: str, held_out: HeldOut) -> Split | None:
    """Of a photo in `train` or `val`; of one that may not be trained on, none."""
    if name == "val":
        return "val"
    if image in held_out.photos["coco"]:
        return None
    return "held-out" if is_held_out(image) else "train"


def _answers(answers: dict[str, float], split: Split, held_out: HeldOut) -> dict[str, float]:
    """All that people gave are right; to train on, and by later stages to choose by, fewer are."""
    return answers if split == "val" else held_out.trainable(answers)


def _soft_scores(given: Mapping[str, int]) -> dict[str, float]:
    """How many people gave each answer -> how right it is; a single one is right."""
    counts: Counter[str] = Counter()
    for text, count in given.items():
        counts[normalise(text)] += count
    people = sum(counts.values())
    return {t: min(1.0, n / AGREEING) if people > 1 else 1.0 for t, n in counts.items() if t}


def _read_vqav2(mixture: Mixture, data: Path, limit: int | None) -> None:
    fields = {"image": str, "question": str, "answer": str}
    for number, row in enumerate(_rows(data / "vqav2" / "val.jsonl", fields, limit)):
        mixture.ask(
            TrainExample(
                number,
                row["image"],
                row["question"],
                scored({row["answer"]: 1.0}),
                split="val",
                source="vqav2",
                photo=mixture.photo(data / "vqav2" / "val.zip", row["image"]),
            )
        )


def _read_pocket_kb(mixture: Mixture, data: PocketKbData, limit: int | None) -> None:
    mixture.facts = data.distractors
    for name in ("train", "val"):
        for row in data.rows(name, limit):
            photo = mixture.photo(data.folder / "photos.zip", row.example.image)
            example = replace(row.example, photo=photo)
            mixture.ask(example)
            if not row.things or example.source == "unseen":  # no tagger has its name
                continue
            split = cast(Split, example.split)
            train = split == "train"
            (mixture.things if train else mixture.checks.setdefault(split, {}))[photo] = row.things


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
