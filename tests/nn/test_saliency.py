import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn.relaxation import gumbel_noise, hard_top_k, logistic_noise
from skipqa.nn.saliency import (
    Saliency,
    SaliencyConfig,
    absolute_budget_loss,
    build_saliency,
    squared_budget_loss,
)

VARIANTS = pytest.mark.parametrize("variant", ["A", "B"])


def scored(variant: str, seed: int, V: int = 13, D: int = 6) -> tuple[Saliency, torch.Tensor]:
    torch.manual_seed(seed)
    model = build_saliency(SaliencyConfig(D, variant, hidden=8)).double()  # type: ignore[arg-type]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model, model(torch.randn(V, D).double(), torch.randn(D).double())


@VARIANTS
@given(seed=st.integers(0, 10_000), count=st.integers(0, 13))
def test_selection(variant: str, seed: int, count: int) -> None:
    model, logits = scored(variant, seed)
    kept = model.select(logits, count)
    assert len(kept) == count  # the budget, never more
    assert kept.tolist() == sorted(kept.tolist())
    dropped = set(range(13)) - set(kept.tolist())
    assert not dropped or not count or logits[kept].min() >= logits[list(dropped)].max()


@VARIANTS
@given(seed=st.integers(0, 10_000))
def test_retention_one_is_the_identity(variant: str, seed: int) -> None:
    model, logits = scored(variant, seed)
    assert model.select(logits, 13).tolist() == list(range(13))
    gates = model.gates(logits, 13, 0.01)
    torch.testing.assert_close(gates, torch.ones(13).double(), atol=1e-6, rtol=0)


@VARIANTS
@given(seed=st.integers(0, 10_000), count=st.integers(0, 13))
def test_relaxed_selection_tends_to_the_hard_one(variant: str, seed: int, count: int) -> None:
    model, logits = scored(variant, seed)
    # Two scores closer than the temperature resolves are no choice to converge to.
    logits = logits.round(decimals=2) + torch.arange(13) * 1e-4
    noise = (logistic_noise if variant == "A" else gumbel_noise)(
        logits, torch.Generator().manual_seed(seed)
    ).round(decimals=2)
    for perturbation in (None, noise):
        target = logits if perturbation is None else logits + perturbation
        soft = model.gates(logits, count, 1e-6, perturbation)
        hard = hard_top_k(target, count).double()
        torch.testing.assert_close(soft, hard, atol=1e-6, rtol=0)
        if perturbation is None:
            assert model.select(logits, count).tolist() == hard.nonzero()[:, 0].tolist()


@VARIANTS
def test_permuting_tokens_permutes_scores_and_batches_agree(variant: str) -> None:
    torch.manual_seed(2026)
    model = build_saliency(SaliencyConfig(6, variant)).double()  # type: ignore[arg-type]
    v, q = torch.randn(3, 9, 6).double(), torch.randn(3, 6).double()
    order = torch.randperm(9)
    batched = model(v, q)
    torch.testing.assert_close(model(v[:, order], q), batched[:, order])
    for row in range(3):
        torch.testing.assert_close(model(v[row], q[row]), batched[row])


@VARIANTS
def test_every_parameter_learns_through_the_gates(variant: str) -> None:
    torch.manual_seed(0)
    model = build_saliency(SaliencyConfig(6, variant))  # type: ignore[arg-type]
    logits = model(torch.randn(2, 9, 6), torch.randn(2, 6))
    (model.gates(logits, 4, 0.7) * torch.randn(2, 9)).sum().backward()
    for name, parameter in model.named_parameters():
        # Top-k does not see a constant added to every score.
        if name not in ("out.bias", "of_token.bias"):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_budget_losses() -> None:
    logits = torch.tensor([[0.0, 0.0], [100.0, -100.0]])  # mean sigmoid 0.5 in both rows
    assert absolute_budget_loss(logits, 0.1) == pytest.approx(0.5 * 0.4)
    assert squared_budget_loss(logits, 0.1) == pytest.approx(0.1 * 0.16)
    assert absolute_budget_loss(logits, 0.5) == pytest.approx(0.0)
