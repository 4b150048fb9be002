"""Pictures of several things over the drawn world: what is asked, shown and kept out."""

from __future__ import annotations

import zipfile
from collections import Counter
from io import BytesIO
from itertools import combinations

import pytest
from drawn_world import PICTURES, World
from PIL import Image

from skipqa.data.crowds import SIDE
from skipqa.data.held_out import is_fresh, pocket_kb_split
from skipqa.data.pocket_kb.checks import check
from skipqa.data.pocket_kb.corpus import Corpus
from skipqa.data.pocket_kb.facts import Entity, Fact
from skipqa.tasks import TASKS
from skipqa.tasks.pocket_kb import things_shown


def test_every_picture_has_two_questions_about_different_things(world: World) -> None:
    by_image: dict[str, list[str]] = {}
    for row in world.crowded():
        by_image.setdefault(row["image"], []).append(row["entity"])
    assert len(by_image) > 0.7 * sum(PICTURES.values())  # this world is too small for some
    assert all(len(asked) == len(set(asked)) == 2 for asked in by_image.values())


def test_all_ways_of_asking_are_there(world: World) -> None:
    found = Counter(row["asked_by"] for row in world.crowded())
    assert set(found) == {"kind", "place", "size", "colour"}
    for row in world.crowded():
        alike = [thing for thing in row["things"] if thing["kind"] == row["category"]]
        assert row["distractors"] == len(alike) - 1
        assert (row["asked_by"] == "kind") == (len(alike) == 1)
        assert 2 <= len(row["things"]) <= 6
        (asked,) = (thing for thing in row["things"] if thing["entity"] == row["entity"])
        assert asked["box"] == row["box"]
        assert asked["photo"] == row["photo"]


def test_nothing_overlaps_and_nothing_is_too_small_or_large(world: World) -> None:
    for row in world.crowded():
        assert all(0.12 <= thing["size"] <= 0.4 for thing in row["things"])
        for one, two in combinations((thing["box"] for thing in row["things"]), 2):
            assert any(abs(one[i] - two[i]) >= (one[i + 2] + two[i + 2]) / 2 for i in (0, 1))


def test_pictures_are_square(world: World) -> None:
    with zipfile.ZipFile(world.built / "photos.zip") as archive:
        for row in world.crowded()[:10]:
            assert Image.open(BytesIO(archive.read(row["image"]))).size == (SIDE, SIDE)


def test_only_val_has_new_wordings(world: World) -> None:
    new = Counter((row["split"], row["new_wording"]) for row in world.crowded())
    assert not new["train", True]
    assert new["val", True]
    assert new["val", False]


def test_photos_of_a_picture_are_on_one_side(world: World) -> None:
    """As training reads the rows: the asked thing decides, and both questions agree."""
    sides: dict[str, set[tuple[str, bool]]] = {}
    for row in world.crowded():
        if row["split"] == "train":
            side = pocket_kb_split(row)
            fresh = side == "held-out" and is_fresh(row["photo"])
            sides.setdefault(row["image"], set()).add((side, fresh))
            for thing in row["things"]:
                assert pocket_kb_split(row | {"photo": thing["photo"]}) == side
    assert all(len(found) == 1 for found in sides.values())


def test_no_unseen_entity_is_trained_on(world: World) -> None:
    unseen = {row["entity"] for row in world.read("unseen.json")}
    kinds = Counter(key.partition(":")[0] for key in unseen)
    assert kinds == {"dog": 1, "cat": 1, "flower": 1, "grocery": 1}
    photos = {
        f"entities/{row['image']}"
        for row in world.photos()
        if f"{row['domain']}/{row['label']}" in world.labels_of(unseen)
    }
    assert photos
    for row in world.rows("train"):
        shown = {row["entity"], *(thing["entity"] for thing in row.get("things", ()))}
        assert not shown & unseen
        assert row["photo"] not in photos
    held_out = world.read("held_out.json")
    assert {name.removeprefix("entities/") for name in photos} <= set(held_out["entities"])
    val = world.rows("val")
    assert {row["entity"] for row in val if "unseen" in row["subset"]} == unseen
    assert any({"unseen", "crowded"} <= set(row["subset"]) for row in val)
    assert all(("unseen" in row["subset"]) == (row["entity"] in unseen) for row in val)


def test_the_gallery_is_complete_and_asked_about_by_nothing(world: World) -> None:
    gallery = world.read("gallery.jsonl")
    asked = {row["entity"] for row in world.rows()}
    named = {row["entity"] for row in gallery}
    assert {key for key in asked if not key.startswith(("class:", "coco:"))} == named
    assert {row["entity"] for row in gallery if row["unseen"]} == {
        row["entity"] for row in world.read("unseen.json")
    }
    used = {row["image"] for row in world.rows()}
    sources = {name for row in world.rows() for name in (row["photo"], row["background"])}
    with zipfile.ZipFile(world.built / "photos.zip") as archive:
        for row in gallery:
            assert row["image"] not in used
            assert row["photo"].startswith("flags/") or row["photo"] not in sources
            assert Image.open(BytesIO(archive.read(row["image"]))).format == "WEBP"


def test_the_task_reads_what_is_shown(world: World) -> None:
    examples = [e for e in TASKS["pocket-kb"].load(world.built, "val") if "crowded" in e.subsets]
    assert examples
    for example in examples:
        things = things_shown(example.record)
        (asked,) = (one for one in things if one.entity == example.record["entity"])
        assert asked.box == example.box


def entity(key: str, *answers: str) -> Entity:
    return Entity(key, "dog", "dog", (key,), (Fact("origin", answers, (("p",),)),))


def crowded_row() -> dict[str, object]:
    things = [
        {"entity": "dog:a", "kind": "dog", "box": [0.2, 0.5, 0.2, 0.2], "card": None, "photo": "a"},
        {"entity": "dog:b", "kind": "dog", "box": [0.8, 0.5, 0.2, 0.2], "card": None, "photo": "b"},
    ]
    return {
        "split": "train",
        "photo": "a",
        "background": None,
        "hops": [["p"]],
        "gold": ["p"],
        "answers": {"france": 1.0},
        "bridge": "",
        "subset": ["crowded"],
        "entity": "dog:a",
        "box": [0.2, 0.5, 0.2, 0.2],
        "category": "dog",
        "relation": "origin",
        "things": things,
        "asked_by": "place",
        "distractors": 1,
    }


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ({}, "france"),  # the wrong dog would be right
        ({"asked_by": "size"}, "spain"),
        ({"distractors": 0}, "spain"),
        ({"box": [0.8, 0.5, 0.2, 0.2]}, "spain"),
        ({"entity": "dog:unseen"}, "spain"),
    ],
)
def test_a_row_that_breaks_the_rules_is_found(change: dict[str, object], other: str) -> None:
    corpus = Corpus(texts={"p": "a dog from France"})
    entities = {"dog:a": entity("dog:a", "france"), "dog:b": entity("dog:b", "spain")}
    check([crowded_row()], corpus, entities, ["dog:unseen"], [])
    entities["dog:b"] = entity("dog:b", other)
    with pytest.raises((AssertionError, ValueError)):
        check([crowded_row() | change], corpus, entities, ["dog:unseen"], [])
