"""The theorems' quantities on made runs, and their inequalities on random numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from skipqa.claims.fidelity import score_gap
from skipqa.claims.quantities import (
    bound_constant,
    least_recall,
    lipschitz,
    most_misranked,
    trade_off,
)
from skipqa.claims.token_worth import TokenAblation
from skipqa.cli.theory import app
from skipqa.errors import UserError
from skipqa.evaluation.reports.runs import read_run, read_runs

if TYPE_CHECKING:
    from made_runs import MakeRun

COUNTS = st.integers(0, 500)


@given(st.integers(1, 500), COUNTS, COUNTS)
def test_what_f1_says_of_recall(hits: int, false_alarms: int, misses: int) -> None:
    f1 = 2 * hits / (2 * hits + false_alarms + misses)
    recall = hits / (hits + misses)
    assert recall >= least_recall(f1) - 1e-12
    if not false_alarms:
        assert recall == pytest.approx(least_recall(f1)), "attained by a precision of 1"


def test_the_lemma_as_written_is_wrong() -> None:
    """Precision 1 and recall 9/11 have an F1 of 0.90, and nine in eleven are not nine in ten."""
    assert least_recall(0.90) == pytest.approx(9 / 11)


@given(
    st.lists(st.integers(0, 1_000), min_size=2, max_size=40),
    st.integers(1, 39),
    st.integers(0, 300),
    st.randoms(use_true_random=False),
)
def test_step_1_bounds_what_is_misranked(
    worths: list[int], kept: int, eta: int, random: Any
) -> None:
    kept = min(kept, len(worths) - 1)
    true = torch.tensor(worths).double()
    gap = score_gap(true, kept)
    if gap == 0:
        return
    noise = torch.tensor([random.uniform(-eta, eta) for _ in worths]).double()
    best, chosen = (
        set(scores.argsort(descending=True, stable=True)[:kept].tolist())
        for scores in (true, true + noise)
    )
    assert len(best ^ chosen) <= most_misranked(eta, gap, len(worths))


def test_nothing_is_misranked_by_a_perfect_score() -> None:
    assert most_misranked(0.0, 0.1, 256) == 0


def test_score_gap() -> None:
    scores = torch.tensor([0.1, 0.9, 0.4])
    assert score_gap(scores, 1) == pytest.approx(0.5)
    assert score_gap(scores, 3) == 0.0


def test_c_from_what_was_measured() -> None:
    found = bound_constant(lipschitz=1.0, eta=0.01, gap=0.04, available=256, epsilon=0.05)
    assert pytest.approx(1.0) == found.C
    assert found.tokens == math.ceil(16 * math.log(20))
    assert not found.vacuous
    assert bound_constant(1.0, 0.5, 0.001, 256, 0.05).vacuous


def looked_up(question: int) -> dict[str, Any]:
    """Of ten questions the gold passage is retrieved for eight, and six of these are kept."""
    return {
        "box_kept": 0.75,
        "gold": ["a"],
        "retrieved": ["a"] if question % 10 < 8 else [],
        "evidence": ["a"] if question % 10 < 6 else [],
        "tokens": 64,
        "edges": 16,
    }


def test_trade_off(made: MakeRun) -> None:
    folders = [
        made("skip", "skip", 0.5, fields=looked_up, flops=10e9),
        made("dense", "dense", 0.6, flops=40e9),
        *(made(str(r), "skip", a, retention=r) for r, a in ((0.1, 0.4), (0.5, 0.6), (1.0, 0.6))),
    ]
    found = trade_off(read_runs(folders)[0])
    assert found is not None
    assert found.epsilon_v == pytest.approx(0.25)
    assert found.delta_r == pytest.approx(0.2)
    assert found.verifier_recall == pytest.approx(0.75)
    assert found.allowed == pytest.approx(0.25 + 0.2 + 0.25)
    assert found.lost == pytest.approx(0.1)
    assert found.degree == pytest.approx(0.25)
    assert found.times_fewer_flops == pytest.approx(4)
    assert found.lipschitz == pytest.approx(0.2 / 0.4)


def test_what_records_do_not_tell(made: MakeRun) -> None:
    found = trade_off(read_runs([made("skip", "skip"), made("dense", "dense")])[0])
    assert found is not None
    assert (found.epsilon_v, found.delta_r, found.allowed, found.lipschitz) == (None,) * 4
    assert trade_off(read_runs([made("alone", "skip")])[0]) is None


def test_points_too_near_have_no_slope(made: MakeRun) -> None:
    runs = {r: read_run(made(str(r), "skip", a, retention=r)) for r, a in ((0.1, 0.1), (0.11, 0.9))}
    assert lipschitz(runs) is None, "assumption 1 is about intervals of 1 / sqrt(V)"


@pytest.mark.parametrize("half", [False, True])
def test_half_of_the_tokens_may_be_kept_ones(half: bool) -> None:
    kept = torch.arange(10)
    drawn = TokenAblation(tokens=16, seed=3, half_kept=half).positions(256, kept)
    assert len(drawn.unique()) == 16
    assert (int(torch.isin(drawn, kept).sum()) == 8) is half


def test_command(made: MakeRun, tmp_path: Path) -> None:
    folders = [made("skip", "skip", 0.5, fields=looked_up), made("dense", "dense", 0.6)]
    folders += [made(str(r), "skip", a, retention=r) for r, a in ((0.1, 0.4), (1.0, 0.6))]
    fidelity = {"eta_calibrated": 0.5, "score_gap": 0.001, "available": 256}
    (tmp_path / "fidelity_abacus_202611.json").write_text(json.dumps({"results": fidelity}))
    words = ["quantities", *map(str, folders), "--results", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.exception
    said = json.loads(done.stdout)
    assert said["trade_off"][0]["delta_r"] == pytest.approx(0.2)
    assert said["bound"][0]["vacuous"]
    assert "everything: vacuous" in CliRunner().invoke(app, words).stdout
    with pytest.raises(UserError, match="no runs of skip and dense"):
        CliRunner().invoke(app, words[:2], catch_exceptions=False)
