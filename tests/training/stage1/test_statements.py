"""What ConceptNet says of labels: what can be asked about, and of what else it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_training

from skipqa.knowledge import Library
from skipqa.training.retrieval.corpora import FOUND_IN
from skipqa.training.stage1 import statements
from skipqa.training.stage1.statements import BEST, Statement, Statements, read


def said(folder: Path, *texts: tuple[str, str], name: str = "conceptnet") -> Statements:
    """Of all titles, and of a label without a passage."""
    index = tiny_training.write_passages(folder / name, texts)
    return read(Library.open([index]), [*(title for title, _ in texts), "surfboard"])


def of_oven(folder: Path, text: str) -> list[str]:
    return [one.predicate for one in said(folder, ("oven", text)).of_label.get("oven", ())]


def test_sentences_are_taken_apart(tmp_path: Path) -> None:
    text = (
        "An oven is used for baking a cake. You can find an oven in a kitchen. An oven can roast."
    )
    found = said(tmp_path, ("oven", text))
    assert found.of_label.keys() == {"oven"}
    baking, place, roast = found.of_label["oven"]
    sentence = "An oven is used for baking a cake."
    assert baking == Statement(sentence, "is used for", "is used for baking a cake")
    assert (baking.other, baking.answer) == ("baking a cake", "baking cake")
    assert (place.between, place.other, place.answer) == (FOUND_IN, "in a kitchen", "kitchen")
    assert (roast.other, roast.answer) == ("roast", "roast")


@pytest.mark.parametrize(
    "sentence",
    [
        "You can find a cake in an oven.",  # about a cake
        "An oven rack is made of steel.",
        "An oven has 2 doors.",
        "An oven can do many things.",  # vague
        "An oven is used for fun.",
        "An oven can kill a witch.",
        "An oven is part of an oven range.",  # tells the answer
        "An oven is used for cooking food therefore find it in all the restaurants around there.",
        "An oven is used for roast turkey.",  # base forms in a row
        "An oven is device heat food.",
        "An oven can be designed heat food.",
        "An oven is a breadbox.",  # said of nothing else
        "An oven requires heat.",
    ],
)
def test_what_cannot_be_asked_is_left_out(tmp_path: Path, sentence: str) -> None:
    assert of_oven(tmp_path, f"{sentence} An oven can roast.") == ["can roast"]


def test_what_several_things_are_is_a_kind(tmp_path: Path) -> None:
    oven = ("oven", "An oven is a kitchen appliance. An oven is hot. An oven is a bake chamber.")
    toaster = ("toaster", "A toaster is an appliance. A toaster is hot.")
    found = said(tmp_path, oven, toaster).of_label
    assert [one.predicate for one in found["oven"]] == ["is a kitchen appliance", "is hot"]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("You can find an oven in a live room.", "can be found in a living room"),
        ("You can find an oven in a table.", "can be found on a table"),
        ("You can find an oven in Park.", "can be found in a park"),
        ("An oven has a leave.", "has leaves"),
        ("An oven is used for travelinging.", "is used for traveling"),
        ("An oven is used for bringing a clothe.", "is used for bringing clothes"),
    ],
)
def test_base_forms_become_words(tmp_path: Path, sentence: str, expected: str) -> None:
    assert of_oven(tmp_path, sentence) == [expected]


def test_the_best_are_kept(tmp_path: Path) -> None:
    letters = [f"{a}{b}zz" for a in "bcdfg" for b in "bcdfghj"]
    text = " ".join(f"An oven can {word}." for word in letters)
    assert of_oven(tmp_path, text) == [f"can {word}" for word in letters[:BEST]]


def test_the_same_is_said_in_other_words(tmp_path: Path) -> None:
    """By a sentence that says as much or more, in any form of the words."""
    found = said(
        tmp_path,
        ("oven", "An oven is used for cooking. An oven is used for cooking a pizza."),
        ("microwave", "A microwave can cook food."),
        ("pizza", "A pizza has cheese."),
    ).same_of
    assert found["is used for cooking"] == {"oven", "microwave"}
    assert found["is used for cooking a pizza"] == {"oven"}
    assert found["can cook food"] == {"microwave"}
    assert found["has cheese"] == {"pizza"}


def test_a_label_is_what_it_is_called(tmp_path: Path) -> None:
    """A bench is a chair, but so is a chair, of which nothing is known."""
    index = tiny_training.write_passages(
        tmp_path / "conceptnet", [("bench", "A bench is a chair."), ("bed", "A bed is a chair.")]
    )
    found = read(Library.open([index]), ["bench", "bed", "chair"])
    assert found.same_of["is a chair"] == {"bench", "bed", "chair"}


def test_some_labels_have_other_titles(tmp_path: Path) -> None:
    texts = [("computer mouse", "A computer mouse has a button."), ("mouse", "A mouse has fur.")]
    index = tiny_training.write_passages(tmp_path / "conceptnet", texts)
    found = read(Library.open([index]), ["mouse"]).of_label
    assert [one.predicate for one in found["mouse"]] == ["has a button"]
    assert len(set(statements.TITLES.values())) == len(statements.TITLES)


def test_only_conceptnet_is_read(tmp_path: Path) -> None:
    oven = ("oven", "An oven can roast.")
    assert said(tmp_path, oven, name="notes") == Statements({}, {})
