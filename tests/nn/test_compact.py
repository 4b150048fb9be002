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


@given(st.integers(0, 1_000), st.integers(1, 40), st.sampled_from([1, 3, 5]))
def test_every_filter_of_a_convolution_has_its_own_scale(seed: int, depth: int, size: int) -> None:
    """[filters, depth, size, size]; a loud filter costs the quiet ones nothing."""
    generator = torch.Generator().manual_seed(seed)
    filters = -(-LEAST // (depth * size * size))
    weights = torch.randn(filters, depth, size, size, generator=generator)
    weights *= 10 ** torch.randn(filters, 1, 1, 1, generator=generator)
    packed = pack({"w": weights})
    assert packed["w"].dtype == torch.int8
    assert packed["w" + SCALE].shape == (filters, 1, 1, 1)
    back = unpack(packed)["w"]
    step = weights.abs().amax((1, 2, 3), keepdim=True) / 127
    assert ((back - weights).abs() <= step * 0.5001).all()


def test_round_trip() -> None:
    tensors = {
        "matrix": torch.randn(64, 64),
        "small": torch.randn(8, 8),
        "vector": torch.randn(10_000),
        "scalar": torch.tensor(2.5),
        "count": torch.tensor(7),
        "deep": torch.randn(64, 8, 8),
        "filters": torch.randn(8, 1, 3, 3),
    }
    packed = pack(tensors)
    assert {name: value.dtype for name, value in packed.items()} == {
        **dict.fromkeys(("matrix", "deep"), torch.int8),
        **dict.fromkeys(("matrix" + SCALE, "deep" + SCALE), torch.float32),
        "count": torch.int64,
        **dict.fromkeys(("small", "vector", "scalar", "filters"), torch.float16),
    }
    back = unpack(packed)
    assert back.keys() == tensors.keys()
    assert int(back["count"]) == 7
    for name, value in tensors.items():
        assert back[name].shape == value.shape
        if name not in ("matrix", "deep", "count"):
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
