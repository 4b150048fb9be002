"""Scenes to train and to score by: photos with boxes, and composites made anew.

Enters: an album and the pixels of its photos, decoded at high resolution, as answering sees them.
Leaves: `Scenes`, images at the size that the encoder was trained on and at high resolution, with a
name for each box. Everything is drawn from a generator on the CPU; pixels are computed where they
lie. Edges of what is pasted are hard or soft, straight or round, and things are cut from photos as
large as the ground, so that neither edges nor sharpness say where something was pasted.

Shapes: B images, M boxes in all of them, K in one, T tries, P pieces, S pixels per side, N names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.config import EncodeConfig
from skipqa.errors import UserError
from skipqa.training.cells.album import Album, BoxedPhoto
from skipqa.training.stage1 import photos
from skipqa.training.stage1.photos import as_input

SIDES = (0.06, 0.45)  # of the picture
ENLARGED = 1.5  # how much a piece is at most
MOST = 6  # things
TRIES = 12  # places to find a free one among
APART = 0.03  # of the picture's side, between two things
STRETCHED = 0.15  # how much log width varies to either side, and log height the other way
NOWHERE = -9.0  # a box that is apart from every other
SOFTEST, HARDEST = 0.3, 0.01  # of half a thing's side, the edge that fades into the ground


@dataclass(frozen=True, slots=True)
class Scenes:
    low_res: Tensor  # [B, 3, S, S] in [-1, 1]
    high_res: Tensor
    boxes: Tensor  # [M, 4] left, top, right, bottom
    image: Tensor  # [M]
    names: Tensor  # [M]
    may_show: Tensor  # [B, N + 1]: what is outside the boxes, always none, and whatever else
    ground_known: Tensor  # [B]: false where nobody knows what that is


def check_scales(config: EncodeConfig) -> None:
    made, scales = (photos.PIXELS, photos.HIGH_RES), config.scales
    if (scales[0], scales[-1]) != made:
        raise UserError(
            f"cells are trained on scenes of {made[0]} and {made[1]} pixels: encode.scales begins "
            f"with {scales[0]} and ends with {scales[-1]}"
        )


class Pixels:
    """Of some photos, by their rows in the mixture."""

    def __init__(self, rows: Sequence[int], pixels: Tensor) -> None:
        self.pixels = pixels
        self._place = {row: place for place, row in enumerate(rows)}

    def __call__(self, rows: Sequence[int]) -> Tensor:
        """[n, 3, S, S] in [-1, 1]."""
        places = torch.tensor([self._place[row] for row in rows], device=self.pixels.device)
        return as_input(self.pixels[places], self.pixels.device)


def photographed(pixels: Pixels, chosen: Sequence[BoxedPhoto], names: int) -> Scenes:
    """Photos as they are."""
    return _scenes(
        pixels([one.photo for one in chosen]),
        torch.tensor([box for one in chosen for box in one.boxes]),
        torch.tensor([image for image, one in enumerate(chosen) for _ in one.boxes]),
        torch.tensor([name for one in chosen for name in one.names]),
        [one.unboxed for one in chosen],
        names,
    )


def composed(album: Album, pixels: Pixels, count: int, generator: torch.Generator) -> Scenes:
    """Each of one to six things in a photo of no such thing, none on another."""
    known = list(album.grounds)
    grounds = [known[i] for i in torch.randint(len(known), (count,), generator=generator).tolist()]
    images = pixels(grounds)
    things_B = torch.randint(1, MOST + 1, (count,), generator=generator)
    boxes_BK4 = torch.full((count, MOST, 4), NOWHERE)
    names_BK = torch.zeros(count, MOST, dtype=torch.long)
    for number in range(MOST):
        chosen = album.odds.multinomial(count, replacement=True, generator=generator)
        placed_B4, free_B = _place(album, chosen, boxes_BK4, generator)
        masks = _Masks.draw(count, generator)
        some = (free_B & (things_B > number)).nonzero()[:, 0]
        if len(some):
            boxes_BK4[some, number] = placed_B4[some]
            names_BK[some, number] = album.piece_names[chosen[some]]
            _paste(images, some, album, pixels, chosen[some], placed_B4[some], masks.of(some))
    image, slot = (boxes_BK4[..., 0] >= 0).nonzero().unbind(1)
    may_show = [album.grounds[ground] for ground in grounds]
    boxes, names = boxes_BK4[image, slot], names_BK[image, slot]
    return _scenes(images, boxes, image, names, may_show, len(album.names))


def together(*parts: Scenes) -> Scenes:
    """As one batch."""
    sizes = torch.tensor([0, *(len(part.low_res) for part in parts)]).cumsum(0).tolist()
    return Scenes(
        torch.cat([part.low_res for part in parts]),
        torch.cat([part.high_res for part in parts]),
        torch.cat([part.boxes for part in parts]),
        torch.cat([part.image + start for part, start in zip(parts, sizes, strict=False)]),
        torch.cat([part.names for part in parts]),
        torch.cat([part.may_show for part in parts]),
        torch.cat([part.ground_known for part in parts]),
    )


def _scenes(
    images: Tensor, boxes: Tensor, image: Tensor, names: Tensor,
    may_show: Sequence[frozenset[int] | None], num_names: int,
) -> Scenes:  # fmt: skip
    shown_BN = torch.zeros(len(images), num_names + 1, dtype=torch.bool)
    shown_BN[:, -1] = True
    for row, some in enumerate(may_show):
        shown_BN[row, sorted(some or ())] = True
    known = torch.tensor([some is not None for some in may_show])
    low_res, high_res = (_resized(images, size) for size in (photos.PIXELS, photos.HIGH_RES))
    return Scenes(low_res, high_res, boxes, image, names, shown_BN, known)


def _place(
    album: Album, chosen: Tensor, boxes_BK4: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A box for each piece [B, 4], and whether it is apart from those in its image."""
    count, (least, most) = len(chosen), SIDES
    side = least * (most / least) ** _uniform((count,), generator)
    from_B4 = torch.tensor([album.pieces[i].box for i in chosen])
    side = torch.minimum(side, ENLARGED * (from_B4[:, 2:] - from_B4[:, :2]).amin(1))
    stretch = ((2 * _uniform((count,), generator) - 1) * STRETCHED).exp()
    size_B12 = torch.stack((side * stretch, side / stretch), dim=1)[:, None].clamp(max=most)
    corner_BT2 = _uniform((count, TRIES, 2), generator) * (1 - size_B12)
    tried_BT4 = torch.cat((corner_BT2, corner_BT2 + size_B12), dim=2)
    low_BT12, high_BT12 = tried_BT4[:, :, None].unflatten(3, (2, 2)).unbind(3)
    left_B1K2, right_B1K2 = boxes_BK4[:, None].unflatten(3, (2, 2)).unbind(3)
    apart_BTK2 = (low_BT12 > right_B1K2 + APART) | (high_BT12 < left_B1K2 - APART)
    free_BT = apart_BTK2.any(3).all(2)
    first = free_BT.int().argmax(1)
    return tried_BT4[torch.arange(count), first], free_BT.any(1)


class _Masks(NamedTuple):
    round: Tensor  # [P] bool
    fades: Tensor  # [P], of half a side
    mirrored: Tensor  # [P] bool

    @staticmethod
    def draw(count: int, generator: torch.Generator) -> _Masks:
        fades = HARDEST * (SOFTEST / HARDEST) ** _uniform((count,), generator)
        is_round, mirrored = (_uniform((count,), generator) < 0.5 for _ in range(2))
        return _Masks(is_round, fades, mirrored)

    def of(self, rows: Tensor) -> _Masks:
        return _Masks(*(one[rows] for one in self))


def _paste(
    images: Tensor, rows: Tensor, album: Album, pixels: Pixels, chosen: Tensor, boxes_P4: Tensor,
    masks: _Masks,
) -> None:  # fmt: skip
    """Changes `images` at `rows`, each once."""
    device, size = images.device, images.shape[-1]
    pieces = [album.pieces[i] for i in chosen]
    source = pixels([piece.photo for piece in pieces])
    from_P4 = torch.tensor([piece.box for piece in pieces])
    flags = torch.tensor([album.names[piece.name][0] == "flag" for piece in pieces])
    mirrored = (masks.mirrored & ~flags).to(device)
    ratio_P2 = (from_P4[:, 2:] - from_P4[:, :2]) / (boxes_P4[:, 2:] - boxes_P4[:, :2])
    smaller = ratio_P2.amax(1) * source.shape[-1] / size
    halved = smaller.log2().floor().clamp(min=0).long()  # often enough, or fine patterns flicker
    from_P4, boxes_P4 = from_P4.to(device), boxes_P4.to(device)
    centre = (torch.arange(size, device=device) + 0.5) / size

    def inside(axis: int) -> Tensor:
        """[P, S]: from 0 to 1 within the box."""
        low, high = boxes_P4[:, axis, None], boxes_P4[:, axis + 2, None]
        return (centre - low) / (high - low)

    u_PS, v_PS = inside(0), inside(1)
    across, down = (2 * u_PS - 1).abs()[:, None], (2 * v_PS - 1).abs()[:, :, None]
    is_round = masks.round.to(device)[:, None, None]
    far = torch.where(is_round, (across**2 + down**2).sqrt(), torch.maximum(across, down))
    alpha_PSS = ((1 - far) / masks.fades.to(device)[:, None, None]).clamp(0, 1)
    u_PS = torch.where(mirrored[:, None], 1 - u_PS, u_PS)

    def sampled(axis: int, along: Tensor) -> Tensor:
        low, high = from_P4[:, axis, None], from_P4[:, axis + 2, None]
        return 2 * (low + along.clamp(0, 1) * (high - low)) - 1

    x_PS, y_PS = sampled(0, u_PS), sampled(1, v_PS)
    grid = torch.stack(torch.broadcast_tensors(x_PS[:, None], y_PS[:, :, None]), dim=-1)
    for level in halved.unique().tolist():
        some = (halved == level).nonzero()[:, 0].to(device)
        smooth = F.avg_pool2d(source[some], 2**level)
        thing = F.grid_sample(smooth, grid[some], padding_mode="border", align_corners=False)
        where = rows.to(device)[some]
        images[where] = torch.lerp(images[where], thing, alpha_PSS[some][:, None])


def _resized(images: Tensor, size: int) -> Tensor:
    if images.shape[-1] == size:
        return images
    return F.interpolate(images, (size, size), mode="bicubic", antialias=True)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator)
