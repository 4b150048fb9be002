"""The tables: which runs are in them, and what stands in their cells."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from skipqa.evaluation.reports import tables
from skipqa.evaluation.reports.runs import read_runs

if TYPE_CHECKING:
    from made_runs import MakeRun

OTHER_MACHINE = {"machine": {"cpu": "zx81", "cores": 1}}


def rows(text: str) -> dict[str, list[str]]:
    """Cells by the first cell of their line, without the header and the rule under it."""
    lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.split("\n")]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def test_main_row(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("skip", "skip", 0.5, flops=20e9, ms=500, fields=lambda q: {"recall@4": q % 2}),
            made("dense", "dense", 0.25, flops=80e9, ms=1_000, tokens=576),
        ]
    )
    table = rows(tables.main_table(found))
    assert table["dense"][1:3] == ["reference", "–"]
    skip = table["skip"]
    assert skip[0].startswith("50.0 (")
    assert skip[1].startswith("+25.0 (+1")
    assert skip[2] == "≤ 0.0002"
    assert skip[3] == "50.0 of 40"
    assert skip[4:6] == ["20.0", "4.00x"]
    assert skip[6] == "–", "nothing is known of what the decoder read"
    assert skip[7:9] == ["520 / 540", "2.00x"]
    assert skip[9:] == ["1.30", "64.0", "6.0", "0.0", "40"]


def test_accuracy_at_a_price_in_tokens_and_rounds(made: MakeRun) -> None:
    def read(tokens: int, rounds: int) -> Callable[[int], dict[str, Any]]:
        return lambda question: {"prompt_tokens": tokens, "rounds": rounds}

    (found,) = read_runs(
        [
            made("skip", "skip", 0.5, fields=read(500, 1)),
            made("iterated", "skip-no-draft", 0.5, fields=read(500, 3)),
            made("dense", "dense", 1.0, fields=read(0, 0)),
            made("old", "no-retrieval", 1.0),
        ]
    )
    scores = {run.system: run.summary["cas"] for run in found.runs}
    assert scores["skip"] == pytest.approx(100 * 0.25 / (0.5 + 2 + 1))
    assert scores["skip-no-draft"] == pytest.approx(100 * 0.25 / (0.5 + 6 + 1))
    assert scores["dense"] == 100
    assert scores["no-retrieval"] is None
    table = rows(tables.main_table(found))
    assert [table[name][6] for name in ("skip", "dense", "no-retrieval")] == ["7.1", "100.0", "–"]


def test_fewer_shared_questions_are_said_and_other_machines_not_timed(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("dense", "dense"),
            made("skip", "skip", questions=range(10), header=OTHER_MACHINE),
        ]
    )
    skip = rows(tables.main_table(found))["skip"]
    assert skip[1].endswith(", 10 shared")
    assert skip[8] == "another machine"


def test_what_was_answered_among_others_has_no_times(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("dense", "dense", ms=1_000),
            made("skip", "skip", ms=500, alone=False),
            made("unpruned", "skip-no-pruning", ms=500),
        ]
    )
    table = rows(tables.main_table(found))
    assert table["skip"][7:10] == ["–", "–", "–"]
    assert table["dense"][7:10] == ["1,040 / 1,080", "1", "1.30"]
    assert [row[5] for row in rows(tables.ablation_table(found)).values()] == ["–", "520"]


def test_ablations_and_sweeps_have_tables_of_their_own(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("a", "skip", 0.5),
            made("b", "dense", 0.4),
            made("c", "skip-no-pruning", 0.6, tokens=576),
            made("d", "skip", 0.3, pruner="tome", retention=0.11),
            made("e", "skip", 0.4, pruner="tome", retention=0.5),
        ]
    )
    assert list(rows(tables.main_table(found))) == ["skip", "dense"]
    ablations = rows(tables.ablation_table(found))
    assert list(ablations) == ["Full SKIP (`skip`)", "− QVS (no pruning) (`skip-no-pruning`)"]
    unpruned = ablations["− QVS (no pruning) (`skip-no-pruning`)"]
    assert unpruned[1].startswith("+10.0 (")
    assert unpruned[-3:] == ["62.4", "-0.8", "1.38"], "the paper's own"
    swept = tables.sweep_table(found)
    assert "V'/V = 0.11 | V'/V = 0.111 | V'/V = 0.5 | V'/V = 1" in swept
    assert rows(swept)["tome"][1] == "–"


def test_without_skip_there_is_nothing_to_ablate(made: MakeRun) -> None:
    (found,) = read_runs([made("a", "skip-no-pruning"), made("b", "skip-no-draft")])
    assert tables.ablation_table(found) == ""
    assert len(rows(tables.main_table(found))) == 2


def test_groups(made: MakeRun) -> None:
    def fields(question: int) -> dict[str, Any]:
        return {
            "category": str(question % 12),
            "popularity": question * 10,
            "subset": "small" if question < 10 else "a|b",
            "recall@4": float(question < 5),
        }

    (found,) = read_runs([made("skip", fields=fields), made("bare", "dense")])
    categories = rows(tables.category_table(found))
    assert list(categories)[:3] == ["0", "1", "2"]
    assert list(categories)[-1] == "11"
    popularity = rows(tables.popularity_table(found))
    assert list(popularity) == ["<98", "98-195", "195-293", ">=293"]
    assert [cells[1:] for cells in popularity.values()] == [["–", "10"]] * 4
    subsets = rows(tables.subset_table(found))
    assert list(subsets) == ["a\\|b", "small"]
    assert subsets["small"][0].endswith("; recall@4 50.0")


def test_subsets_show_the_retrieval_of_ablations(made: MakeRun) -> None:
    def fields(hit: float) -> Callable[[int], dict[str, Any]]:
        return lambda question: {"subset": ["small"], "recall@4": hit}

    (found,) = read_runs(
        [
            made("a", "skip", fields=fields(1.0)),
            made("b", "skip-global-retrieval", fields=fields(0.5)),
        ]
    )
    small = rows(tables.subset_table(found))["small"]
    assert [cell.partition("; ")[2] for cell in small[:2]] == ["recall@4 100.0", "recall@4 50.0"]
    ablation = rows(tables.ablation_table(found))
    assert [cells[3] for cells in ablation.values()] == ["100.0 of 40", "50.0 of 40"]


def test_groups_by_name(made: MakeRun) -> None:
    (found,) = read_runs([made("a", fields=lambda q: {"popularity": "rare" if q % 2 else "well"})])
    assert list(rows(tables.popularity_table(found))) == ["rare", "well"]


def test_no_groups_no_tables(made: MakeRun) -> None:
    (found,) = read_runs([made("a", fields=lambda question: {"category": None})])
    for table in (
        *(tables.category_table, tables.popularity_table, tables.subset_table),
        *(tables.seed_table, tables.sweep_table, tables.ablation_table),
    ):
        assert table(found) == ""


def test_seeds(made: MakeRun) -> None:
    (found,) = read_runs([made(str(n), "skip", 0.5 + n / 40, seed=n) for n in (0, 1, 2)])
    (cells,) = rows(tables.seed_table(found)).values()
    assert cells == ["0, 1, 2", "50.0, 52.5, 55.0", "52.50 ± 2.50", "5.00", "40"]


def typed(question: int) -> dict[str, Any]:
    return {"type": ["lookup", "a|b", None][question % 3]}


def test_types(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("skip", "skip", 0.6, flops=20e9, drafted=0.5, fields=typed),
            made("dense", "dense", 0.4, flops=80e9, fields=typed),
            made("none", "no-retrieval", 0.2, questions=range(20), fields=typed),
        ]
    )
    lines = tables.type_table(found).split("\n")
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    header, _, *body = cells
    assert header == ["type", "questions", "", "skip", "dense", "no-retrieval"]
    measures = ["accuracy, %", "minus no-retrieval, points", "minus dense, points"]
    measures += ["GFLOPs", "fast path, %"]
    assert [row[-4] for row in body] == 3 * measures
    assert [row[0] for row in body[::5]] == ["a\\|b", "lookup", "all types"]
    assert [row[1] for row in body[::5]] == ["13", "14", "27"]
    accuracy, minus_none, minus_dense, gflops, fast = (row[-3:] for row in body[-5:])
    assert minus_none[2] == minus_dense[1] == "reference"
    assert re.fullmatch(r"[+-][\d.]+ \([+-][\d.]+ to [+-][\d.]+\), p [\d.≤ ]+", minus_none[0])
    assert all(re.fullmatch(r"[\d.]+ \(\d+ to \d+\)", cell) for cell in accuracy)
    assert gflops[1:] == ["80.0", "50.0"]
    assert (fast[0], fast[1]) == ("51.9", "0.0")


def test_types_without_references_and_without_types(made: MakeRun) -> None:
    (found,) = read_runs([made("a", fields=typed)])
    assert "minus" not in tables.type_table(found)
    (bare,) = read_runs([made("b")])
    assert tables.type_table(bare) == ""


def test_a_type_that_a_run_was_not_asked(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("a", "skip", fields=lambda q: {"type": "ocr" if q < 5 else "lookup"}),
            made("b", "dense", questions=range(5, 40), fields=lambda q: {"type": "lookup"}),
        ]
    )
    ocr = next(line for line in tables.type_table(found).split("\n") if line.startswith("| ocr"))
    assert ocr.endswith("| – |")
