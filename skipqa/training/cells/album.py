"""What scenes are made of: things to paste, photos to paste them onto, photos with boxes.

Enters: the mixture of stage I, COCO's boxes, the tagger's names. Leaves: an `Album` per split. Of
the split to train on are the photos whose labels stage I trains on; of the held-out one the things
that stage I scores by and COCO's held-out photos. What Pocket-KB holds out is in neither, as it is
not in the mixture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from skipqa.data.held_out import is_held_out
from skipqa.nn.tagger import TaggerConfig
from skipqa.training.grounding.examples import Boxes
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.photos import WHOLE
from skipqa.training.stage1.pocket_kb import Thing
from skipqa.training.stage1.tagger import HIDDEN
from skipqa.types import Box

Name = tuple[str, str]  # kind, name; COCO's classes have no kind
SMALLEST = 0.12  # of the photo's side: what is smaller is too blurred to be pasted
OF_COCO = 0.3  # of what is pasted


class Piece(NamedTuple):
    """A photo, or a part of one, that shows a single thing."""

    photo: int
    box: Box
    name: int


@dataclass(frozen=True, slots=True)
class BoxedPhoto:
    photo: int
    boxes: tuple[Box, ...]
    names: tuple[int, ...]  # of each box
    # What else it may show anywhere; None where nobody knows
    unboxed: frozenset[int] | None


@dataclass(frozen=True)
class Album:
    names: tuple[Name, ...]
    pieces: tuple[Piece, ...]
    grounds: Mapping[int, frozenset[int]]  # photos of no entity, and what they may show
    boxed: tuple[BoxedPhoto, ...]  # of COCO
    pasted: tuple[BoxedPhoto, ...]  # of Pocket-KB

    @cached_property
    def odds(self) -> Tensor:
        """Of each piece to be drawn: all entities alike, and all of COCO's classes."""
        count = torch.bincount(self.piece_names, minlength=len(self.names)).clamp(min=1)
        of_coco = torch.tensor([not kind for kind, _ in self.names])
        factor = torch.where(of_coco, OF_COCO / of_coco.sum(), (1 - OF_COCO) / (~of_coco).sum())
        return (factor / count)[self.piece_names]

    @cached_property
    def piece_names(self) -> Tensor:
        return torch.tensor([piece.name for piece in self.pieces])

    @property
    def photos(self) -> set[int]:
        shown = {one.photo for one in (*self.boxed, *self.pasted)}
        return shown.union(self.grounds, (piece.photo for piece in self.pieces))


def names_of(mixture: Mixture, boxes: Boxes, tagger: TaggerConfig) -> tuple[Name, ...]:
    """Those of the tagger's that training photos show alone or in a box."""
    shown: set[Name] = {(one.kind, one.name) for some in mixture.things.values() for one in some}
    of_row = _names_of_photos(mixture)
    shown |= {("", name) for photo in mixture.labels for name in boxes.get(of_row[photo], ())}
    return tuple(one for one in zip(tagger.kinds, tagger.names, strict=True) if one in shown)


def train_album(mixture: Mixture, boxes: Boxes, names: Sequence[Name]) -> Album:
    place, of_row = _places(names), _names_of_photos(mixture)
    boxed = [
        _boxed(photo, boxes[of_row[photo]], place, labels)
        for photo, labels in mixture.labels.items()
        if of_row[photo] in boxes
    ]
    grounds = {
        photo: _may_show(labels, place)
        for photo, labels in mixture.labels.items()
        if photo not in mixture.things
    }
    return _album(names, mixture.things, boxed, grounds)


def held_out_album(mixture: Mixture, boxes: Boxes, names: Sequence[Name]) -> Album:
    """COCO's labels of these photos are not in the mixture: boxes say what they may show. Photos
    that `val` asks about are no part of it, as it decides what ships."""
    place = _places(names)
    elsewhere = mixture.labels.keys() | {e.photo for e in mixture.examples if e.split == "val"}
    boxed = [
        _boxed(photo, boxes[name], place, ())
        for (_, name), photo in mixture.photos.items()
        if name in boxes and is_held_out(name) and photo not in elsewhere
    ]
    grounds = {one.photo: _may_show([names[i][1] for i in one.names], place) for one in boxed}
    return _album(names, mixture.checks.get("held-out", {}), boxed, grounds)


def crowded(things: Mapping[int, tuple[Thing, ...]], names: Sequence[Name]) -> list[BoxedPhoto]:
    """Pocket-KB's photos of several things, those of them that have a name here."""
    place = _places(names)
    found = (_pasted(photo, some, place) for photo, some in things.items() if len(some) > 1)
    return [one for one in found if one.boxes]


def _album(
    names: Sequence[Name],
    things: Mapping[int, tuple[Thing, ...]],
    boxed: Iterable[BoxedPhoto],
    grounds: Mapping[int, frozenset[int]],
) -> Album:
    place, boxed = _places(names), tuple(one for one in boxed if one.boxes)
    pieces = [
        Piece(photo, one.box or WHOLE, place[one.kind, one.name])
        for photo, some in things.items()
        for one in some
        if (one.kind, one.name) in place
    ]
    pieces += [
        Piece(one.photo, box, name)
        for one in boxed
        for box, name in zip(one.boxes, one.names, strict=True)
    ]
    pasted = (_pasted(photo, some, place) for photo, some in things.items())
    return Album(
        tuple(names),
        tuple(piece for piece in pieces if min(_sides(piece.box)) >= SMALLEST),
        grounds,
        boxed,
        tuple(one for one in pasted if one.boxes),
    )


def _boxed(
    photo: int,
    boxes: Mapping[str, tuple[Box, ...]],
    place: Mapping[Name, int],
    labels: Collection[str],
) -> BoxedPhoto:
    """Of a class with boxes, all are known."""
    known = ((place["", name], some) for name, some in boxes.items() if ("", name) in place)
    found = [(box, name) for name, some in known for box in some]
    unboxed = _may_show(set(labels).difference(boxes), place)
    return BoxedPhoto(
        photo, tuple(box for box, _ in found), tuple(name for _, name in found), unboxed
    )


def _may_show(labels: Collection[str], place: Mapping[Name, int]) -> frozenset[int]:
    """COCO's classes that a photo shows, and the entities that may hide behind their names."""
    kinds = {kind for kind, hiding in HIDDEN.items() if not hiding.isdisjoint(labels)}
    return frozenset(
        i for (kind, name), i in place.items() if (kind in kinds if kind else name in labels)
    )


def _pasted(photo: int, things: Iterable[Thing], place: Mapping[Name, int]) -> BoxedPhoto:
    """Nobody knows what else it shows, as it is not said which photo is behind."""
    found = [
        (one.box, place[one.kind, one.name])
        for one in things
        if one.box is not None and (one.kind, one.name) in place
    ]
    boxes, names = tuple(box for box, _ in found), tuple(name for _, name in found)
    return BoxedPhoto(photo, boxes, names, None)


def _places(names: Sequence[Name]) -> dict[Name, int]:
    return {name: i for i, name in enumerate(names)}


def _names_of_photos(mixture: Mixture) -> dict[int, str]:
    return {photo: name for (_, name), photo in mixture.photos.items()}


def _sides(box: Box) -> tuple[float, float]:
    left, top, right, bottom = box
    return right - left, bottom - top
