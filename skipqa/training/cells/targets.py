"""Which cell of a scene shows what, and the loss of a cell tagger.

Enters: scenes, logits. Leaves: a loss. A box's cells are those in the ellipse inside it, as corners
rarely belong to a thing, and at least the cell of its centre; where boxes overlap, the smaller one
is in front. What else a box touches is border and carries no loss. The loss is the cross-entropy,
averaged over each box and then over boxes, so that a small thing counts as much as a large one, and
that of the ground. The ground may show none of the names, or what the photo is labelled with but
has no box of: any of these is right there.

Shapes: B images, M boxes, V cells, N names and none as the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from skipqa.training.cells.scenes import Scenes

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Targets:
    owner_BV: Tensor  # the box that a cell belongs to, or NOBODY
    ground_BV: Tensor  # cells that no box touches, of images where it is known what those show
    names: Tensor  # [M]
    may_show: Tensor  # [B, N]

    @staticmethod
    def of(scenes: Scenes, grid: int, device: torch.device) -> Targets:
        inside_MV, touched_MV = cells_of(scenes.boxes, grid)
        owner_BV = torch.full((len(scenes.low_res), grid * grid), NOBODY)
        ground_BV = scenes.ground_known[:, None].repeat(1, grid * grid)
        width, height = (scenes.boxes[:, 2:] - scenes.boxes[:, :2]).T
        for box in (width * height).argsort(descending=True, stable=True).tolist():
            row = scenes.image[box]
            ground_BV[row] &= ~touched_MV[box]
            owner_BV[row, inside_MV[box]] = box
        tensors = owner_BV, ground_BV, scenes.names, scenes.may_show
        return Targets(*(one.to(device) for one in tensors))

    def loss(self, logits_BVN: Tensor) -> Tensor:
        log_prob_BVN = logits_BVN.float().log_softmax(-1)
        image, cell = (self.owner_BV != NOBODY).nonzero().unbind(1)
        box = self.owner_BV[image, cell]
        count = torch.bincount(box, minlength=len(self.names))
        each = -log_prob_BVN[image, cell, self.names[box]] / count[box]
        of_boxes = each.sum() / (count > 0).sum().clamp(min=1)
        image, cell = self.ground_BV.nonzero().unbind(1)
        impossible = ~self.may_show[image]
        right = log_prob_BVN[image, cell].masked_fill(impossible, -torch.inf).logsumexp(-1)
        return of_boxes - right.sum() / max(1, len(image))


def cells_of(boxes_M4: Tensor, grid: int) -> tuple[Tensor, Tensor]:
    """[M, V] each: the cells that a box has, and all that it touches."""
    middle = (torch.arange(grid) + 0.5) / grid
    low, high = boxes_M4[:, :2, None], boxes_M4[:, 2:, None]
    centre, half = (low + high) / 2, (high - low) / 2
    off_M2g = (middle - centre).abs()
    across, down = (off_M2g / half).square().unbind(1)
    touched_M2g = off_M2g < half + 0.5 / grid
    touched = touched_M2g[:, 1, :, None] & touched_M2g[:, 0, None]
    inside = down[:, :, None] + across[:, None] <= 1
    column, row = (centre[..., 0] * grid).long().clamp(0, grid - 1).T
    inside[torch.arange(len(boxes_M4)), row, column] = True
    return inside.flatten(1), touched.flatten(1)
