"""Questions answered in several processes: the same records, and no times."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import IO, Any

from asking import LOOKED_UP, RUN, Told, gold, made_up, question, records_of, write
from typer.testing import CliRunner

from skipqa.errors import UserError
from skipqa.evaluation import harness
from skipqa.evaluation.harness import Entrant, EvalSet, Workers
from skipqa.pipeline import Answer
from skipqa.tasks.jsonl import JSONL
from skipqa.tasks.photos import Photos


class Refuses(Told):
    """What it was not told it says so about."""

    def answer(self, image: Path | IO[bytes], question: str) -> Answer:
        if question not in self.answers:
            raise UserError(f"what is {question}?")
        return super().answer(image, question)


def test_processes_share_the_questions(tmp_path: Path, folder: Path) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as file:
        file.write(folder / "a.png", "a.png")
    rows, photos = made_up(6), Photos(tmp_path / "photos.zip")
    right = gold(rows[:5])
    told = [Refuses(right), Refuses(dict.fromkeys(right, "no"))]

    def run(name: str, number: int, workers: Workers | None) -> list[dict[str, Any]]:
        entrants = [Entrant(s, tmp_path / name / str(n), RUN) for n, s in enumerate(told)]
        return harness.evaluate(entrants, EvalSet(rows[:number], photos, JSONL), workers=workers)

    def records(name: str, system: int) -> list[dict[str, Any]]:
        return sorted(records_of(tmp_path / name / str(system)), key=lambda r: r["question_id"])

    shared = Workers(2, partial(list, told))
    alone, beside = run("alone", 6, None), run("beside", 6, shared)
    for system in (0, 1):
        assert records("beside", system) == records("alone", system)
        assert (alone[system]["jobs"], beside[system]["jobs"]) == (1, 2)
        for name in ("accuracy", "accuracy_by_category", "flops_mean", "bad_rows"):
            assert beside[system][name] == alone[system][name]
        assert alone[system]["latency_ms"] is not None
        for name in ("latency_ms", "stage_ms_mean", "peak_memory_bytes"):
            assert beside[system][name] is None
    assert beside[0]["bad_rows"] == ["line 5: a.png: what is question 5?"]

    # One process begins, two go on: the times of some questions are not those of the run.
    run("mixed", 2, None)
    before = (tmp_path / "mixed" / "0" / "predictions.jsonl").read_bytes()
    mixed = run("mixed", 6, shared)
    assert (tmp_path / "mixed" / "0" / "predictions.jsonl").read_bytes().startswith(before)
    assert records("mixed", 0) == records("alone", 0)
    assert mixed[0]["latency_ms"] is None


def test_the_command_with_several_processes(tmp_path: Path, home: Path, folder: Path) -> None:
    from skipqa.cli.eval import app

    asked = [question(n, question=LOOKED_UP, image=f"{name}.png") for n, name in enumerate("ab")]
    path = write(tmp_path / "q.jsonl", *asked)
    words = ["vqa", "--questions", path, "--images", folder, "--system", "no-retrieval"]

    def run(out: Path, *more: Any) -> str:
        done = CliRunner().invoke(
            app, list(map(str, (*words, "--out", out, *more))), catch_exceptions=False
        )
        assert done.exit_code == 0
        return done.stdout

    assert "p50 ms" in run(tmp_path / "alone")
    assert "p50 ms" not in run(tmp_path / "beside", "--jobs", 2)
    alone, beside = records_of(tmp_path / "alone"), records_of(tmp_path / "beside")
    assert sorted(beside, key=lambda record: record["question_id"]) == alone
