"""regions: group the kept tokens into regions that each mean one thing (RCSR, first half).

k-means on what the tokens mean and where they are; R = min(V' / 4, 8). The first centre is
the most salient token and each next one the token farthest from those chosen, so the result
depends on nothing but the input.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.config import RegionsConfig
from skipqa.trace import StageRecord
from skipqa.types import Box, KeptTokens, Region


def find_regions(
    kept: KeptTokens, config: RegionsConfig, record: StageRecord
) -> tuple[Region, ...]:
    """Regions in order of saliency; every kept token is in exactly one."""
    positions, grid = kept.positions, kept.tokens.grid
    count = max(1, min(len(positions) // config.tokens_per_region, config.max_regions))
    places = torch.stack([positions % grid, positions // grid], dim=1) / grid
    points = torch.cat([kept.tokens.meaning[positions], config.position_weight * places], dim=1)
    labels = k_means(points, count, int(kept.saliency[positions].argmax()), config.iterations)
    found = [
        _region(kept, positions[labels == r], config) for r in range(count) if (labels == r).any()
    ]
    found.sort(key=lambda region: (-region.saliency, region.members))
    record.flops = 2 * points.numel() * count * config.iterations
    record.kept, record.dropped = len(positions), 0
    record.why = f"{len(found)} regions of {len(positions)} tokens"
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


def _region(kept: KeptTokens, members: Tensor, config: RegionsConfig) -> Region:
    weights = kept.saliency[members]
    weights = weights / weights.sum().clamp(min=1e-12)
    share, index = (weights @ kept.tokens.evidence[members]).topk(config.concepts)
    covered = members
    if kept.merged_into is not None:
        covered = torch.isin(kept.merged_into, members).nonzero()[:, 0]
    return Region(
        box=_box(covered, kept.tokens.grid),
        members=tuple(covered.tolist()),
        concepts=tuple(zip(index.tolist(), share.tolist(), strict=True)),
        saliency=float(kept.saliency[members].mean()),
    )


def _box(members: Tensor, grid: int) -> Box:
    columns, rows = members % grid, members // grid
    return (
        int(columns.min()) / grid,
        int(rows.min()) / grid,
        (int(columns.max()) + 1) / grid,
        (int(rows.max()) + 1) / grid,
    )
