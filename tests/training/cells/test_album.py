"""What scenes are made of, and what never is."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_training

from skipqa.data.held_out import is_held_out
from skipqa.nn.tagger import TaggerConfig
from skipqa.training.cells.album import (
    OF_COCO,
    SMALLEST,
    Album,
    crowded,
    held_out_album,
    names_of,
    train_album,
)
from skipqa.training.grounding.examples import Boxes
from skipqa.training.stage1 import mixture
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.photos import WHOLE
from skipqa.training.stage1.pocket_kb import Thing

CENTRE, TINY, TOP = (0.3, 0.3, 0.7, 0.7), (0.1, 0.1, 0.15, 0.9), (0.4, 0.0, 0.6, 0.2)
NAMES = (("", "cup"), ("", "dog"), ("dog", "pug"))


def small() -> Mixture:
    return Mixture(
        photos={(Path("z"), name): row for row, name in enumerate("abcde")},
        labels={0: ("cup", "dog", "clock"), 1: ("cup",)},
        things={2: (Thing("dog", "pug"),), 3: (Thing("dog", "pug", CENTRE), Thing("cat", "manx"))},
    )


def test_pieces_grounds_and_boxes() -> None:
    boxes: Boxes = {"a": {"cup": (CENTRE, TINY)}, "b": {"boat": (CENTRE,)}}
    album = train_album(small(), boxes, NAMES)
    assert album.pieces == ((2, WHOLE, 2), (3, CENTRE, 2), (0, CENTRE, 0))  # the tiny one is not
    assert album.grounds == {0: {0, 1, 2}, 1: {0}}  # the dog may be a pug
    [boxed] = album.boxed  # a photo whose boxes have no name here is only a ground
    assert (boxed.photo, boxed.boxes, boxed.names) == (0, (CENTRE, TINY), (0, 0))
    assert boxed.unboxed == {1, 2}  # all cups are boxed, the dog may be anywhere
    [pasted] = album.pasted
    assert (pasted.photo, pasted.names, pasted.unboxed) == (3, (2,), None)
    assert album.photos == {0, 1, 2, 3}
    assert TINY[2] - TINY[0] < SMALLEST


def test_every_name_is_drawn_as_often() -> None:
    odds = train_album(small(), {"a": {"cup": (CENTRE,), "dog": (TOP,)}}, NAMES).odds
    assert odds.tolist() == pytest.approx([(1 - OF_COCO) / 2] * 2 + [OF_COCO / 2] * 2)


def test_names_are_those_of_the_tagger_that_photos_show() -> None:
    tagger = TaggerConfig(("boat", "cup", "sky", "pug", "manx", "poodle"), ("",) * 3 + ("dog", "cat", "dog"))  # fmt: skip  # noqa: E501
    boxes = {"a": {"cup": (CENTRE,)}, "e": {"boat": (CENTRE,)}}  # nobody trains on the last photo
    assert names_of(small(), boxes, tagger) == (("", "cup"), ("dog", "pug"), ("cat", "manx"))


def test_crowds_are_photos_of_several_things() -> None:
    things = {
        1: (Thing("dog", "pug", CENTRE),),
        2: (Thing("dog", "pug", CENTRE), Thing("", "x", TOP)),
    }
    [found] = crowded(things, NAMES)
    assert (found.photo, found.boxes, found.names) == (2, (CENTRE,), (2,))


def test_nothing_that_is_held_out_is_trained_on(data: Path, pocket_kb: Path) -> None:
    whole = mixture.read(data, tiny_training.add_crowded(pocket_kb))
    boxes = {name: {"disk": (CENTRE,)} for _, name in whole.photos}
    kinds = {(one.kind, one.name) for some in whole.shown().values() for one in some}
    names = [("", "disk"), *sorted(kinds)]
    train, held_out = (make(whole, boxes, names) for make in (train_album, held_out_album))
    assert not train.photos & held_out.photos
    name_of = {row: (archive, name) for (archive, name), row in whole.photos.items()}

    def coco(album: Album) -> set[str]:
        return {name_of[row][1] for row in album.grounds}

    assert coco(train)
    assert coco(held_out)
    assert not any(map(is_held_out, coco(train)))
    assert all(map(is_held_out, coco(held_out)))
    of_val = {"000000000200.webp", "000000000003.webp"}
    assert not of_val & (coco(train) | coco(held_out))
    assert not any("/val" in name_of[row][1] for row in train.photos)
    asked_in_val = {one.photo for one in whole.examples if one.split == "val"}
    assert any(is_held_out(name_of[row][1]) for row in asked_in_val)
    assert not asked_in_val & (train.photos | held_out.photos)
    tagger = TaggerConfig(tuple(n for _, n in names), tuple(k for k, _ in names))
    assert ("dog", "collie") not in names_of(whole, boxes, tagger)  # unseen
