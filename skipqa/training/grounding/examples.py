"""Questions whose photos say where the thing is that is asked about.

Enters: the mixture of stage I and COCO's boxes. Leaves: questions with the boxes of what they ask
about and those of its rivals, other things of the same kind. Three sources know boxes: Pocket-KB's
composed images; COCO's questions that name one class ("What color is the dog?"); OK-VQA's whose
thing is annotated and is such a class. The first has places and sizes to choose by, the others
have photos in which nothing was pasted. Some questions without a box are kept as well: there the
rule that a grounding begins with has to stay as it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from skipqa.files import check_rows, read_jsonl
from skipqa.language import base_forms, words_of
from skipqa.tasks.pocket_kb import box_from_centre
from skipqa.training.example import TrainExample
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.pocket_kb import Thing
from skipqa.types import Box

BOXES = "coco/boxes.jsonl"
SAME = 1e-4  # how far the sides of one box may be apart in two rows
Boxes = Mapping[str, Mapping[str, tuple[Box, ...]]]  # by photo, by class


@dataclass(frozen=True, slots=True)
class GroundedExample:
    question: str
    photo: int  # a row of the mixture's table
    split: str
    source: str
    boxes: tuple[Box, ...] = ()  # of what is asked about; none where unknown
    rivals: tuple[Box, ...] = ()  # other things of its kind


def read_boxes(data: Path) -> Boxes:
    """COCO's; none where there is no such file."""
    path = data / BOXES
    if not path.is_file():
        return {}
    found: dict[str, dict[str, tuple[Box, ...]]] = {}
    for row in check_rows(str(path), read_jsonl(path), {"image": str, "boxes": list}):
        classes = found.setdefault(row["image"], {})
        for name, *box in row["boxes"]:
            where = f"{path}: {row['image']}"
            classes[name] = (*classes.get(name, ()), box_from_centre(box, where))
    return found


def grounded_examples(
    mixture: Mixture, boxes: Boxes, unboxed: int, seed: int
) -> list[GroundedExample]:
    """All that know a box, and so many others of each source, drawn by the seed. Of `val` only what
    Pocket-KB asks, to report on."""
    shown = mixture.shown()
    found: list[GroundedExample] = []
    others: dict[str, list[GroundedExample]] = {}
    for example in mixture.examples:
        if example.split == "val" and example.box is None:
            continue
        asked, rivals = _asked(example, shown.get(example.photo, ()), boxes)
        one = GroundedExample(
            example.question, example.photo, example.split, example.source, asked, rivals
        )
        (found if asked else others.setdefault(example.source, [])).append(one)
    for source, some in others.items():
        random.Random(f"{seed}/{source}").shuffle(some)
        found += some[:unboxed]
    return found


def _asked(
    example: TrainExample, things: Sequence[Thing], boxes: Boxes
) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
    """The boxes of what is asked about, and of its rivals."""
    if example.box is not None:
        return (example.box,), _rivals(example.box, things)
    if in_photo := boxes.get(example.image):
        named = {example.thing} if example.thing else classes_named(example.question, in_photo)
        if len(named) == 1 and (found := in_photo.get(named.pop())):
            return found, ()
    return (), ()


def _rivals(box: Box, things: Sequence[Thing]) -> tuple[Box, ...]:
    kinds = {thing.kind for thing in things if thing.box and _is_same(thing.box, box)}
    return tuple(
        thing.box
        for thing in things
        if thing.box and thing.kind in kinds and not _is_same(thing.box, box)
    )


def _is_same(one: Box, other: Box) -> bool:
    return all(abs(a - b) < SAME for a, b in zip(one, other, strict=True))


def classes_named(question: str, classes: Iterable[str]) -> set[str]:
    """Those of the classes that the question names, in the singular or the plural; of "dog" and
    "hot dog" the longer."""
    words = words_of(question)
    found: dict[str, int] = {}
    for name in classes:
        parts = name.split()
        for start in range(len(words) - len(parts) + 1):
            said = words[start : start + len(parts)]
            if said[:-1] == parts[:-1] and parts[-1] in base_forms(said[-1]):
                found[name] = len(parts)
    return {n for n in found if not any(n != o and n in o.split() for o in found)}
