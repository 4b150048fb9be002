"""Confidence intervals and comparisons by the bootstrap.

Enters: scores, one number per question in any unit; two systems are compared on the same
questions in the same order. Leaves: intervals, differences and p values. Every result depends on
its seed alone. It does not know what was scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skipqa.errors import UserError

RESAMPLES = 10_000
LEVEL = 0.95
_CHUNK = 1 << 22  # numbers drawn at once: 32 MB
_SAME = 1e-12  # floats that are closer than this are equal
_COUNT_COST = 10  # drawing the count of one value costs as much as drawing this many rows


@dataclass(frozen=True, slots=True)
class Interval:
    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much better the first system is; `p_value` is two-sided, at least 2/(resamples+1)."""

    difference: float
    low: float
    high: float
    p_value: float
    count: int


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """One score with several seeds; `spread` is the largest minus the smallest."""

    mean: float
    deviation: float  # of the sample, 0 for a single seed
    spread: float
    count: int


def mean_interval(
    scores: ArrayLike,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
) -> Interval:
    """The mean and its percentile bootstrap interval.

    Equal scores resample to themselves, which would claim certainty. If the `bounds` of a score
    are known, the interval is then that of `_interval_of_equals`.
    """
    values = _as_scores(scores)
    if bounds is not None and np.ptp(values) == 0:
        return _interval_of_equals(float(values[0]), len(values), level, bounds)
    means = resampled_means(values, resamples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high), len(values))


def _interval_of_equals(
    value: float, count: int, level: float, bounds: tuple[float, float]
) -> Interval:
    """The interval of `count` scores that all have one value.

    Clopper and Pearson: if none of n draws differs, at most a fraction 1 - ((1 - level) / 2)^(1/n)
    of all questions does. Their scores may lie anywhere within the bounds. If all answers are right
    or all are wrong, this is the Clopper-Pearson interval of a proportion.
    """
    unseen = 1 - ((1 - level) / 2) ** (1 / count)
    lowest, highest = bounds
    low, high = value - unseen * (value - lowest), value + unseen * (highest - value)
    return Interval(value, low, high, count)


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
) -> Comparison:
    """The mean difference over questions, resampled question by question.

    The p value is twice the fraction of resamples that do not favour the system that the data
    favour, with one resample added on each side so that it is never zero. If the `bounds` of a
    difference are known, equal differences get the interval of `mean_interval` and the p value of
    the sign test.
    """
    one, two = _as_scores(first), _as_scores(second)
    if len(one) != len(two):
        raise UserError(f"a paired comparison needs equal lengths, not {len(one)} and {len(two)}")
    differences = one - two
    if bounds is not None and np.ptp(differences) < _SAME:
        equal = _interval_of_equals(float(differences[0]), len(one), level, bounds)
        p_value = 1.0 if equal.mean == 0 else min(1.0, 2 * 0.5 ** len(one))
        return Comparison(equal.mean, equal.low, equal.high, p_value, len(one))
    means = resampled_means(differences, resamples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    against = min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    p_value = min(1.0, 2 * (int(against) + 1) / (resamples + 1))
    return Comparison(float(differences.mean()), float(low), float(high), p_value, len(one))


def across_seeds(scores: ArrayLike) -> SeedSpread:
    """How much a system's score depends on the seed of its training or run."""
    values = _as_scores(scores)
    deviation = values.std(ddof=1) if len(values) > 1 else 0.0
    return SeedSpread(float(values.mean()), float(deviation), float(np.ptp(values)), len(values))


def bins(values: ArrayLike, edges: Sequence[float]) -> list[str]:
    """A label for each value, such as popularity: edges (10, 100) give "<10", "10-100", ">=100".

    An edge belongs to the bin above it.
    """
    if list(edges) != sorted(set(edges)) or not edges:
        raise UserError(f"bin edges must increase, not {list(edges)}")
    inner = [f"{low:g}-{high:g}" for low, high in pairwise(edges)]
    labels = [f"<{edges[0]:g}", *inner, f">={edges[-1]:g}"]
    return [labels[i] for i in np.searchsorted(edges, np.asarray(values), side="right")]


def resampled_means(
    values: NDArray[np.float64], resamples: int = RESAMPLES, seed: int = 0
) -> NDArray[np.float64]:
    """Means of samples of the same size, drawn with replacement, in chunks of bounded memory.

    Drawing how often each distinct value occurs is equivalent to drawing rows, and much cheaper
    if values repeat: accuracies take few distinct values, however many questions there are.
    """
    distinct, counts = np.unique(values, return_counts=True)
    generator = np.random.default_rng(seed)
    count, fractions = len(values), counts / len(values)
    repeating = _COUNT_COST * len(distinct) < count
    rows = max(1, _CHUNK // (len(distinct) if repeating else count))
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    if repeating:
        sums = [generator.multinomial(count, fractions, size=size) @ distinct for size in sizes]
    else:
        drawn = (generator.integers(count, size=(size, count), dtype=np.int32) for size in sizes)
        sums = [values[rows_drawn].sum(1) for rows_drawn in drawn]
    return np.concatenate(sums) / count


def _as_scores(scores: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise UserError("statistics need a non-empty list of scores")
    if not np.isfinite(values).all():
        raise UserError("statistics need finite scores; some are NaN or infinite")
    return values
