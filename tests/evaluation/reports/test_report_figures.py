"""The figures of a report: which runs are in them, and when there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipqa.evaluation.reports import figures
from skipqa.evaluation.reports.runs import read_runs

if TYPE_CHECKING:
    from made_runs import MakeRun
    from matplotlib.figure import Figure


def texts(figure: Figure | None) -> set[str]:
    """Everything that is written in the figure."""
    from matplotlib.text import Text

    assert figure is not None
    figure.canvas.draw()
    return {text.get_text() for text in figure.findobj(Text)}


def test_what_was_answered_among_others_is_not_timed(made: MakeRun) -> None:
    (found,) = read_runs([made("dense", "dense"), made("skip", "skip", alone=False)])
    shown = texts(figures.latency(found))
    assert "dense" in shown
    assert "skip" not in shown
    (none,) = read_runs([made("alike", "skip", alone=False)])
    assert figures.latency(none) is None


def test_figures_need_data(made: MakeRun) -> None:
    (found,) = read_runs([made("a")])
    assert figures.frontier(found) is None
    assert figures.sweep(found) is None
    assert "skip" in texts(figures.latency(found))


def test_figures_name_their_systems(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("a", "skip", flops=10e9),
            made("b", "dense", flops=90e9),
            made("c", "skip", 0.4, retention=0.05, flops=8e9),
            made("d", "skip", 0.3, pruner="random", retention=0.05),
            made("e", "skip", 0.5, pruner="random", retention=0.5),
            made("f", "skip-no-pruning", 0.55, tokens=576),
        ]
    )
    frontier, sweep = figures.frontier(found), figures.sweep(found)
    assert frontier is not None
    assert sweep is not None
    assert {"skip", "dense"} <= texts(frontier)
    assert {"QVS", "random", "no pruning"} <= texts(sweep)


def test_stages_that_hardly_count_are_one_part(made: MakeRun) -> None:
    (found,) = read_runs([made("a")])
    shown = texts(figures.latency(found))
    assert {"encode", "retrieve", "decode", "others"} <= shown
    assert not {"draft", "prune"} & shown
    assert any(text.endswith("others: draft, prune") for text in shown)


def test_a_frontier_of_sweeps_alone_has_a_line_per_pruner(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("a", "skip", retention=0.05),
            made("b", "skip", retention=0.5),
            made("c", "skip", pruner="random", retention=0.05),
            made("d", "skip", pruner="random", retention=0.5),
        ]
    )
    shown = texts(figures.frontier(found))
    assert {"QVS", "random"} <= shown
    assert "skip+random@0.05" not in shown
