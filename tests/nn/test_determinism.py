"""A seed fixes everything: weights, noise, gates, selections and gradients, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from skipqa.nn import verifier
from skipqa.nn.budget import DifficultyBudgetConfig, DiscreteBudgetConfig, build_budget
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.region_query import RegionQueryConfig, RegionViews, build_region_query
from skipqa.nn.relaxation import gumbel_noise, logistic_noise
from skipqa.nn.saliency import SaliencyConfig, build_saliency
from skipqa.nn.soft_edges import relaxed_fusion
from skipqa.nn.verifier import Verifier, VerifierConfig

Draw = Callable[[Tensor], Tensor]


def saliency(variant: str, draw: Draw) -> tuple[nn.Module, Tensor]:
    model = build_saliency(SaliencyConfig(6, variant))  # type: ignore[arg-type]
    logits = model(torch.randn(9, 6), torch.randn(6))
    return model, model.gates(logits, 4, 0.5, draw(logits)) * torch.arange(9)


def region_query(variant: str, draw: Draw) -> tuple[nn.Module, Tensor]:
    model = build_region_query(
        RegionQueryConfig(5, 2, 4, variant, hidden=8, vocabulary=40, max_terms=6)  # type: ignore[arg-type]
    )
    views, question = RegionViews(torch.randn(3, 5), torch.rand(3, 2)), torch.randn(4)
    if variant == "B":
        return model, model(views, question, torch.rand(3, 4))
    weights = model.weights(torch.rand(3, 40), model(views, question))
    return model, model.relaxed_queries(weights, 0.5, draw(weights))


def fusion(variant: str, draw: Draw) -> tuple[nn.Module, Tensor]:
    model = BipartiteFusion(FusionConfig(6, 4, 2, variant, edge_width=5, beta=0.3, degree=1.0))  # type: ignore[arg-type]
    nn.init.normal_(model.out.weight)
    inputs = torch.randn(7, 6), torch.randn(15, 4), torch.randn(5, 4), [3] * 5
    soft, _ = relaxed_fusion(model, *inputs, temperature=0.5, noise=draw(torch.empty(7, 5)))
    return model, soft + model(*inputs).tokens


def controller(variant: str, draw: Draw) -> tuple[nn.Module, Tensor]:
    kind = DiscreteBudgetConfig if variant == "A" else DifficultyBudgetConfig
    model = build_budget(kind(5, 4))
    allocation = model(torch.randn(5), torch.randn(4), 576, 16)
    counts = model.straight_through(allocation)
    return model, counts.tokens + counts.passages + draw(counts.tokens)


def verification(variant: str, draw: Draw) -> tuple[nn.Module, Tensor]:
    model = Verifier(VerifierConfig(4, 5, hidden=8))
    logits = model(torch.randn(4), torch.randn(5), torch.randn(7, 4))
    return model, verifier.gates(logits, 5, 0.5, 1, 0.5, draw(logits))


def drafting(variant: str, draw: Draw) -> tuple[nn.Module, Tensor]:
    config = DrafterConfig(9, 5, 4, answers=tuple("abc"), width=16, layers=1, heads=2, ffn=32)
    model = Drafter(config)
    logits = model(torch.randn(1, 9, 5), torch.randn(1, 3, 4))
    return model, logits + draw(logits)


@pytest.mark.parametrize("variant", ["A", "B"])
@pytest.mark.parametrize(
    "component", [saliency, region_query, fusion, controller, verification, drafting]
)
def test_a_seed_fixes_values_and_gradients(
    component: Callable[[str, Draw], tuple[nn.Module, Tensor]], variant: str
) -> None:
    def run(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        noise = logistic_noise if variant == "A" else gumbel_noise
        model, out = component(variant, lambda like: noise(like, generator))
        out.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert gradients
        return [out.detach(), *gradients]

    first, second = run(2026), run(2026)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], run(42)[0])
