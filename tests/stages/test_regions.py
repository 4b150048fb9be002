"""regions groups the kept tokens: each in exactly one, never more than R, always the same way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from synthetic import kept_tokens, run, state

from skipqa.backbones.segmenter import Point, Proposals
from skipqa.config import RegionsConfig
from skipqa.stages.regions import (
    BoxProposer,
    ClusterProposer,
    FindRegions,
    assign_tokens,
    distinct,
    in_box,
    k_means,
)
from skipqa.trace import StageRecord
from skipqa.types import Box, KeptTokens, Region

Found = tuple[tuple[Region, ...], StageRecord, list[Point]]

GRID = 6
positions = st.sets(st.integers(0, GRID * GRID - 1), min_size=1).map(sorted)
# Boxes may be without extent. In units of 1/25 no side goes through the centre of a token, where
# rounding would decide whether the box holds it.
sides = st.lists(st.integers(0, 25), min_size=2, max_size=2).map(sorted)
boxes = st.tuples(sides, sides).map(
    lambda xy: (xy[0][0] / 25, xy[1][0] / 25, xy[0][1] / 25, xy[1][1] / 25)
)
CLUSTERS = RegionsConfig()


def clustered(
    kept: KeptTokens, config: RegionsConfig = CLUSTERS
) -> tuple[tuple[Region, ...], StageRecord]:
    leaving, record = run(FindRegions(config, ClusterProposer()), state(kept=kept))
    return leaving.regions, record


@given(positions=positions, seed=st.integers(0, 50), most=st.integers(1, 8))
def test_every_token_is_in_exactly_one_region(positions: list[int], seed: int, most: int) -> None:
    config = RegionsConfig(max_regions=most)
    kept = kept_tokens(GRID, positions, seed)
    regions, record = clustered(kept, config)
    assert sorted(member for region in regions for member in region.members) == positions
    assert 1 <= len(regions) <= max(1, min(len(positions) // config.tokens_per_region, most))
    assert (record.kept, record.dropped) == (len(positions), 0)
    saliencies = [region.saliency for region in regions]
    assert saliencies == sorted(saliencies, reverse=True)
    assert clustered(kept, config)[0] == regions


@given(positions=positions, seed=st.integers(0, 50))
def test_boxes_fit_and_probabilities_are_of_the_evidence(positions: list[int], seed: int) -> None:
    kept = kept_tokens(GRID, positions, seed)
    for region in clustered(kept)[0]:
        left, top, right, bottom = (round(side * GRID) for side in region.box)
        columns = {member % GRID for member in region.members}
        rows = {member // GRID for member in region.members}
        assert (left, right) == (min(columns), max(columns) + 1)
        assert (top, bottom) == (min(rows), max(rows) + 1)
        probs = [prob for _, prob in region.concepts]
        assert probs == sorted(probs, reverse=True)
        assert 0 < sum(probs) <= 1 + 1e-5
        assert len({concept for concept, _ in region.concepts}) == RegionsConfig().concepts


@given(
    points=st.lists(st.tuples(*[st.floats(-5, 5, width=32)] * 2), min_size=1, max_size=30),
    count=st.integers(1, 8),
    data=st.data(),
)
def test_k_means_labels_every_point_with_a_cluster(
    points: list[tuple[float, float]], count: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(points) - 1))
    tensor = torch.tensor(points)
    labels = k_means(tensor, count, first, 8)
    assert labels.shape == (len(points),)
    assert labels.min() >= 0
    assert labels.max() < count
    assert torch.equal(labels, k_means(tensor, count, first, 8))


def test_k_means_finds_clear_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    truth = torch.arange(30) % 3
    points = centres[truth] + 0.1 * torch.randn(30, 2, generator=generator)
    labels = k_means(points, 3, 0, 8)
    assert len({(a, b) for a, b in zip(labels.tolist(), truth.tolist(), strict=True)}) == 3


def test_tokens_that_are_all_alike_make_one_region_each_time() -> None:
    labels = k_means(torch.ones(12, 3), 3, 5, 8)
    assert len(set(labels.tolist())) == 1


class MadeUpBoxes:
    """A segmenter that draws given boxes in turn, and remembers the points it was asked about."""

    def __init__(self, boxes: list[Box]) -> None:
        self.boxes_to_draw = boxes
        self.asked: list[Point] = []

    def boxes(self, image: Image.Image, points: Sequence[Point]) -> Proposals:
        self.asked.extend(points)
        drawn = [self.boxes_to_draw[n % len(self.boxes_to_draw)] for n in range(len(points))]
        return Proposals(drawn, 1_000_000)


class TestBoxes:
    """Variant B, with boxes that Hypothesis makes up."""

    CONFIG = RegionsConfig(proposals="boxes")

    @staticmethod
    def find(kept: KeptTokens, boxes: list[Box], config: RegionsConfig = CONFIG) -> Found:
        """The regions, what was recorded, and the points that were asked about."""
        segmenter = MadeUpBoxes(boxes)
        backbone = cast(Any, SimpleNamespace(segmenter=segmenter))
        entering = state(kept=kept, image=Image.new("RGB", (8, 8)))
        leaving, record = run(FindRegions(config, BoxProposer(config, backbone)), entering)
        return leaving.regions, record, segmenter.asked

    @given(positions=positions, seed=st.integers(0, 50), boxes=st.lists(boxes, min_size=1))
    def test_every_token_is_in_exactly_one_region(
        self, positions: list[int], seed: int, boxes: list[Box]
    ) -> None:
        kept = kept_tokens(GRID, positions, seed)
        regions, record, asked = self.find(kept, boxes)
        assert sorted(member for region in regions for member in region.members) == positions
        assert 1 <= len(regions) <= len(asked) <= self.CONFIG.max_regions
        assert all(region.members and region.box in boxes for region in regions)
        assert (record.kept, record.dropped) == (len(positions), 0)
        saliencies = [region.saliency for region in regions]
        assert saliencies == sorted(saliencies, reverse=True)
        assert self.find(kept, boxes)[0] == regions

    @given(positions=positions, boxes=st.lists(boxes, min_size=1, max_size=8, unique=True))
    def test_the_smallest_box_around_a_token_has_it_else_the_nearest(
        self, positions: list[int], boxes: list[Box]
    ) -> None:
        probs = assign_tokens(torch.tensor(positions), GRID, boxes)
        assert sorted(p for prob in probs for p in prob.tolist()) == positions
        for owner, prob in zip(boxes, probs, strict=True):
            for position in prob.tolist():
                middle = ((position % GRID + 0.5) / GRID, (position // GRID + 0.5) / GRID)
                holding = [box for box in boxes if distance(box, middle) == 0]
                if holding:
                    assert owner in holding
                    assert area(owner) == min(map(area, holding))
                else:
                    nearest = min(distance(box, middle) for box in boxes)
                    assert distance(owner, middle) == pytest.approx(nearest)

    @given(boxes=st.lists(boxes), overlap=st.floats(0.1, 1.0))
    def test_merging_leaves_no_near_duplicates_and_is_idempotent(
        self, boxes: list[Box], overlap: float
    ) -> None:
        kept = distinct(boxes, overlap)
        assert distinct(kept, overlap) == kept
        assert set(kept) <= set(boxes)
        assert len(set(kept)) == len(kept)
        assert kept[:1] == boxes[:1]

    def test_near_duplicates_are_one_and_neighbours_are_two(self) -> None:
        box, like_it, next_to_it = (0.1, 0.1, 0.5, 0.5), (0.1, 0.1, 0.5, 0.52), (0.5, 0.1, 0.9, 0.5)
        assert distinct([box, like_it, next_to_it], 0.7) == [box, next_to_it]

    @given(positions=positions, seed=st.integers(0, 50))
    def test_points_are_the_most_salient_tokens_of_the_clusters(
        self, positions: list[int], seed: int
    ) -> None:
        kept = kept_tokens(GRID, positions, seed)
        clusters, _ = clustered(kept)
        peaks = [max(region.members, key=lambda m: kept.saliency[m]) for region in clusters]
        peaks.sort(key=lambda m: -kept.saliency[m])
        _, record, asked = self.find(kept, [(0.0, 0.0, 1.0, 1.0)])
        middles = [((m % GRID + 0.5) / GRID, (m // GRID + 0.5) / GRID) for m in peaks]
        assert asked == [pytest.approx(middle) for middle in middles]
        assert record.flops > 1_000_000

    def test_merged_tokens_go_with_the_one_that_stands_for_them(self) -> None:
        kept = kept_tokens(GRID, [0, 35], 0)
        stands_for = torch.tensor([0] * 18 + [35] * 18)
        kept = dataclasses.replace(kept, merged_into=stands_for)
        config = RegionsConfig(proposals="boxes", tokens_per_region=1)
        regions, *_ = self.find(kept, [(0.0, 0.0, 0.3, 0.3), (0.7, 0.7, 1.0, 1.0)], config)
        assert {region.members for region in regions} == {
            tuple(range(18)),
            tuple(range(18, 36)),
        }


def area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def distance(box: Box, point: Point) -> float:
    across = max(box[0] - point[0], point[0] - box[2], 0.0)
    down = max(box[1] - point[1], point[1] - box[3], 0.0)
    return math.hypot(across, down)


def test_boxes_are_tokens() -> None:
    assert in_box((0, 0, 1, 1), 4).all()
    assert in_box((0.0, 0.0, 0.5, 0.25), 4).nonzero()[:, 0].tolist() == [0, 1]
    assert int(in_box((0.52, 0.52, 0.53, 0.53), 4).sum()) == 1
