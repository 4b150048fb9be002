"""The decoder against transformers' Llama and Qwen2: tiny random weights, whole tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig as HubConfig
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

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
    "grouped, tied, with biases": LlamaConfig(
        97, 48, 3, 6, 2, 80, rope_theta=1e6, norm_eps=1e-6, tied=True, qkv_bias=True
    ),
}


def pair(config: LlamaConfig, seed: int = 0) -> tuple[Llama, PreTrainedModel]:
    """Both with the same weights, larger than a usual initialisation so that an error shows."""
    torch.manual_seed(seed)
    kind, settings = (
        (Qwen2ForCausalLM, Qwen2Config) if config.qkv_bias else (LlamaForCausalLM, HubConfig)
    )
    hub = kind(
        settings(
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
    for parameter in hub.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    network = Llama(config).eval()
    network.load_state_dict(from_hub_names(hub.state_dict(), config))
    return network.requires_grad_(False), hub.requires_grad_(False)


def run(network: Llama, ids_BT: Tensor, chunks: list[int]) -> Tensor:
    """Logits of every position, with the tokens read in chunks of the given lengths."""
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
def networks(request: pytest.FixtureRequest) -> tuple[Llama, PreTrainedModel, Tensor]:
    config = SHAPES[request.param]
    ids = torch.randint(config.vocabulary, (2, 17), generator=torch.Generator().manual_seed(1))
    return *pair(config), ids


Networks = tuple[Llama, PreTrainedModel, Tensor]


@pytest.mark.parametrize("shape", [(1, 48), (3, 48), (1, 8, 48), (2, 4, 48), (3, 3, 48)])
def test_a_product_is_the_same_however_few_its_rows(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(shape, generator=generator), torch.randn(80, 48, generator=generator)
    found = product(x, weight)
    torch.testing.assert_close(found, x @ weight.T)
    assert found.is_contiguous()


def test_prefill_equals_transformers(networks: Networks) -> None:
    network, hub, ids = networks
    expected = hub(ids).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(run(network, ids, [17]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunks", [[9] + [1] * 8, [1] * 17, [5, 7, 5]])
def test_cached_equals_uncached(networks: Networks, chunks: list[int]) -> None:
    network, _, ids = networks
    torch.testing.assert_close(
        run(network, ids, chunks), run(network, ids, [17]), rtol=1e-4, atol=1e-4
    )


def test_whole_texts_have_the_states_of_the_cached_form(networks: Networks) -> None:
    """And padding after a text changes nothing in it."""
    network, _, ids = networks
    cache = KVCache(network.config, 2, 17)
    cached = network(network.embedding(ids), cache, torch.arange(17), 17, from_zero=True)
    whole = network.states(network.embedding(ids))
    torch.testing.assert_close(whole, cached, rtol=1e-4, atol=1e-4)
    padded = torch.cat((ids, torch.zeros_like(ids[:, :5])), dim=1)
    torch.testing.assert_close(network.states(network.embedding(padded))[:, :17], whole)


def test_whole_texts_have_gradients(networks: Networks) -> None:
    network, _, ids = networks
    embedded = network.embedding(ids).requires_grad_()
    network.states(embedded)[:, -1].sum().backward()
    assert embedded.grad is not None
    assert (embedded.grad != 0).any(dim=-1).all()  # the last state sees every token


def test_greedy_generation_equals_transformers(networks: Networks) -> None:
    network, hub, ids = networks
    generated = network.generate(network.embedding(ids[:1]), 12)
    expected = hub.generate(
        ids[:1], max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert generated.tokens == expected[0, 17:].tolist()
    assert len(generated.log_probs) == 12
    assert all(p <= 0 for p in generated.log_probs)


def test_generation_stops_before_a_stop_token(networks: Networks) -> None:
    network, _, ids = networks
    free = network.generate(network.embedding(ids[:1]), 12).tokens
    stopped = network.generate(network.embedding(ids[:1]), 12, stop=[free[4]]).tokens
    assert stopped == free[: free.index(free[4])]
    assert network.generate(network.embedding(ids[:1]), 0).tokens == []


def test_a_past_is_continued_and_not_changed(networks: Networks) -> None:
    network, _, ids = networks
    whole = network.generate(network.embedding(ids[:1]), 6)
    past = network.read(
        network.embedding(ids[:1, 4:9]), network.read(network.embedding(ids[:1, :4]))
    )
    assert past.length == 9
    for _ in range(2):
        continued = network.generate(network.embedding(ids[:1, 9:]), 6, past=past)
        assert continued.tokens == whole.tokens
    split = flops(network.config, 9, 9, logits=0) + flops(network.config, 8, 17)
    assert continued.flops < whole.flops
    assert continued.flops - flops(network.config, 8, 17) == whole.flops - flops(
        network.config, 17, 17
    )
    assert split < flops(network.config, 17, 17)  # the first nine never see the last eight


@pytest.mark.parametrize(("new", "before"), [(17, 0), (1, 16), (5, 12)])
def test_flops_are_what_torch_counts(networks: Networks, new: int, before: int) -> None:
    network, _, ids = networks
    cache = KVCache(network.config, 1, 17)
    if before:
        network(
            network.embedding(ids[:1, :before]), cache, torch.arange(before), before, from_zero=True
        )
    embedded = network.embedding(ids[:1, before : before + new])
    positions = torch.arange(before, before + new)
    # The counter does not see the fused CPU kernel.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        hidden = network(embedded, cache, positions, before + new, from_zero=before == 0)
        network.logits(hidden[:, -1])
    assert flops(network.config, new, before + new) == counter.get_total_flops()


def test_flops_of_a_generation(networks: Networks) -> None:
    network, _, ids = networks
    embedded = network.embedding(ids[:1])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        generated = network.generate(embedded, 6)
    assert generated.flops == counter.get_total_flops() == generation_flops(network.config, 17, 5)


def test_cache_is_as_large_as_it_says() -> None:
    config = SHAPES["grouped, tied"]
    cache = KVCache(config, 2, 10, dtype=torch.bfloat16)
    assert cache.length == 10
    assert cache.bytes == 2 * config.layers * 2 * config.kv_heads * 10 * config.head_width * 2
