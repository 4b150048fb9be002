"""Which runs are compared, and on which questions: pairs, sweeps, seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.config import Config
from skipqa.evaluation.reports.comparison import (
    FITTED,
    OWN_PRUNER,
    Paired,
    pair,
    seed_accuracies,
    seed_groups,
    sweeps,
)
from skipqa.evaluation.reports.runs import read_run, read_runs

if TYPE_CHECKING:
    from made_runs import MakeRun


def test_pairs_are_of_shared_questions_in_one_order(made: MakeRun) -> None:
    one = read_run(made("a", questions=range(30), accuracy=0.5))
    two = read_run(made("b", questions=range(29, 9, -1), accuracy=0.5))
    paired = pair(one, two, "question_id")
    assert len(paired) == 20
    assert (paired.first == paired.second).all()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=5, max_size=40))
def test_a_fraction_of_the_second_is_compared(scores: list[tuple[bool, bool]]) -> None:
    first, second = np.array(scores, dtype=float).T
    paired = Paired(first, second)
    assert paired.compare().difference == pytest.approx(first.mean() - second.mean())
    assert paired.compare(fraction=0).difference == pytest.approx(first.mean())


def test_a_ratio_says_how_many_times_more_the_second_spends(made: MakeRun) -> None:
    one, two = read_run(made("a", flops=10e9)), read_run(made("b", flops=40e9))
    assert pair(one, two, "flops").ratio == pytest.approx(4)
    nothing = Paired(np.zeros(3), np.ones(3))
    assert nothing.ratio == np.inf


def test_sweeps_are_lines_of_pruners(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("a", "skip"),
            made("b", "skip-no-pruning", tokens=576),
            made("c", "skip", retention=0.11),
            made("d", "skip", pruner="tome", retention=0.5),
            made("e", "skip", pruner="tome", retention=0.25),
            made("f", "dense", pruner="tome", retention=0.25),
            made("g", "skip-no-draft"),
        ]
    )
    lines = sweeps(found)
    assert list(lines) == [OWN_PRUNER, "tome", "dense, tome"]
    assert list(lines[OWN_PRUNER]) == [0.11, 1.0], "SKIP's own retention is about the same"
    assert list(lines["tome"]) == [0.25, 0.5]


def test_a_sweep_is_over_what_all_of_it_answered(made: MakeRun) -> None:
    folders = [
        made("a", "skip", questions=range(20)),
        made("b", "skip", pruner="tome", retention=0.5, questions=range(4, 9)),
        made("c", "skip", pruner="tome", retention=0.25, questions=range(2, 8)),
    ]
    (found,) = read_runs(folders)
    lines = sweeps(found)
    asked = [set(run.records) for runs in lines.values() for run in runs.values()]
    assert asked == [set(range(4, 8))] * 3


def test_seeds_are_compared_on_what_all_answered(made: MakeRun) -> None:
    folders = [made(str(seed), seed=seed, questions=range(seed, 20)) for seed in (0, 5, 9)]
    (found,) = read_runs([*folders, made("dense", "dense")])
    (group,) = seed_groups(found.runs)
    accuracies, shared = seed_accuracies(group)
    assert [run.seed for run in group] == [0, 5, 9]
    assert (len(accuracies), shared) == (3, 11)


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        *((name, 1) for name in FITTED),
        ("decode.words", 0),
        ("verify.slope", 0),
        ("variant", 0),
    ],
)
def test_seeds_may_differ_in_settings_that_training_fitted(
    made: MakeRun, name: str, groups: int
) -> None:
    def config(value: int) -> dict[str, Any]:
        stage, _, setting = name.partition(".")
        return {"preset": "pocket", stage: {setting: value} if setting else value}

    folders = [made(str(seed), seed=seed, config=config(seed)) for seed in range(3)]
    (found,) = read_runs(folders)
    assert [len(group) for group in seed_groups(found.runs)] == [3] * groups


def test_what_training_fits_are_settings() -> None:
    for name in FITTED:
        stage, setting = name.split(".")
        assert hasattr(getattr(Config(), stage), setting)
