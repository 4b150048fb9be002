"""Factors beside a frozen network: what they add, what gets a gradient, and that peft agrees."""

from __future__ import annotations

import pytest
import tiny_training
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import QWEN, qwen

from skipqa.backbones.networks.llama import Llama
from skipqa.nn import low_rank
from skipqa.nn.lora import Adapter, LoraConfig

NAMES = [f"layers.{i}.{part}" for i in range(QWEN.layers) for part in ("qkv", "out", "down")]
LORA = LoraConfig(rank=3, dropout=0.0)


def moved(decoder: Llama, config: LoraConfig = LORA) -> Adapter:
    """With up factors that are not zero."""
    torch.manual_seed(1)
    adapter = Adapter.start(decoder, NAMES, config)
    for factors in adapter.factors:
        torch.nn.init.normal_(factors.up, std=0.1)  # type: ignore[arg-type]
    return adapter


def texts() -> torch.Tensor:
    return torch.randint(0, tiny_training.VOCABULARY, (2, 7), generator=torch.manual_seed(3))


def states(decoder: Llama, recompute: bool = False) -> torch.Tensor:
    return decoder.states(decoder.embedding(texts()), recompute=recompute)


def test_it_starts_as_the_network_and_leaves_it_so() -> None:
    decoder = qwen()
    before = states(decoder)
    with Adapter.start(decoder, NAMES, LORA).beside(decoder):
        assert torch.equal(states(decoder), before)
    with moved(decoder).beside(decoder):
        assert not torch.allclose(states(decoder), before, atol=1e-3)
    assert torch.equal(states(decoder), before)


def test_the_delta_is_what_it_adds() -> None:
    decoder, merged = qwen(), qwen()
    adapter = moved(decoder)
    delta = adapter.delta()
    merged.load_state_dict(low_rank.apply(merged.state_dict(), delta))
    with adapter.beside(decoder):
        torch.testing.assert_close(states(decoder), states(merged), rtol=1e-4, atol=1e-5)
    with Adapter.of(delta, torch.device("cpu")).beside(decoder):
        torch.testing.assert_close(states(decoder), states(merged), rtol=1e-4, atol=1e-5)


@given(st.integers(0, 1_000), st.integers(1, 6))
def test_balanced_factors_have_the_same_product(seed: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    up = torch.randn(rank, 9, generator=generator)
    down = 10 * torch.randn(rank, 14, generator=generator)
    even_up, even_down = low_rank.balanced(up, down)
    torch.testing.assert_close(even_up.T @ even_down, up.T @ down, rtol=1e-4, atol=1e-4)
    lengths = even_up.norm(dim=1)
    torch.testing.assert_close(lengths, even_down.norm(dim=1), rtol=1e-4, atol=1e-4)
    assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)


def test_only_factors_get_a_gradient() -> None:
    decoder = qwen()
    adapter = moved(decoder)
    with adapter.beside(decoder):
        states(decoder).square().sum().backward()
    assert all(parameter.grad is None for parameter in decoder.parameters())
    assert all(p.grad is not None and p.grad.any() for p in adapter.parameters())


def test_recomputed_layers_have_the_same_gradients() -> None:
    """Dropout included: a layer that is computed again draws the same numbers."""
    decoder = qwen()
    found = []
    for recompute in (False, True):
        adapter = moved(decoder, LoraConfig(rank=3, dropout=0.5)).train()
        torch.manual_seed(7)
        with adapter.beside(decoder):
            loss = states(decoder, recompute).square().sum()
            loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in adapter.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_peft_computes_the_same() -> None:
    """The same factors by peft, injected into our own decoder: states, gradients, merged."""
    peft = pytest.importorskip("peft")
    ours, theirs = qwen(), qwen()
    adapter = moved(ours)
    config = peft.LoraConfig(
        r=LORA.rank,
        lora_alpha=LORA.scale * LORA.rank,
        lora_dropout=0.0,
        target_modules=["qkv", "out", "down"],
    )
    peft.inject_adapter_in_model(config, theirs)
    injected = {}
    for name, factors in zip(adapter.names, adapter.factors, strict=True):
        module = injected[name] = theirs.get_submodule(name)
        module.lora_A["default"].weight.data.copy_(factors.down)  # type: ignore[index,union-attr]
        module.lora_B["default"].weight.data.copy_(factors.up.T)  # type: ignore[index,union-attr]
    with adapter.beside(ours):
        found, expected = states(ours), states(theirs)
        torch.testing.assert_close(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
    merged = low_rank.apply(ours.state_dict(), adapter.delta())
    for name, factors in zip(adapter.names, adapter.factors, strict=True):
        module = injected[name]
        torch.testing.assert_close(factors.down.grad, module.lora_A["default"].weight.grad)  # type: ignore[index,union-attr]
        torch.testing.assert_close(factors.up.grad.T, module.lora_B["default"].weight.grad)  # type: ignore[index,union-attr]
        module.merge()  # type: ignore[operator]
        weight = module.get_base_layer().weight  # type: ignore[operator]
        torch.testing.assert_close(merged[f"{name}.weight"], weight, rtol=1e-4, atol=1e-5)
