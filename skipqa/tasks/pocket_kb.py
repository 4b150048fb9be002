"""Pocket-KB: knowledge questions about breeds, flowers, groceries and flags, as `skipqa data
pocket-kb` builds it.

A row is a line of `jsonl.py` that also says where the thing asked about is and, in a crowded
picture, what else is shown where. On disk a box is its centre and its size; here it becomes a `Box`
like any other, and nobody else converts it. The score is the one that a row gives to an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipqa.errors import UserError
from skipqa.files import check_rows, read_jsonl, write_json, write_jsonl
from skipqa.tasks import jsonl
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.task import require_split

if TYPE_CHECKING:
    from skipqa.types import Box


class PocketKb(jsonl.JsonLines):
    name = "pocket-kb"
    title = "Pocket-KB"
    splits = ("train", "val")
    default_split = "val"

    def files(self, folder: Path, split: str) -> tuple[Path]:
        return (folder / f"{split}.jsonl",)

    def images(self, folder: Path, split: str) -> Path:
        return folder / "photos.zip"

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        require_split(self.name, split, self.splits)
        (path,) = self.files(folder, split)
        if not path.is_file():
            raise UserError(
                f"{path} does not exist: build it with `skipqa data pocket-kb --out {folder}` "
                "or set the folder that holds it"
            )
        rows = check_rows(str(path), read_jsonl(path), jsonl.FIELDS)
        return [self._example(row, f"{path} row {n}", split) for n, row in enumerate(rows)]

    def _example(self, row: Mapping[str, Any], where: str, split: str) -> Example:
        example = jsonl.example_of(row, where)
        box = row.get("box")
        return replace(
            example,
            name=row.get("name"),
            box=None if box is None else box_from_centre(box, where),
            split=split,
            source=self.name,
        )

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        write_jsonl(self.files(folder, split)[0], (e.record for e in examples))

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        write_json(path, dict(predictions))


@dataclass(frozen=True, slots=True)
class Thing:
    """One of the things that a crowded picture shows."""

    entity: str
    name: str
    kind: str
    box: Box
    photo: str  # where it comes from, as `held_out.json` names it after its collection


def things_shown(row: Mapping[str, Any], where: str = "row") -> tuple[Thing, ...]:
    """Everything in a crowded picture; nothing for rows that show one thing or a scene."""
    fields = dict.fromkeys(("entity", "name", "kind", "photo"), str)
    things = check_rows(f"{where}: things", row.get("things", []), fields)
    return tuple(
        Thing(
            one["entity"],
            one["name"],
            one["kind"],
            box_from_centre(one.get("box"), where),
            one["photo"],
        )
        for one in things
    )


def box_from_centre(box: Any, where: str = "box") -> Box:
    """Left, top, right, bottom of a box given as the middle of it, across and down, its width
    and its height; all are fractions of the image."""
    if (
        not isinstance(box, list | tuple)
        or len(box) != 4
        or not all(isinstance(number, int | float) for number in box)
    ):
        raise UserError(f"{where}: a box is its centre and its size, four numbers")
    x, y, width, height = box
    left, top = x - width / 2, y - height / 2
    return left, top, left + width, top + height


POCKET_KB = PocketKb()
