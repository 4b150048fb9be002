import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn.verifier import Verifier, VerifierConfig, distillation_loss

CONFIG = VerifierConfig(4, 5, hidden=8)


def verifier(**changes: float) -> Verifier:
    torch.manual_seed(0)
    return Verifier(VerifierConfig(4, 5, hidden=8, **changes)).double()  # type: ignore[arg-type]


scores = st.lists(
    st.floats(-8, 8).filter(lambda x: abs(x) > 1e-3), min_size=1, max_size=16, unique=True
).map(lambda values: torch.tensor(values, dtype=torch.float64))


@given(scores, st.integers(0, 20))
def test_verdict(logits: torch.Tensor, budget: int) -> None:
    verdict = verifier().judge(logits, budget)
    kept, K = verdict.kept.tolist(), len(logits)
    assert len(kept) <= min(budget, K)
    assert sorted(kept + verdict.rejected.tolist()) == list(range(K))  # every passage accounted for
    assert (logits[verdict.accepted] > 0).all()
    assert (logits[verdict.recalled] < 0).all()
    assert kept == sorted(kept, key=lambda j: -logits[j])
    if len(verdict.recalled):  # only as many as thin coverage asks for
        assert len(kept) == min(2, budget, K)
    enough = min(int((logits > 0).sum()), budget)
    assert len(verdict.accepted) == enough


@given(scores)
def test_accepting_all_changes_nothing(logits: torch.Tensor) -> None:
    verdict = verifier(threshold=0.0).judge(logits, len(logits))
    assert sorted(verdict.kept.tolist()) == list(range(len(logits)))
    assert len(verdict.rejected) == 0


@given(scores, st.integers(0, 20))
def test_gates_tend_to_the_verdict(logits: torch.Tensor, budget: int) -> None:
    order = logits.argsort()
    spread = torch.empty_like(logits)
    spread[order] = logits[order] + torch.arange(len(logits)) * 1e-2  # distinct, same order
    hard = torch.zeros_like(spread)
    hard[verifier().judge(spread, budget).kept] = 1.0
    soft = verifier().gates(spread, budget, 1e-5)
    torch.testing.assert_close(soft, hard, atol=1e-6, rtol=0)


def test_recall_can_be_turned_off() -> None:
    logits = torch.tensor([-1.0, -2.0, -0.5])
    assert verifier(min_passages=0).judge(logits, 3).kept.tolist() == []
    assert verifier().judge(logits, 3).recalled.tolist() == [2, 0]


def test_permuting_passages_permutes_scores_and_batches_agree() -> None:
    model = verifier()
    q, v, e = torch.randn(2, 4).double(), torch.randn(2, 5).double(), torch.randn(2, 7, 4).double()
    order = torch.randperm(7)
    whole = model(q, v, e)
    torch.testing.assert_close(model(q, v, e[:, order]), whole[:, order])
    torch.testing.assert_close(model(q[1], v[1], e[1]), whole[1])


def test_distillation_accepts_ratios_above_one() -> None:
    loss = distillation_loss(torch.tensor([10.0, -10.0]), torch.tensor([1.4, 0.0]))
    assert loss == pytest.approx(0.0, abs=1e-4)
