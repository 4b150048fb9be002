"""Matrices in 8 bits against the float32 decoder that they were made from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from skipqa.backbones.networks import int8
from skipqa.backbones.networks.llama import KVCache, Llama, LlamaConfig
from skipqa.config import Weights

SHAPES = {
    "tied, with biases": LlamaConfig(160, 64, 2, 4, 2, 96, tied=True, qkv_bias=True),
    "untied": LlamaConfig(160, 64, 2, 4, 4, 96),
}


def pair(config: LlamaConfig, weights: Weights) -> tuple[Llama, Llama]:
    torch.manual_seed(0)
    network = Llama(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    other = int8.build(config, weights)
    state = dict(int8.stored_as(weights, network.state_dict().items()))
    other.load_state_dict(state, assign=True)
    return network, other.eval().requires_grad_(False)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40),
    width=st.sampled_from([32, 64, 576]),
    height=st.sampled_from([16, 48, 160]),
    outlier=st.sampled_from([1.0, 100.0]),
    seed=st.integers(0, 99),
)
def test_a_product_is_that_of_the_rounded_matrix(
    rows: int, width: int, height: int, outlier: float, seed: int
) -> None:
    """Whatever channel is large: only the matrix is rounded to 8 bits, not the activations."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    x[:, 3] *= outlier
    integers = torch.randint(-127, 128, (height, width), generator=generator, dtype=torch.int8)
    scale = torch.rand(height, generator=generator) + 0.1
    expected = x @ (integers * scale[:, None]).T
    size = (x.abs() @ (integers * scale[:, None]).T.abs()).clamp(min=1e-6)
    error = ((int8.product(x, integers, scale) - expected).abs() / size).max()
    assert error < (2**-8 if rows <= int8.FEW_ROWS else 2**-9)


@pytest.mark.parametrize("start", [1, 8])
def test_a_matrix_that_starts_anywhere(start: int) -> None:
    """As the tensors of a mapped file do."""
    stored = torch.randint(-127, 128, (64 * 64 + 64,), dtype=torch.int8)
    weight = stored[(-stored.data_ptr()) % int8.ALIGNMENT + start :][: 62 * 64].view(62, 64)
    x = torch.randn(4, 64)
    found = int8.product(x, weight, torch.ones(62))
    torch.testing.assert_close(found, x @ weight.float().T, rtol=0.01, atol=2)


def test_rows_of_zeros_and_leading_dimensions() -> None:
    weight, scale = torch.ones(16, 32, dtype=torch.int8), torch.ones(16)
    x = torch.zeros(2, 3, 32)
    x[1, 2] = 1.0
    found = int8.product(x, weight, scale)
    assert found.shape == (2, 3, 16)
    assert found[1, 2].tolist() == [32.0] * 16
    assert not found[0].any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("weights", "allowed"), [("int8", 0.05), ("bfloat16", 0.05)])
def test_a_decoder_says_nearly_the_same(shape: str, weights: Weights, allowed: float) -> None:
    network, other = pair(SHAPES[shape], weights)
    ids = torch.randint(160, (1, 20), generator=torch.Generator().manual_seed(1))

    def log_probs(decoder: Llama) -> Tensor:
        embedded = decoder.embedding(ids)
        cache = KVCache(decoder.config, 1, 20, dtype=embedded.dtype)
        read = decoder(embedded[:, :19], cache, torch.arange(19), 19, from_zero=True)
        step = decoder(embedded[:, 19:], cache, torch.tensor([19]), 20, from_zero=False)
        return decoder.logits(torch.cat((read, step), dim=1)[0]).log_softmax(-1)

    expected, found = log_probs(network), log_probs(other)
    assert found.dtype == torch.float32
    spread = expected.std()
    assert (found - expected).abs().mean() < allowed * spread
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.8


def test_eight_bits_take_a_quarter_of_the_memory() -> None:
    network, other = pair(SHAPES["tied, with biases"], "int8")

    def size(decoder: Llama) -> int:
        return sum(parameter.nbytes for parameter in decoder.parameters())

    assert size(other) < 0.3 * size(network)
    assert other.embedding.weight.dtype == torch.int8
    expected, ids = network.embedding.weight[[3, 5]], torch.tensor([3, 5])
    torch.testing.assert_close(other.embedding(ids), expected, rtol=0, atol=0.005)


def test_a_greedy_completion_and_candidates_run_on_it() -> None:
    from skipqa.backbones.generation.candidates import Candidate, generate_with_candidates

    _, other = pair(SHAPES["tied, with biases"], "int8")
    prompt = other.embedding(torch.tensor([[5, 7, 9, 11, 2]]))
    plain = other.generate(prompt, 4, stop=[0])
    candidates = [Candidate([n, 0]) for n in (3, 8, 21)]
    completion, log_probs = generate_with_candidates(other, prompt, 4, [0], candidates)
    assert completion.tokens == plain.tokens
    assert len(log_probs) == 4
