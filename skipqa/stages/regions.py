"""regions: group the kept tokens into regions that each mean one thing (RCSR, first half).

k-means on what the tokens mean and where they are; R = min(V' / 4, 8). The first centre is the
most salient token and each next one the token farthest from those chosen, so the result depends on
nothing but the input. In variant A the clusters are the regions. In variant B the most salient
token of each cluster is a point prompt for the segmenter, and each token goes to one of its boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.segmenter import Point
from skipqa.config import RegionsConfig
from skipqa.nn.region_query import RegionViews
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Box, KeptTokens, Question, Region

# Of a question without an image: its query is the question's words alone
EVERYWHERE = Region((0.0, 0.0, 1.0, 1.0), (), (), 0.0)


class Proposed(NamedTuple):
    members: list[Tensor]  # grid positions of each region, none empty
    boxes: list[Box | None]  # None: the smallest box around the members
    flops: int
    why: str


class Proposer(Protocol):
    def __call__(self, state: State, clusters: Sequence[Tensor]) -> Proposed: ...


class ClusterProposer:
    """Variant A: the clusters as they are."""

    def __call__(self, state: State, clusters: Sequence[Tensor]) -> Proposed:
        num_tokens = len(state.kept.positions)
        why = f"{len(clusters)} regions of {num_tokens} tokens"
        return Proposed(list(clusters), [None] * len(clusters), 0, why)


class BoxProposer:
    """Variant B: boxes that the segmenter finds at the clusters' most salient tokens."""

    def __init__(self, config: RegionsConfig, backbone: Backbone) -> None:
        self.config, self.backbone = config, backbone

    def __call__(self, state: State, clusters: Sequence[Tensor]) -> Proposed:
        kept, points = state.kept, point_prompts(state.kept, clusters)
        found = self.backbone.segmenter.boxes(state.image, points)
        boxes = distinct(found.boxes, self.config.duplicate_overlap)
        assigned = assign_tokens(kept.positions, kept.tokens.grid, boxes)
        pairs = [pair for pair in zip(assigned, boxes, strict=True) if len(pair[0]) > 0]
        why = (
            f"{len(pairs)} boxes of {len(kept.positions)} tokens: "
            f"{len(clusters)} points, {len(boxes)} distinct boxes"
        )
        return Proposed([m for m, _ in pairs], [box for _, box in pairs], found.flops, why)


class FindRegions:
    """Regions in order of saliency; every kept token is in exactly one."""

    def __init__(self, config: RegionsConfig, proposer: Proposer) -> None:
        self.config, self.proposer = config, proposer

    def __call__(self, state: State, record: StageRecord) -> State:
        config, kept = self.config, state.kept
        positions, grid = kept.positions, kept.tokens.grid
        count = max(1, min(len(positions) // config.tokens_per_region, config.max_regions))
        places = torch.stack([positions % grid, positions // grid], dim=1) / grid
        points = torch.cat([kept.meaning, config.position_weight * places], dim=1)
        labels = k_means(points, count, int(kept.saliency[positions].argmax()), config.iterations)
        clusters = [positions[labels == r] for r in range(count) if (labels == r).any()]
        proposed = self.proposer(state, clusters)
        regions = [
            _region(kept, members, config.concepts, box)
            for members, box in zip(proposed.members, proposed.boxes, strict=True)
        ]
        regions.sort(key=lambda region: (-region.saliency, region.members))
        record.flops = 2 * points.numel() * count * config.iterations + proposed.flops
        record.kept, record.dropped, record.why = len(positions), 0, proposed.why
        return state.add(regions=tuple(regions))


def build(parts: Parts) -> FindRegions:
    config = parts.config.regions
    boxes = config.proposals == "boxes"
    return FindRegions(config, BoxProposer(config, parts.backbone) if boxes else ClusterProposer())


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


def point_prompts(kept: KeptTokens, clusters: Sequence[Tensor]) -> list[Point]:
    """The centre of each cluster's most salient token, the most salient of all first."""
    best = [members[kept.saliency[members].argmax()] for members in clusters]
    best.sort(key=lambda position: (-float(kept.saliency[position]), int(position)))
    centres = _centres(torch.stack(best), kept.tokens.grid)
    return [(across, down) for across, down in centres.tolist()]


def distinct(boxes: Sequence[Box], overlap: float) -> list[Box]:
    """Without near duplicates: a box stays unless its IoU with an earlier one is `overlap`."""
    kept: list[Box] = []
    for box in boxes:
        if all(iou(box, other) < overlap for other in kept):
            kept.append(box)
    return kept


def assign_tokens(positions: Tensor, grid: int, boxes: Sequence[Box]) -> list[Tensor]:
    """The tokens of each box: a token goes to the smallest box that holds its centre, else to the
    nearest; ties go to the smallest, then to the first. A box may end up with none."""
    sides_4B = torch.tensor(boxes, dtype=torch.float64).T
    left, top, right, bottom = sides_4B
    across, down = _centres(positions, grid).double().T[..., None]
    beside = (left - across).maximum(across - right).clamp(min=0)
    above = (top - down).maximum(down - bottom).clamp(min=0)
    distance_nB = torch.hypot(beside, above)
    area_B = (right - left) * (bottom - top)
    by_area = area_B.argsort(stable=True)
    # argmin takes the first of equals, and boxes come smallest first
    owner = by_area[distance_nB[:, by_area].argmin(1)]
    return [positions[owner == number] for number in range(len(boxes))]


def _region(kept: KeptTokens, members: Tensor, num_concepts: int, box: Box | None) -> Region:
    weights = kept.saliency[members]
    weights = weights / weights.sum().clamp(min=1e-12)
    prob, index = (weights @ kept.tokens.concept_probs[members]).topk(num_concepts)
    covered = members
    if kept.merged_into is not None:
        covered = torch.isin(kept.merged_into, members).nonzero()[:, 0]
    return Region(
        box=box or _box(covered, kept.tokens.grid),
        members=tuple(covered.tolist()),
        concepts=tuple(zip(index.tolist(), prob.tolist(), strict=True)),
        saliency=float(kept.saliency[members].mean()),
    )


def region_means(state: State) -> Tensor:
    """[R, d]: the mean meaning of each region's tokens."""
    meaning = state.kept.tokens.meaning
    return torch.stack([meaning[list(region.members)].mean(0) for region in state.regions])


def region_views(state: State, num_concepts: int) -> RegionViews:
    """What each region shows: the mean of its tokens' features, by saliency, and the evidence that
    names it. Concepts beyond `num_concepts` are known from an index's photos alone; a region
    without tokens shows nothing."""
    kept, regions = state.kept, state.regions
    features_RF = torch.zeros(len(regions), kept.tokens.features.shape[1])
    evidence_RC = torch.zeros(len(regions), num_concepts)
    for r, region in enumerate(regions):
        members = list(region.members)
        weights = kept.saliency[members]
        features_RF[r] = weights @ kept.tokens.features[members] / weights.sum().clamp(min=1e-12)
        for concept, prob in region.concepts:
            if concept < num_concepts:
                evidence_RC[r, concept] = prob
    return RegionViews(features_RF, evidence_RC)


def posterior(region: Region, prior_C: Tensor) -> dict[int, float]:
    """Bayes' rule over the concepts of a region, normalised to sum to 1; empty where all weights
    are 0."""
    weights = {concept: prob * float(prior_C[concept]) for concept, prob in region.concepts}
    total = sum(weights.values())
    return {concept: weight / total for concept, weight in weights.items() if total > 0}


def probs_given(question: Question, region: Region) -> dict[int, float]:
    """Of the region's concepts: the posterior, or the evidence alone where no prior is trained."""
    if question.concept_prior is None:
        return dict(region.concepts)
    return posterior(region, question.concept_prior.weights)


def _centres(positions: Tensor, grid: int) -> Tensor:
    """x and y, [n, 2], as fractions of the image."""
    return (torch.stack([positions % grid, positions // grid], dim=1) + 0.5) / grid


def _box(members: Tensor, grid: int) -> Box:
    columns, rows = members % grid, members // grid
    return (
        int(columns.min()) / grid,
        int(rows.min()) / grid,
        (int(columns.max()) + 1) / grid,
        (int(rows.max()) + 1) / grid,
    )


def in_box(box: Box, grid: int) -> Tensor:
    """[V] bool: the tokens whose centre lies in the box, at least the one nearest to its centre."""
    left, top, right, bottom = box
    middles = (torch.arange(grid) + 0.5) / grid
    across, down = (middles >= left) & (middles <= right), (middles >= top) & (middles <= bottom)
    if not bool(across.any()):
        across[min(grid - 1, int((left + right) / 2 * grid))] = True
    if not bool(down.any()):
        down[min(grid - 1, int((top + bottom) / 2 * grid))] = True
    return (down[:, None] & across[None, :]).flatten()


def iou(one: Box, other: Box) -> float:
    """Intersection over union; 1 where both are the same point."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0.0) * max(height, 0.0)
    union = sum((right - left) * (bottom - top) for left, top, right, bottom in (one, other))
    return shared / (union - shared) if union > shared else float(one == other)
