"""The decoder against transformers' Llama: tiny random weights, whole tensors, float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig as HubConfig
from transformers import LlamaForCausalLM

from skipqa.backbones.networks.llama import (
    KVCache,
    Llama,
    LlamaConfig,
    flops,
    from_hub_names,
    generation_flops,
    product,
)

SHAPES = {
    "grouped, tied": LlamaConfig(97, 48, 3, 6, 2, 80, rope_theta=100_000.0, tied=True),
    "grouped, untied": LlamaConfig(97, 48, 2, 4, 2, 64, norm_eps=1e-6),
    "one key head each": LlamaConfig(61, 32, 2, 4, 4, 48),
}


def pair(config: LlamaConfig, seed: int = 0) -> tuple[Llama, LlamaForCausalLM]:
    """Ours and theirs with the same weights, larger than the usual start so that an error shows."""
    torch.manual_seed(seed)
    theirs = LlamaForCausalLM(
        HubConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            intermediate_size=config.ffn,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tied,
            max_position_embeddings=128,
        )
    ).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = Llama(config).eval()
    ours.load_state_dict(from_hub_names(theirs.state_dict(), config))
    return ours.requires_grad_(False), theirs.requires_grad_(False)


def run(network: Llama, ids_BT: Tensor, chunks: list[int]) -> Tensor:
    """Logits of every position, the tokens fed in pieces of the given lengths."""
    batch, length = ids_BT.shape
    cache = KVCache(network.config, batch, length)
    out, start = [], 0
    for chunk in chunks:
        end = start + chunk
        embedded = network.embedding(ids_BT[:, start:end])
        hidden = network(embedded, cache, torch.arange(start, end), end, from_zero=start == 0)
        out.append(network.logits(hidden))
        start = end
    assert start == length
    return torch.cat(out, dim=1)


@pytest.fixture(params=SHAPES, scope="module")
def networks(request: pytest.FixtureRequest) -> tuple[Llama, LlamaForCausalLM, Tensor]:
    config = SHAPES[request.param]
    ids = torch.randint(config.vocabulary, (2, 17), generator=torch.Generator().manual_seed(1))
    return *pair(config), ids


Networks = tuple[Llama, LlamaForCausalLM, Tensor]


@pytest.mark.parametrize("shape", [(1, 48), (3, 48), (1, 8, 48), (2, 4, 48), (3, 3, 48)])
def test_a_product_is_the_same_however_few_its_rows(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(shape, generator=generator), torch.randn(80, 48, generator=generator)
    found = product(x, weight)
    torch.testing.assert_close(found, x @ weight.T)
    assert found.is_contiguous()


def test_prefill_equals_transformers(networks: Networks) -> None:
    ours, theirs, ids = networks
    expected = theirs(ids).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(run(ours, ids, [17]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunks", [[9] + [1] * 8, [1] * 17, [5, 7, 5]])
def test_cached_equals_uncached(networks: Networks, chunks: list[int]) -> None:
    ours, _, ids = networks
    torch.testing.assert_close(run(ours, ids, chunks), run(ours, ids, [17]), rtol=1e-4, atol=1e-4)


def test_whole_texts_have_the_states_of_the_cached_form(networks: Networks) -> None:
    """And what is padded after a text changes nothing in it."""
    ours, _, ids = networks
    cache = KVCache(ours.config, 2, 17)
    cached = ours(ours.embedding(ids), cache, torch.arange(17), 17, from_zero=True)
    whole = ours.states(ours.embedding(ids))
    torch.testing.assert_close(whole, cached, rtol=1e-4, atol=1e-4)
    padded = torch.cat((ids, torch.zeros_like(ids[:, :5])), dim=1)
    torch.testing.assert_close(ours.states(ours.embedding(padded))[:, :17], whole)


def test_whole_texts_can_be_learned_from(networks: Networks) -> None:
    ours, _, ids = networks
    embedded = ours.embedding(ids).requires_grad_()
    ours.states(embedded)[:, -1].sum().backward()
    assert embedded.grad is not None
    assert (embedded.grad != 0).any(dim=-1).all()  # the last state sees every token


def test_greedy_generation_equals_transformers(networks: Networks) -> None:
    ours, theirs, ids = networks
    generated = ours.generate(ours.embedding(ids[:1]), 12)
    expected = theirs.generate(
        ids[:1], max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert generated.tokens == expected[0, 17:].tolist()
    assert len(generated.log_probs) == 12
    assert all(p <= 0 for p in generated.log_probs)


def test_generation_stops_before_a_stop_token(networks: Networks) -> None:
    ours, _, ids = networks
    free = ours.generate(ours.embedding(ids[:1]), 12).tokens
    stopped = ours.generate(ours.embedding(ids[:1]), 12, stop=[free[4]]).tokens
    assert stopped == free[: free.index(free[4])]
    assert ours.generate(ours.embedding(ids[:1]), 0).tokens == []


def test_what_was_read_before_is_continued_and_left_as_it_was(networks: Networks) -> None:
    ours, _, ids = networks
    whole = ours.generate(ours.embedding(ids[:1]), 6)
    past = ours.read(ours.embedding(ids[:1, 4:9]), ours.read(ours.embedding(ids[:1, :4])))
    assert past.length == 9
    for _ in range(2):
        continued = ours.generate(ours.embedding(ids[:1, 9:]), 6, past=past)
        assert continued.tokens == whole.tokens
    split = flops(ours.config, 9, 9, logits=0) + flops(ours.config, 8, 17)
    assert continued.flops < whole.flops
    assert continued.flops - flops(ours.config, 8, 17) == whole.flops - flops(ours.config, 17, 17)
    assert split < flops(ours.config, 17, 17)  # the first nine never see the last eight


@pytest.mark.parametrize(("new", "before"), [(17, 0), (1, 16), (5, 12)])
def test_flops_are_what_torch_counts(networks: Networks, new: int, before: int) -> None:
    ours, _, ids = networks
    cache = KVCache(ours.config, 1, 17)
    if before:
        ours(ours.embedding(ids[:1, :before]), cache, torch.arange(before), before, from_zero=True)
    embedded = ours.embedding(ids[:1, before : before + new])
    positions = torch.arange(before, before + new)
    # The fused CPU kernel is no torch operation that the counter would see.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        hidden = ours(embedded, cache, positions, before + new, from_zero=before == 0)
        ours.logits(hidden[:, -1])
    assert flops(ours.config, new, before + new) == counter.get_total_flops()


def test_flops_of_a_generation(networks: Networks) -> None:
    ours, _, ids = networks
    embedded = ours.embedding(ids[:1])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        generated = ours.generate(embedded, 6)
    assert generated.flops == counter.get_total_flops() == generation_flops(ours.config, 17, 5)


def test_cache_is_as_large_as_it_says() -> None:
    config = SHAPES["grouped, tied"]
    cache = KVCache(config, 2, 10, dtype=torch.bfloat16)
    assert cache.length == 10
    assert cache.bytes == 2 * config.layers * 2 * config.kv_heads * 10 * config.head_width * 2
