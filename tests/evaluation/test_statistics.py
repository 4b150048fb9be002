"""The bootstrap against what theory and plain row resampling say."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.evaluation import statistics

scores = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def test_interval_matches_the_normal_approximation() -> None:
    values = np.random.default_rng(1).random(2000)
    found = statistics.mean_interval(values)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=half / 20)
    assert found.high == pytest.approx(values.mean() + half, abs=half / 20)
    assert found.count == 2000


def test_drawing_counts_is_drawing_rows() -> None:
    values = np.array([0.0, 0.3, 0.3, 0.6, 1.0, 1.0, 1.0])
    rows = np.random.default_rng(5).integers(0, len(values), (200_000, len(values)))
    plain = values[rows].mean(axis=1)
    ours = statistics.resampled_means(values, 200_000, seed=6)
    for q in (0.025, 0.25, 0.5, 0.75, 0.975):
        assert np.quantile(ours, q) == pytest.approx(np.quantile(plain, q), abs=0.01)
    assert ours.std() == pytest.approx(plain.std(), rel=0.01)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(2)
    covered = 0
    for trial in range(300):
        interval = statistics.mean_interval(generator.random(200) < 0.4, resamples=1000, seed=trial)
        covered += interval.low <= 0.4 <= interval.high
    assert 0.91 <= covered / 300 <= 0.98


@pytest.mark.parametrize(("count", "low"), [(1, 0.025), (10, 0.6915), (200, 0.9817)])
def test_equal_scores_are_not_certain(count: int, low: float) -> None:
    """All right or all wrong is Clopper and Pearson's interval, whose lower end is in tables."""
    right = statistics.mean_interval([1.0] * count, bounds=(0, 1))
    assert (right.mean, right.high, right.count) == (1, 1, count)
    assert right.low == pytest.approx(low, abs=1e-4)
    wrong = statistics.mean_interval([0.0] * count, bounds=(0, 1))
    assert (wrong.low, wrong.high) == (0, pytest.approx(1 - low, abs=1e-4))
    halves = statistics.mean_interval([0.5] * count, bounds=(0, 1))
    assert 0 < halves.low < 0.5 < halves.high < 1
    percent = statistics.mean_interval([100.0] * count, bounds=(0, 100))
    assert percent.low == pytest.approx(100 * right.low)
    certain = statistics.mean_interval([1.0] * count)
    assert certain.low == certain.high == 1


def test_rare_answers_are_covered_too() -> None:
    """Half of these samples hold no right answer at all."""
    generator = np.random.default_rng(8)
    covered = 0
    for trial in range(300):
        drawn = generator.random(60) < 0.01
        found = statistics.mean_interval(drawn, resamples=500, seed=trial, bounds=(0, 1))
        covered += found.low <= 0.01 <= found.high
    assert covered / 300 >= 0.95


@settings(max_examples=50)
@given(scores, st.integers(0, 100))
def test_interval_holds_the_mean(values: list[float], seed: int) -> None:
    found = statistics.mean_interval(values, resamples=2000, seed=seed)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert found == statistics.mean_interval(values, resamples=2000, seed=seed)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_comparison_is_antisymmetric(pairs: list[tuple[float, float]]) -> None:
    first, second = zip(*pairs, strict=True)
    forth = statistics.paired_bootstrap(first, second, resamples=500)
    back = statistics.paired_bootstrap(second, first, resamples=500)
    assert forth.difference == pytest.approx(-back.difference, abs=1e-12)
    assert 0 < forth.p_value <= 1


def test_comparison_of_a_system_with_itself() -> None:
    found = statistics.paired_bootstrap([1, 0, 1], [1, 0, 1])
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_clear_and_unclear_differences() -> None:
    generator = np.random.default_rng(3)
    weak = (generator.random(1000) < 0.4).astype(float)
    strong = np.maximum(weak, generator.random(1000) < 0.2)
    clear = statistics.paired_bootstrap(strong, weak)
    assert clear.low > 0
    assert clear.p_value == pytest.approx(2 / 10_001)
    noise = statistics.paired_bootstrap(generator.random(1000), generator.random(1000))
    assert noise.low < 0 < noise.high
    assert noise.p_value > 0.05


def test_p_values_are_uniform_when_nothing_differs() -> None:
    generator = np.random.default_rng(4)
    p_values = [
        statistics.paired_bootstrap(
            generator.random(100), generator.random(100), resamples=500, seed=trial
        ).p_value
        for trial in range(200)
    ]
    assert 0.01 <= np.mean(np.array(p_values) < 0.05) <= 0.10


def test_pairing_beats_comparing_means_apart() -> None:
    generator = np.random.default_rng(7)
    base = generator.random(300)
    better = base + 0.01
    assert statistics.paired_bootstrap(better, base).low == pytest.approx(0.01)


def test_seeds() -> None:
    found = statistics.across_seeds([57.0, 58.0, 59.0])
    assert (found.mean, found.deviation, found.spread, found.count) == (58.0, 1.0, 2.0, 3)
    assert statistics.across_seeds([57.0]).deviation == 0.0


def test_bins_put_edges_above() -> None:
    assert statistics.bins([1, 9, 10, 99, 100, 5000], (10, 100)) == [
        "<10",
        "<10",
        "10-100",
        "10-100",
        ">=100",
        ">=100",
    ]
    with pytest.raises(UserError, match="increase"):
        statistics.bins([1], (5, 5))


@pytest.mark.parametrize("bad", [[], [float("nan")], [1.0, float("inf")], [[1.0]]])
def test_bad_scores(bad: object) -> None:
    with pytest.raises(UserError):
        statistics.mean_interval(bad)  # type: ignore[arg-type]


def test_lengths_must_fit() -> None:
    with pytest.raises(UserError, match="2 and 1"):
        statistics.paired_bootstrap([1, 2], [1])


def test_a_large_benchmark_is_no_burden() -> None:
    """VQAv2 has 214,354 validation questions and five possible accuracies: rows would not fit."""
    values = np.random.default_rng(0).choice([0.0, 0.3, 0.6, 0.9, 1.0], 214_354)
    found = statistics.mean_interval(values)
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 214_354**0.5, rel=0.05)


def test_equal_differences_are_not_certain() -> None:
    same = statistics.paired_bootstrap([1, 0, 0, 1], [1, 0, 0, 1], bounds=(-1, 1))
    assert (same.difference, same.p_value) == (0, 1)
    assert same.low == pytest.approx(-same.high)
    assert same.high > 0.5
    better = statistics.paired_bootstrap([1] * 20, [0] * 20, bounds=(-1, 1))
    assert better.p_value == 2 * 0.5**20
    assert 0.6 < better.low < better.high == 1
    assert statistics.paired_bootstrap([1], [0], bounds=(-1, 1)).p_value == 1


@pytest.mark.parametrize("distinct", [2, 5_000])
def test_five_thousand_questions_take_bounded_memory(distinct: int) -> None:
    """Rows or counts are drawn, whichever is cheaper; both give the interval of the mean."""
    generator = np.random.default_rng(0)
    values = generator.integers(0, distinct, 5_000) / max(1, distinct - 1)
    tracemalloc.start()
    means = statistics.resampled_means(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120e6
    assert len(means) == 10_000
    assert means.mean() == pytest.approx(values.mean(), abs=3e-4)
    assert means.std() == pytest.approx(values.std() / np.sqrt(5_000), rel=0.05)
