"""Run folders: read back, grouped and named; and what is wrong with them in one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skipqa.errors import UserError
from skipqa.evaluation.reports.runs import read_run, read_runs

if TYPE_CHECKING:
    from made_runs import MakeRun


def test_a_run_comes_back_as_it_was_written(made: MakeRun) -> None:
    run = read_run(made("a", "skip", 0.25, drafted=0.5))
    assert run.system == run.variant == "skip"
    assert run.summary["accuracy"]["mean"] == 0.25
    assert run.summary["fast_path_rate"] == 0.5
    assert run.available == 576
    assert run.retention == pytest.approx(64 / 576), "fast-path questions keep nothing, and say so"


def test_runs_over_other_questions_are_apart(made: MakeRun) -> None:
    folders = [made("a", "skip"), made("b", "dense"), made("c", "dense", file="vqav2/val.jsonl")]
    one, two = read_runs(folders)
    assert (one.title, len(one.runs)) == ("okvqa/val.jsonl", 2)
    assert (two.title, len(two.runs)) == ("vqav2/val.jsonl", 1)


def test_two_files_of_one_name_have_other_titles(made: MakeRun) -> None:
    folders = [made("a", sha256="0" * 64), made("b", sha256="f" * 64)]
    titles = [found.title for found in read_runs(folders)]
    assert titles == ["okvqa/val.jsonl (00000000)", "okvqa/val.jsonl (ffffffff)"]


def test_one_file_scored_in_two_ways_is_not_compared(made: MakeRun) -> None:
    folders = [made(name, task=name) for name in ("aokvqa", "aokvqa-multiple-choice")]
    one, other = read_runs(folders)
    assert (len(one.runs), len(other.runs)) == (1, 1)
    assert one.title.endswith(", aokvqa")
    assert other.title.endswith(", aokvqa-multiple-choice")


def test_the_reference_is_dense_the_requested_one_or_the_first(made: MakeRun) -> None:
    folders = [made("a", "skip"), made("b", "fid"), made("c", "dense")]
    assert read_runs(folders)[0].reference.system == "dense"
    assert read_runs(folders, "fid")[0].reference.system == "fid"
    assert read_runs(folders[:2])[0].reference.system == "skip"
    with pytest.raises(UserError, match="no run of the reference 'late'; there is skip, fid"):
        read_runs(folders, "late")


def test_names_say_what_differs_and_no_more(made: MakeRun) -> None:
    (found,) = read_runs(
        [
            made("a", "dense"),
            made("b", "skip"),
            made("c", "skip", pruner="tome", retention=0.25),
            made("d", "skip", seed=7),
            made("e", "skip", index={"name": "mine"}),
            made("several", "skip", index=[{"name": "wordnet"}, {"name": "mine"}]),
            made("f", "fid"),
            made("g", "fid"),
        ]
    )
    assert list(found.names.values()) == [
        "dense",
        "skip, index wordnet, seed 0",
        "skip+tome@0.25",
        "skip, index wordnet, seed 7",
        "skip, index mine, seed 0",
        "skip, index wordnet + mine, seed 0",
        "fid (f)",
        "fid (g)",
    ]


def test_runs_that_differ_in_a_component_are_named_by_it(made: MakeRun) -> None:
    shipped = {"reader": "r1", "tagger": "t1"}
    own = {**shipped, "dense_reader": "d1"}
    folders = [made("a", "dense", components=shipped), made("b", "dense", components=own)]
    assert list(read_runs(folders)[0].names.values()) == ["dense", "dense with dense_reader"]
    folders += [made("c", "dense"), made("d", "dense", components=shipped | {"reader": "r0"})]
    for several in (folders[:3], [*folders[:2], folders[3]]):
        names = read_runs(several)[0].names.values()
        assert list(names)[:2] == ["dense, trained (a)", "dense, trained (b)"]


def test_a_folder_of_runs_stands_for_all_of_them(made: MakeRun, tmp_path: Path) -> None:
    made("several/a", "skip")
    made("several/b", "dense")
    (found,) = read_runs([tmp_path / "several", tmp_path / "several" / "a"])
    assert [run.system for run in found.runs] == ["skip", "dense"], "each once"


def test_nothing_in_common_is_refused(made: MakeRun) -> None:
    folders = [made("a", "skip", questions=range(5)), made("b", "dense", questions=range(5, 9))]
    with pytest.raises(UserError, match="answered no question in common: they cannot be compared"):
        read_runs(folders)


class TestBadFolders:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no folder"):
            read_run(tmp_path / "nowhere")

    def test_not_a_run(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"holds no run: it has no run\.json"):
            read_runs([tmp_path])

    def test_half_finished(self, made: MakeRun) -> None:
        folder = made("a")
        (folder / "summary.json").unlink()
        with pytest.raises(UserError, match=r"not finished: 40 answers and no summary\.json; run"):
            read_run(folder)

    def test_another_format(self, made: MakeRun) -> None:
        folder = made("a")
        (folder / "predictions.jsonl").write_text('{"id": 1, "prediction": "yes"}\n')
        with pytest.raises(UserError, match="record 1: the field 'question_id' is missing"):
            read_run(folder)

    def test_score_that_is_no_number(self, made: MakeRun) -> None:
        folder = made("a")
        lines = (folder / "predictions.jsonl").read_text().replace('"score": 0.0', '"score": "no"')
        (folder / "predictions.jsonl").write_text(lines)
        with pytest.raises(UserError, match="'score' must be an integer or a number, found a str"):
            read_run(folder)

    @pytest.mark.parametrize("name", ["run.json", "summary.json", "predictions.jsonl"])
    def test_not_json(self, made: MakeRun, name: str) -> None:
        folder = made("a")
        (folder / name).write_text("<html>\n")
        with pytest.raises(UserError, match=rf"{name}.*not JSON"):
            read_run(folder)

    def test_fewer_records_than_the_summary_says(self, made: MakeRun) -> None:
        folder = made("a")
        lines = (folder / "predictions.jsonl").read_text().splitlines(keepends=True)
        (folder / "predictions.jsonl").write_text("".join(lines[:7]))
        with pytest.raises(UserError, match=r"counts 40 questions, predictions\.jsonl has 7"):
            read_run(folder)
