"""The static decoder generates what the plain one does, with any draft."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skipqa.backbones.generation.graphs import StaticDecoder
from skipqa.backbones.networks.llama import Llama, LlamaConfig
from skipqa.errors import UserError

TINY = LlamaConfig(vocabulary=31, width=16, layers=2, heads=4, kv_heads=2, ffn=24)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Llama(TINY).requires_grad_(False)


def prompt(length, batch=1):
    return torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("length", [3, 8, 11])  # padded, exact, the next bucket
def test_generates_what_the_plain_decoder_does(model, length):
    decoder = StaticDecoder(model, batch=1, prompts=[8, 12], max_new=5)
    for _ in range(2):  # an earlier prompt in the cache must have no effect
        expected = model.generate(prompt(length), 5).tokens
        assert decoder.generate(prompt(length), 5)[0].tolist() == list(expected)
        decoder.generate(prompt(12), 5)


def test_a_batch_is_its_rows(model):
    decoder = StaticDecoder(model, batch=3, prompts=[6], max_new=4)
    x = prompt(6, batch=3)
    found = decoder.generate(x, 4)
    for row, one in zip(found, x, strict=True):
        assert row.tolist() == model.generate(one[None], 4).tokens


@given(st.integers(2, 9), st.lists(st.integers(0, 30), max_size=6), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_a_draft_changes_nothing_but_the_work(length, noise, agreeing):
    torch.manual_seed(0)
    model = Llama(TINY).requires_grad_(False)
    expected = model.generate(prompt(length), 5).tokens
    draft = [*expected[:agreeing], *noise]
    decoder = StaticDecoder(model, batch=1, prompts=[16], max_new=5, max_draft=4)
    assert decoder.generate_checking(prompt(length), draft, 5) == list(expected)


def test_a_prompt_beyond_every_bucket_is_refused(model):
    decoder = StaticDecoder(model, batch=1, prompts=[4], max_new=2)
    with pytest.raises(UserError, match="longest recorded has 4"):
        decoder.generate(prompt(5), 1)
