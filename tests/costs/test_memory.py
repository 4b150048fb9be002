"""The peak goes up with what is held, and comes down only when it is forgotten."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest

from skipqa.costs import memory

MB = 1_000_000


def test_the_peak_is_at_least_what_was_held() -> None:
    before = memory.peak_bytes()
    assert before is not None
    held = np.ones(50 * MB // 8)
    with_it = memory.peak_bytes()
    del held
    assert with_it is not None
    assert with_it >= 50 * MB
    assert memory.peak_bytes() == pytest.approx(with_it, rel=0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak")
def test_a_forgotten_peak_counts_anew() -> None:
    with mmap.mmap(-1, 400 * MB) as held:  # malloc may keep what it is given back
        held.write(b"x" * 400 * MB)
    high = memory.peak_bytes()
    memory.forget_peak()
    low = memory.peak_bytes()
    assert high is not None
    assert low is not None
    assert low < high - 200 * MB
