"""Pocket-KB as stage I reads it: questions, what their photos show, and what is never trained on.

Enters: a folder that `skipqa data pocket-kb` built. Leaves: rows of `train` and `val` as examples
with the things in each image, and `HeldOut`, which other data sets ask, too: photos of `val` and
everything about unseen entities. A row of `train` that is not apart from these is an error. The
table of photos is not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skipqa.data.held_out import Split, photos_of_val, pocket_kb_split, read_unseen
from skipqa.errors import UserError
from skipqa.files import check_rows, read_jsonl
from skipqa.knowledge.photos import SHOWN_AS
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.pocket_kb import box_from_centre, things_shown
from skipqa.training.example import TrainExample
from skipqa.types import Box

# What Pocket-KB calls a kind, and what people call it; other kinds are the encoder's own classes
KINDS = {kind: SHOWN_AS.get(kind, kind) for kind in ("dog", "cat", "flower", "grocery", "country")}
# A country is the answer to many questions that show no flag: its name stays an answer
NAMED_BY_SIGHT = frozenset(KINDS) - {"country"}


@dataclass(frozen=True, slots=True)
class Thing:
    """A breed, flower, product or flag that a photo shows."""

    kind: str  # dog, cat, flower, food or flag
    name: str  # in lower case
    box: Box | None = None  # none where the photo is of that thing alone


@dataclass(frozen=True, slots=True)
class PocketKbRow:
    example: TrainExample  # its photo is not set yet
    things: tuple[Thing, ...]  # all that a crowded image shows, the one of another, or none


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What Pocket-KB keeps out of all training; without it, nothing."""

    photos: Mapping[str, frozenset[str]]  # by the collection they come from
    entities: frozenset[str] = frozenset()  # the unseen ones
    names: frozenset[str] = frozenset()  # of those that are named by sight, as answers
    passages: frozenset[str] = frozenset()  # about unseen entities

    @staticmethod
    def of(folder: Path | None) -> HeldOut:
        photos = photos_of_val(folder)
        if folder is None:
            return HeldOut(photos)
        fields = {"entity": str, "name": str, "names": list, "kind": str, "passages": list}
        rows = read_unseen(folder, fields)
        return HeldOut(
            photos,
            frozenset(row["entity"] for row in rows),
            frozenset(name for row in rows for name in _own_names(row)),
            frozenset(id for row in rows for id in row["passages"]),
        )

    def trainable(self, answers: Mapping[str, float]) -> dict[str, float]:
        """Without those that name an unseen entity: whoever gives one, the image shows it."""
        return {text: score for text, score in answers.items() if text not in self.names}

    def source_of(self, row: Mapping[str, Any]) -> str:
        """Groups of their own, so that the numbers of the rest stay comparable."""
        if row.get("entity") in self.entities:
            return "unseen"
        return "crowded" if row.get("things") else "pocket-kb"

    def check_apart(self, where: str, row: Mapping[str, Any]) -> None:
        """Of a row to train on: neither a photo nor an entity in it is held out."""
        shown = things_shown(row, where)
        for source in (row.get("photo"), row.get("background"), *(thing.photo for thing in shown)):
            kind, _, name = (source or "").partition("/")
            if name in self.photos.get(kind, ()):
                raise UserError(f"{where} trains on {source}, which held_out.json holds out")
        for entity in (row["entity"], *(thing.entity for thing in shown)):
            if entity in self.entities:
                raise UserError(f"{where} trains on {entity}, which unseen.json holds out")


@dataclass(frozen=True, slots=True)
class PocketKbData:
    folder: Path
    held_out: HeldOut
    passages: Mapping[str, str] = field(repr=False)  # those that state answers, by id

    @staticmethod
    def of(folder: Path, held_out: HeldOut) -> PocketKbData:
        path = folder / "gold.jsonl"
        gold = check_rows(str(path), read_jsonl(path), {"id": str, "text": str})
        passages = {row["id"]: " ".join(row["text"].split()) for row in gold}
        return PocketKbData(folder, held_out, passages)

    @property
    def distractors(self) -> dict[str, str]:
        """Passages that may be read where they are not needed: those about seen entities."""
        unseen = self.held_out.passages
        return {id: text for id, text in self.passages.items() if id not in unseen}

    def rows(self, name: str, limit: int | None) -> Iterator[PocketKbRow]:
        """`limit` of each source."""
        path = self.folder / f"{name}.jsonl"
        fields = {"image": str, "question": str, "answers": dict, "hops": list, "entity": str}
        found: Counter[str] = Counter()
        rows = check_rows(str(path), read_jsonl(path), fields | {"name": str})
        for number, row in enumerate(rows):
            source = self.held_out.source_of(row)
            found[source] += 1
            if limit is None or found[source] <= limit:
                yield self._row({"question_id": number} | row, f"{path} row {number}", name)

    def _row(self, row: Mapping[str, Any], where: str, name: str) -> PocketKbRow:
        split: Split = "val"
        if name == "train":
            self.held_out.check_apart(where, row)
            split = pocket_kb_split(row)
        box = box_from_centre(row["box"], where) if row.get("box") else None
        example = TrainExample(
            row["question_id"],
            row["image"],
            row["question"],
            scored(row["answers"]),
            category=f"{row.get('category')}, {row.get('relation')}",
            box=box,
            split=split,
            source=self.held_out.source_of(row),
            hops=tuple(tuple(map(self._passage, hop)) for hop in row["hops"]),
        )
        return PocketKbRow(example, _things(row, where, box))

    def _passage(self, id: str) -> str:
        try:
            return self.passages[id]
        except KeyError:
            raise UserError(f"{self.folder / 'gold.jsonl'} lacks the passage {id!r}") from None


def scored(answers: Mapping[str, float]) -> dict[str, float]:
    """In the form that is compared; "a", as of vitamins, is an article there and leaves nothing."""
    found = {normalise(text): float(score) for text, score in answers.items() if score > 0}
    return {text: score for text, score in found.items() if text}


def _things(row: Mapping[str, Any], where: str, box: Box | None) -> tuple[Thing, ...]:
    if shown := things_shown(row, where):
        return tuple(Thing(KINDS[one.kind], one.name.lower(), one.box) for one in shown)
    kind = row["entity"].partition(":")[0]
    return (Thing(KINDS[kind], row["name"].lower(), box),) if kind in KINDS else ()


def _own_names(row: Mapping[str, Any]) -> list[str]:
    """Its usual name and longer forms of it: "siamese", "siamese cat". Its other names, such as
    "milk", may be those of seen things."""
    own, *names = (normalise(name) for name in (row["name"], *row["names"]))
    if row["kind"] not in NAMED_BY_SIGHT:
        return []
    return [name for name in (own, *names) if f" {own} " in f" {name} "]
