"""Weights in 8 bits: how far they are off, and that they come back under their names."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn.compact import LEAST, SCALE, pack, unpack


@given(st.integers(0, 1_000), st.floats(1e-6, 1e6), st.integers(64, 90))
def test_off_by_half_a_step_of_the_rows_largest_at_most(seed: int, size: float, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = size * torch.randn(rows, 64, generator=generator)
    weights *= 10 ** torch.randn(rows, 1, generator=generator)  # rows of different sizes
    weights[0] = 0
    back = unpack(pack({"w": weights}))["w"]
    step = weights.abs().amax(1, keepdim=True) / 127
    assert ((back - weights).abs() <= step * 0.5001).all()
    assert (back[0] == 0).all()


def test_round_trip() -> None:
    tensors = {
        "matrix": torch.randn(64, 64),
        "small": torch.randn(8, 8),
        "vector": torch.randn(10_000),
        "scalar": torch.tensor(2.5),
        "count": torch.tensor(7),
        "deep": torch.randn(64, 8, 8),
    }
    packed = pack(tensors)
    assert {name: value.dtype for name, value in packed.items()} == {
        "matrix": torch.int8,
        "matrix" + SCALE: torch.float32,
        "count": torch.int64,
        **dict.fromkeys(("small", "vector", "scalar", "deep"), torch.float16),
    }
    back = unpack(packed)
    assert back.keys() == tensors.keys()
    assert int(back["count"]) == 7
    for name, value in tensors.items():
        assert back[name].shape == value.shape
        if name not in ("matrix", "count"):
            torch.testing.assert_close(back[name], value, rtol=1e-3, atol=1e-6)


def test_packing_what_was_packed_changes_nothing() -> None:
    once = unpack(pack({"w": torch.randn(64, 64)}))
    torch.testing.assert_close(unpack(pack(once))["w"], once["w"], rtol=1e-6, atol=1e-7)


def test_a_quarter_of_the_bytes() -> None:
    weights = torch.randn(512, 512)
    packed = sum(value.nbytes for value in pack({"w": weights}).values())
    assert packed < 0.26 * weights.nbytes
    assert weights.numel() >= LEAST


def test_what_was_never_packed_comes_back_as_it_is() -> None:
    whole = torch.randn(64, 64)
    assert unpack({"w": whole})["w"] is whole
