"""regions divides the kept tokens: each in exactly one, never more than R, always the same way."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import kept_tokens

from skipqa.config import RegionsConfig
from skipqa.stages.regions import find_regions, k_means
from skipqa.trace import StageRecord

GRID = 6
positions = st.sets(st.integers(0, GRID * GRID - 1), min_size=1).map(sorted)


@given(positions=positions, seed=st.integers(0, 50), most=st.integers(1, 8))
def test_every_token_is_in_exactly_one_region(positions: list[int], seed: int, most: int) -> None:
    config = RegionsConfig(max_regions=most)
    kept, record = kept_tokens(GRID, positions, seed), StageRecord("regions")
    regions = find_regions(kept, config, record)
    assert sorted(member for region in regions for member in region.members) == positions
    assert 1 <= len(regions) <= max(1, min(len(positions) // config.tokens_per_region, most))
    assert (record.kept, record.dropped) == (len(positions), 0)
    saliencies = [region.saliency for region in regions]
    assert saliencies == sorted(saliencies, reverse=True)
    again = find_regions(kept, config, StageRecord("regions"))
    assert again == regions


@given(positions=positions, seed=st.integers(0, 50))
def test_boxes_fit_and_shares_are_of_the_evidence(positions: list[int], seed: int) -> None:
    kept = kept_tokens(GRID, positions, seed)
    for region in find_regions(kept, RegionsConfig(), StageRecord("regions")):
        left, top, right, bottom = (round(side * GRID) for side in region.box)
        columns = {member % GRID for member in region.members}
        rows = {member // GRID for member in region.members}
        assert (left, right) == (min(columns), max(columns) + 1)
        assert (top, bottom) == (min(rows), max(rows) + 1)
        shares = [share for _, share in region.concepts]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1 + 1e-5
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
