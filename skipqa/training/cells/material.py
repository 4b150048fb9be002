"""What a cell tagger learns from and is scored by, with its pixels on the device of training.

Enters: the mixture of stage I, COCO's boxes, names. Leaves: an album per split, Pocket-KB's crowded
photos to score by, and scenes of what is held out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from skipqa.assets import Report
from skipqa.backbones.device import chosen_device
from skipqa.errors import UserError
from skipqa.training.cells.album import (
    Album,
    BoxedPhoto,
    Name,
    crowded,
    held_out_album,
    train_album,
)
from skipqa.training.cells.scenes import Pixels, Scenes, composed, photographed
from skipqa.training.grounding.examples import Boxes
from skipqa.training.run import Counted
from skipqa.training.stage1 import photos
from skipqa.training.stage1.mixture import Mixture

AT_ONCE = 16  # scenes, when scored
COMPOSITES, PHOTOS = "composites", "photos"


@dataclass(frozen=True, slots=True)
class Material:
    train: Album
    held_out: Album
    crowds: Mapping[str, Sequence[BoxedPhoto]]  # by split
    pixels: Pixels

    @staticmethod
    def of(
        whole: Mixture, boxes: Boxes, names: Sequence[Name], counted: Counted, say: Report
    ) -> Material:
        """Photos are decoded at high resolution, and how much memory that takes is said before."""
        train, held_out = (make(whole, boxes, names) for make in (train_album, held_out_album))
        if not (train.pieces and train.grounds):
            raise UserError("nothing to learn from: no photo says where one of the names is")
        crowds = {str(split): crowded(some, names) for split, some in whole.checks.items()}
        rows = train.photos | held_out.photos
        rows |= {one.photo for some in crowds.values() for one in some}
        kept = [place for place, row in whole.photos.items() if row in rows]
        size = photos.HIGH_RES
        say(f"{len(kept):,} photos at {size} pixels: {3 * size**2 * len(kept) / 1e9:.1f} GB")
        pixels = photos.decode({place: n for n, place in enumerate(kept)}, counted, size)
        there = Pixels([whole.photos[place] for place in kept], pixels.to(chosen_device()))
        return Material(train, held_out, crowds, there)

    def composites(self, count: int, seed: int) -> Iterator[Scenes]:
        """Of what is held out, the same for a seed; none where nothing is."""
        if not (self.held_out.pieces and self.held_out.grounds):
            return
        generator = torch.Generator().manual_seed(seed)
        for start in range(0, count, AT_ONCE):
            some = min(AT_ONCE, count - start)
            yield composed(self.held_out, self.pixels, some, generator)

    def photographed(self, chosen: Sequence[BoxedPhoto]) -> Iterator[Scenes]:
        for start in range(0, len(chosen), AT_ONCE):
            some = chosen[start : start + AT_ONCE]
            yield photographed(self.pixels, some, len(self.train.names))

    def scored(self, count: int, seed: int) -> dict[str, Iterator[Scenes]]:
        """So many composites, and photos of each kind as they are."""
        crowds = {f"crowded/{split}": some for split, some in self.crowds.items()}
        chosen = {PHOTOS: self.held_out.boxed, **crowds}
        found = {what: self.photographed(some[:count]) for what, some in chosen.items()}
        return {COMPOSITES: self.composites(count, seed), **found}
