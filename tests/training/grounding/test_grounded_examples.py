"""Which boxes a question is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipqa.errors import UserError
from skipqa.training.example import TrainExample
from skipqa.training.grounding.examples import (
    classes_named,
    grounded_examples,
    read_boxes,
)
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.pocket_kb import Thing

CLASSES = ("dog", "hot dog", "person", "knife", "traffic light", "bus")
LEFT, RIGHT, TOP = (0.0, 0.4, 0.2, 0.6), (0.7, 0.4, 0.9, 0.6), (0.4, 0.0, 0.6, 0.2)


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("What color is the dog?", {"dog"}),
        ("Who is eating the hot dogs?", {"hot dog"}),
        ("How many people are there?", {"person"}),
        ("Are these knives sharp?", {"knife"}),
        ("Is the traffic light red?", {"traffic light"}),
        ("Is the light red?", set()),
        ("Is a dog in the bus?", {"dog", "bus"}),
        ("What is this?", set()),
    ],
)
def test_classes_named(question: str, named: set[str]) -> None:
    assert classes_named(question, CLASSES) == named


def example(question: str, source: str, **more: object) -> TrainExample:
    fields = {"split": "train", "photo": 0} | more
    return TrainExample(1, "a.webp", question, {"x": 1.0}, source=source, **fields)  # type: ignore[arg-type]


def test_rivals_are_the_others_of_the_kind() -> None:
    mixture = Mixture([example("the dog on the left?", "crowded", box=LEFT)])
    mixture.things[0] = (
        Thing("dog", "beagle", LEFT),
        Thing("dog", "pug", RIGHT),
        Thing("cat", "birman", TOP),
    )
    [found] = grounded_examples(mixture, {}, 0, 0)
    assert (found.boxes, found.rivals) == ((LEFT,), (RIGHT,))


def test_a_class_that_is_named_and_boxed_is_what_is_asked_about() -> None:
    boxes = {"a.webp": {"dog": (LEFT, RIGHT), "bus": (TOP,)}}
    mixture = Mixture(
        [
            example("What do dogs eat?", "coco"),
            example("Is the dog in the bus?", "coco"),  # two are named
            example("What do these eat?", "okvqa", thing="dog"),
            example("What do these eat?", "okvqa"),
        ]
    )
    found = grounded_examples(mixture, boxes, 10, 0)
    assert [one.boxes for one in found] == [(LEFT, RIGHT), (LEFT, RIGHT), (), ()]


def test_no_question_of_val_is_trained_on_or_drawn() -> None:
    mixture = Mixture(
        [example("Why?", "okvqa", split="val"), example("Which?", "crowded", split="val", box=TOP)]
    )
    [found] = grounded_examples(mixture, {}, 10, 0)
    assert (found.source, found.split) == ("crowded", "val")


def test_boxes_are_read(tmp_path: Path) -> None:
    assert read_boxes(tmp_path) == {}
    (tmp_path / "coco").mkdir()
    path = tmp_path / "coco" / "boxes.jsonl"
    path.write_text('{"image": "a.webp", "boxes": [["dog", 0.5, 0.5, 0.2, 0.4]]}\n')
    [box] = read_boxes(tmp_path)["a.webp"]["dog"]
    assert box == pytest.approx((0.4, 0.3, 0.6, 0.7))
    path.write_text('{"image": "a.webp", "boxes": [["dog", 0.5]]}\n')
    with pytest.raises(UserError, match="four numbers"):
        read_boxes(tmp_path)
