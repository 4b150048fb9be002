import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn.verifier import Verifier, VerifierConfig, distillation_loss, gates, judge

TAU, LEAST = 0.5, 2

scores = st.lists(
    st.floats(-8, 8).filter(lambda x: abs(x) > 1e-3), min_size=1, max_size=16, unique=True
).map(lambda values: torch.tensor(values, dtype=torch.float64))


@given(scores, st.integers(0, 20), st.integers(0, 4))
def test_verdict(logits: torch.Tensor, most: int, least: int) -> None:
    verdict = judge(logits.sigmoid(), most, TAU, least)
    kept, K = verdict.kept.tolist(), len(logits)
    assert len(kept) <= min(most, K)
    assert sorted(kept + verdict.rejected.tolist()) == list(range(K))  # every passage accounted for
    assert (logits[verdict.accepted] > 0).all()
    assert (logits[verdict.recalled] < 0).all()
    assert kept == sorted(kept, key=lambda j: -logits[j])
    if len(verdict.recalled):  # only as many as thin coverage asks for
        assert len(kept) == min(least, most, K)
    enough = min(int((logits > 0).sum()), most)
    assert len(verdict.accepted) == enough


def test_a_passage_at_the_threshold_is_accepted() -> None:
    nu = torch.tensor([0.5, 0.4999, 0.7])
    verdict = judge(nu, 3, 0.5, 0)
    assert verdict.accepted.tolist() == [2, 0]
    assert verdict.rejected.tolist() == [1]


@given(scores)
def test_accepting_all_changes_nothing(logits: torch.Tensor) -> None:
    verdict = judge(logits.sigmoid(), len(logits), 0.0, LEAST)
    assert sorted(verdict.kept.tolist()) == list(range(len(logits)))
    assert len(verdict.rejected) == 0


@given(scores, st.integers(0, 20))
def test_gates_tend_to_the_verdict(logits: torch.Tensor, most: int) -> None:
    order = logits.argsort()
    spread = torch.empty_like(logits)
    spread[order] = logits[order] + torch.arange(len(logits)) * 1e-2  # distinct, same order
    hard = torch.zeros_like(spread)
    hard[judge(spread.sigmoid(), most, TAU, LEAST).kept] = 1.0
    soft = gates(spread, most, TAU, LEAST, 1e-5)
    torch.testing.assert_close(soft, hard, atol=1e-6, rtol=0)


def test_thin_coverage_recalls_the_best_rejected() -> None:
    nu = torch.tensor([-1.0, -2.0, -0.5]).sigmoid()
    assert judge(nu, 3, TAU, 0).kept.tolist() == []
    assert judge(nu, 3, TAU, 2).recalled.tolist() == [2, 0]


def verifier() -> Verifier:
    torch.manual_seed(0)
    return Verifier(VerifierConfig(4, 5, hidden=8)).double()


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


def test_a_sure_rival_counts_and_padding_does_not() -> None:
    torch.manual_seed(0)
    verifier = Verifier(VerifierConfig(8, 8, hidden=4, rivals=4)).eval()
    question, visual, passages = torch.randn(8), torch.randn(8), torch.randn(3, 8)
    plain = verifier(question, visual, passages)
    assert verifier.among is not None
    torch.nn.init.normal_(verifier.among.out.weight)
    judged = verifier(question, visual, passages)
    assert not torch.allclose(judged, plain)
    padded = torch.cat((passages, 9 * torch.ones(2, 8)))
    there = torch.arange(5) < 3
    torch.testing.assert_close(verifier(question, visual, padded, there=there)[:3], judged)
    assert verifier(question, visual, passages[:0]).shape == (0,)
    own = torch.tensor([True, False, True])  # documents of somebody's own rival each other alone
    apart = verifier(question, visual, passages, own=own)
    assert not torch.allclose(apart, judged)
    for kind in (own, ~own):
        alone = verifier(question, visual, passages[kind])
        torch.testing.assert_close(apart[kind], alone)
