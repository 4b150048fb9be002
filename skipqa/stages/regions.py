"""regions: group the kept tokens into regions that each mean one thing (RCSR, first half).

k-means on what the tokens mean and where they are; R = min(V' / 4, 8). The first centre is
the most salient token and each next one the token farthest from those chosen, so the result
depends on nothing but the input. In variant A the clusters are the regions. In variant B the
most salient token of each is a point to segment at, and the boxes found there share out the
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.backbones.segmenter import Point, Proposals
from skipqa.config import RegionsConfig
from skipqa.trace import StageRecord
from skipqa.types import Box, KeptTokens, Region

Propose = Callable[[Sequence[Point]], Proposals]


def find_regions(
    kept: KeptTokens, config: RegionsConfig, record: StageRecord, propose: Propose | None = None
) -> tuple[Region, ...]:
    """Regions in order of saliency; every kept token is in exactly one.

    `propose` finds a box for each point of the picture; only variant B asks it.
    """
    positions, grid = kept.positions, kept.tokens.grid
    count = max(1, min(len(positions) // config.tokens_per_region, config.max_regions))
    places = torch.stack([positions % grid, positions // grid], dim=1) / grid
    points = torch.cat([kept.tokens.meaning[positions], config.position_weight * places], dim=1)
    labels = k_means(points, count, int(kept.saliency[positions].argmax()), config.iterations)
    clusters = [positions[labels == r] for r in range(count) if (labels == r).any()]
    record.flops = 2 * points.numel() * count * config.iterations
    record.why = f"{len(clusters)} regions of {len(positions)} tokens"
    if config.proposals == "clusters":
        found = [_region(kept, members, config) for members in clusters]
    else:
        assert propose is not None, "boxes need someone who proposes them"
        proposed = propose(prompts(kept, clusters))
        boxes = distinct(proposed.boxes, config.duplicate_overlap)
        found = [
            _region(kept, members, config, box)
            for box, members in zip(boxes, assign_tokens(positions, grid, boxes), strict=True)
            if len(members) > 0
        ]
        record.flops += proposed.flops
        record.why = (
            f"{len(found)} boxes of {len(positions)} tokens: "
            f"{len(clusters)} points, {len(boxes)} distinct boxes"
        )
    found.sort(key=lambda region: (-region.saliency, region.members))
    record.kept, record.dropped = len(positions), 0
    record.result = tuple(found)
    return tuple(found)


def k_means(points: Tensor, count: int, first: int, iterations: int) -> Tensor:
    """The cluster of each point, [n]. An emptied cluster keeps its centre."""
    chosen = [first]
    nearest = (points - points[first]).square().sum(1)
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = nearest.minimum((points - points[chosen[-1]]).square().sum(1))
    centres = points[chosen].clone()
    labels = torch.zeros(len(points), dtype=torch.long)
    for _ in range(iterations):
        labels = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, labels, points)
        sizes = F.one_hot(labels, count).sum(0)
        filled = sizes > 0
        centres[filled] = sums[filled] / sizes[filled, None]
    return labels


def prompts(kept: KeptTokens, clusters: Sequence[Tensor]) -> list[Point]:
    """The middle of each cluster's most salient token, the most salient of all first."""
    best = [members[kept.saliency[members].argmax()] for members in clusters]
    best.sort(key=lambda position: (-float(kept.saliency[position]), int(position)))
    middles = _middles(torch.stack(best), kept.tokens.grid)
    return [(across, down) for across, down in middles.tolist()]


def distinct(boxes: Sequence[Box], overlap: float) -> list[Box]:
    """Near duplicates merged: a box stays unless an earlier one overlaps it by so much (IoU)."""
    kept: list[Box] = []
    for box in boxes:
        if all(iou(box, other) < overlap for other in kept):
            kept.append(box)
    return kept


def assign_tokens(positions: Tensor, grid: int, boxes: Sequence[Box]) -> list[Tensor]:
    """The tokens of each box: a token goes to the smallest box that holds its middle, else to
    the nearest; among equals to the smallest, then to the first. A box may end with none."""
    sides_4B = torch.tensor(boxes, dtype=torch.float64).T
    left, top, right, bottom = sides_4B
    across, down = _middles(positions, grid).double().T[..., None]
    beside = (left - across).maximum(across - right).clamp(min=0)
    above = (top - down).maximum(down - bottom).clamp(min=0)
    distance_nB = torch.hypot(beside, above)
    area_B = (right - left) * (bottom - top)
    by_area = area_B.argsort(stable=True)
    # argmin takes the first of equals, and boxes come smallest first
    owner = by_area[distance_nB[:, by_area].argmin(1)]
    return [positions[owner == number] for number in range(len(boxes))]


def _region(
    kept: KeptTokens, members: Tensor, config: RegionsConfig, box: Box | None = None
) -> Region:
    """Without a box of its own it has that of its members."""
    weights = kept.saliency[members]
    weights = weights / weights.sum().clamp(min=1e-12)
    prob, index = (weights @ kept.tokens.evidence[members]).topk(config.concepts)
    covered = members
    if kept.merged_into is not None:
        covered = torch.isin(kept.merged_into, members).nonzero()[:, 0]
    return Region(
        box=box or _box(covered, kept.tokens.grid),
        members=tuple(covered.tolist()),
        concepts=tuple(zip(index.tolist(), prob.tolist(), strict=True)),
        saliency=float(kept.saliency[members].mean()),
    )


def posterior(region: Region, factor_C: Tensor) -> dict[int, float]:
    """Bayes' rule among the concepts of a region, by the factor on each one's evidence: their
    shares add up to 1. None where nothing speaks for any."""
    weights = {concept: prob * float(factor_C[concept]) for concept, prob in region.concepts}
    total = sum(weights.values())
    return {concept: weight / total for concept, weight in weights.items() if total > 0}


def _middles(positions: Tensor, grid: int) -> Tensor:
    """Across and down, [n, 2], as fractions of the picture."""
    return (torch.stack([positions % grid, positions // grid], dim=1) + 0.5) / grid


def _box(members: Tensor, grid: int) -> Box:
    columns, rows = members % grid, members // grid
    return (
        int(columns.min()) / grid,
        int(rows.min()) / grid,
        (int(columns.max()) + 1) / grid,
        (int(rows.max()) + 1) / grid,
    )


def iou(one: Box, other: Box) -> float:
    """Intersection over union; 1 where both are the same point."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0.0) * max(height, 0.0)
    union = sum((right - left) * (bottom - top) for left, top, right, bottom in (one, other))
    return shared / (union - shared) if union > shared else float(one == other)
