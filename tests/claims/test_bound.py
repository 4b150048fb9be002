import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from skipqa.claims.bound import Sweep, constant, passages_needed, read_sweeps, tokens_needed
from skipqa.claims.bound_figure import draw
from skipqa.errors import UserError


def test_the_papers_examples() -> None:
    bound = tokens_needed(576, 0.05)
    assert bound.count == 51
    assert bound.likely == (48, 72)
    assert not bound.vacuous
    assert passages_needed(16, 0.05).likely == (4, 8)


@given(st.integers(1, 10_000), st.floats(0.001, 0.9), st.floats(0.1, 3), st.floats(0.001, 0.05))
def test_bound_is_monotone_and_never_exceeds_what_there_is(
    available: int, epsilon: float, lipschitz: float, eta: float
) -> None:
    C = constant(lipschitz, eta)
    bound = tokens_needed(available, epsilon, C)
    assert bound.count <= available
    assert bound.vacuous == (bound.count == available)
    assert tokens_needed(available + 100, epsilon, C).count >= bound.count
    assert tokens_needed(available, epsilon / 2, C).count >= bound.count
    assert tokens_needed(available, epsilon, constant(lipschitz, 2 * eta)).count >= bound.count


@pytest.mark.parametrize("arguments", [(0, 0.05), (576, 0.0), (576, 1.0), (576, 0.05, -1.0)])
def test_bad_numbers_are_refused(arguments: tuple[int, float]) -> None:
    with pytest.raises(UserError):
        tokens_needed(*arguments)


def test_needed_ignores_lucky_points_below_a_bad_one() -> None:
    sweep = Sweep(576, {16: 0.62, 32: 0.50, 64: 0.61, 128: 0.60, 576: 0.62})
    assert sweep.needed(0.02) == 64
    assert sweep.needed(0.0) == 576


def test_command_compares_and_draws(tmp_path: Path) -> None:
    from skipqa.cli.theory import app

    results = tmp_path / "sweep.json"
    points = [{"kept": k, "accuracy": a} for k, a in ((32, 0.5), (64, 0.6), (576, 0.61))]
    results.write_text(json.dumps({"sweeps": [{"available": 576, "points": points}]}))
    plot = tmp_path / "bound.svg"
    ran = CliRunner().invoke(app, ["--measured", str(results), "--plot", str(plot), "--json"])
    assert ran.exit_code == 0, ran.output
    said = json.loads(ran.stdout)
    assert said["compared"] == [
        {"available": 576, "predicted": 51, "likely": [48, 72], "measured": 64}
    ]
    assert "64 of 576" in plot.read_text()


def test_results_without_an_unpruned_point_are_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"sweeps": [{"available": 9, "points": [{"kept": 3, "accuracy": 0.5}]}]}')
    with pytest.raises(UserError, match="unpruned"):
        read_sweeps(bad)
    bad.write_text("[]")
    with pytest.raises(UserError, match="no sweep"):
        read_sweeps(bad)
    with pytest.raises(UserError, match="no results"):
        read_sweeps(tmp_path / "absent.json")


def test_drawing_needs_no_results() -> None:
    assert draw([], 0.05).axes[0].get_xlabel() == "available tokens V"
