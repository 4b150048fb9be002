"""One token through its kernels against torch's operations: interpreted on a CPU in float32,
compiled on a GPU in bfloat16 too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")  # tests/conftest.py turns its interpreter on

from skipqa.backbones.generation.graphs import StaticDecoder, one_token
from skipqa.backbones.networks.llama import KVCache, Llama, LlamaConfig, rotation
from skipqa.ops.one_token import product

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {
    "grouped, tied": LlamaConfig(97, 48, 3, 6, 2, 80, rope_theta=100_000.0, tied=True),
    "one key head each": LlamaConfig(61, 32, 2, 4, 4, 48),
    "with biases": LlamaConfig(61, 32, 2, 4, 2, 48, tied=True, qkv_bias=True),
}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize(("rows", "width"), [(64, 32), (38, 48), (10, 1100), (6, 2048)])
def test_a_product_with_all_that_goes_with_it(rows: int, width: int) -> None:
    x, weight, plus = normal(width), normal(rows, width, seed=1), normal(rows, seed=2)
    norm = torch.nn.RMSNorm(width, eps=1e-3, device=DEVICE).requires_grad_(False)
    norm.weight.copy_(normal(width, seed=3))
    plain = F.linear(x, weight)
    a, b = F.linear(norm(x), weight).chunk(2)
    for found, expected in (
        (product(x, weight), plain),
        (product(x, weight, plus=plus), plain + plus),
        (product(x, weight, norm=norm), torch.cat((a, b))),
        (product(x, weight, norm=norm, gated=True), F.silu(a) * b),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("before", [0, 1, 70, 299])  # nothing, and more than a block, than a part
def test_a_token_is_what_the_decoder_makes_of_it(shape: str, before: int) -> None:
    config, length = SHAPES[shape], 300
    torch.manual_seed(0)
    model = Llama(config).requires_grad_(False).to(DEVICE)
    expected, found = (KVCache(config, 1, length, device=DEVICE) for _ in range(2))
    if before:
        read = normal(1, before, config.width)
        model(read, expected, torch.arange(before, device=DEVICE), before, from_zero=True)
    found.keys.copy_(expected.keys)
    found.values.copy_(expected.values)
    found.keys[:, :, :, before:] = torch.nan  # nothing may look there

    x, position = normal(config.width, seed=5), torch.tensor([before], device=DEVICE)
    hidden = model(x[None, None], expected, position, before + 1, from_zero=False)
    rope = rotation(config, torch.arange(length, device=DEVICE), torch.float32)
    logits = one_token(model, x, found, rope, position)
    torch.testing.assert_close(logits, model.logits(hidden)[0, 0], rtol=1e-3, atol=1e-4)
    filled = slice(before + 1)
    for ours, theirs in ((found.keys, expected.keys), (found.values, expected.values)):
        torch.testing.assert_close(ours[..., filled, :], theirs[..., filled, :])


@pytest.mark.gpu
def test_in_half_precision_it_errs_no_more_than_torch() -> None:
    config = LlamaConfig(4_000, 1_024, 4, 8, 8, 2_816)
    torch.manual_seed(0)
    model = Llama(config).requires_grad_(False).cuda()
    x, position = normal(config.width), torch.tensor([260], device="cuda")

    def logits(dtype: torch.dtype, kernels: bool) -> torch.Tensor:
        cast = Llama(config).requires_grad_(False).to("cuda", dtype)
        cast.load_state_dict(model.state_dict())
        cache = KVCache(config, 1, 300, dtype=dtype, device="cuda")
        places = torch.arange(300, device="cuda")
        cast(normal(1, 260, config.width).to(dtype), cache, places[:260], 260, from_zero=True)
        if kernels:
            rope = rotation(config, places, dtype)
            return one_token(cast, x.to(dtype), cache, rope, position)
        return cast.logits(cast(x[None, None].to(dtype), cache, position, 261, from_zero=False))[
            0, 0
        ]

    exact = logits(torch.float64, kernels=False).float()
    ours, theirs = (logits(torch.bfloat16, k).sub(exact).abs().max() for k in (True, False))
    assert ours <= 1.5 * theirs


@pytest.mark.gpu
def test_recorded_it_says_what_the_plain_decoder_says() -> None:
    config = SHAPES["one key head each"]
    torch.manual_seed(0)
    model = Llama(config).requires_grad_(False).cuda()
    decoder = StaticDecoder(model, batch=1, prompts=[40], max_new=6)
    for length in (40, 33):
        prompt = normal(1, length, config.width, seed=length)
        assert decoder.generate(prompt, 6)[0].tolist() == model.generate(prompt, 6).tokens
