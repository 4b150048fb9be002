"""The harness on real and on made-up systems: scores, recall, resuming, bad rows."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from skipqa.errors import UserError
from skipqa.evaluation import harness
from skipqa.evaluation.harness import Entrant, Photos, Row, draw, read_rows
from skipqa.pipeline import Answer, Pipeline
from skipqa.trace import Trace

RUN = {"system": "test", "seed": 0}
TIMES = ("latency_ms", "stage_ms", "peak_memory_bytes")  # what no two runs share
LOOKED_UP = "Where does this come from?"


class Told:
    """A system that is handed its answers and looks at nothing."""

    def __init__(self, answers: Mapping[str, str], die_after: int | None = None) -> None:
        self.answers, self.left = answers, die_after

    def answer(self, image: Path | IO[bytes], question: str) -> Answer:
        if self.left is not None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
        return Answer(self.answers[question], "draft", (), Trace())


def evaluate(
    system: harness.System,
    rows: Sequence[Row],
    photos: Photos,
    folder: Path,
    run: Mapping[str, Any],
    bad: Sequence[str] = (),
) -> dict[str, Any]:
    """One system on its own."""
    (summary,) = harness.evaluate([Entrant(system, folder, run)], rows, photos, bad)
    return summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small photos of nothing in particular."""
    folder = tmp_path_factory.mktemp("photos")
    for name, colour in (("a.png", (200, 120, 40)), ("b.png", (20, 90, 160))):
        photo = Image.new("RGB", (48, 48), colour)
        photo.paste((255, 255, 255), (8, 8, 24, 30))
        photo.save(folder / name)
    return folder


@pytest.fixture(scope="module")
def photos(folder: Path) -> Photos:
    return Photos(folder)


def made_up(count: int, choices: int = 10) -> list[Row]:
    """Questions whose answers are drawn from a few words."""
    words = [f"word{n}" for n in range(choices)]
    return [
        Row(n, n, "a.png", f"question {n}", {words[n % choices]: 1.0}, "odd" if n % 2 else "even")
        for n in range(count)
    ]


def gold(rows: list[Row]) -> dict[str, str]:
    return {row.question: max(row.answers, key=row.answers.__getitem__) for row in rows}


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def question(number: int, **changes: Any) -> dict[str, Any]:
    row = {"question_id": number, "image": "a.png", "question": "Why?", "answer": "Yes"}
    return {**row, **changes}


def records_of(out: Path) -> list[dict[str, Any]]:
    lines = (out / "predictions.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def test_oracle_scores_100(tmp_path: Path, photos: Photos) -> None:
    rows = made_up(40)
    summary = evaluate(Told(gold(rows)), rows, photos, tmp_path, RUN)
    accuracy = summary["accuracy"]
    assert (accuracy["mean"], accuracy["high"], accuracy["count"]) == (1.0, 1.0, 40)
    assert accuracy["low"] == pytest.approx(0.025 ** (1 / 40))  # none of 40 wrong, yet not certain
    assert list(summary["accuracy_by_category"]) == ["even", "odd"]
    assert summary["fast_path_rate"] == 1.0
    assert summary == json.loads((tmp_path / "summary.json").read_text())


def test_shuffled_answers_are_near_chance(tmp_path: Path, photos: Photos) -> None:
    rows = made_up(500)
    answers = list(gold(rows).values())
    random.Random(0).shuffle(answers)
    told = dict(zip(gold(rows), answers, strict=True))
    accuracy = evaluate(Told(told), rows, photos, tmp_path, RUN)["accuracy"]
    assert accuracy["low"] < 0.1 < accuracy["high"]
    assert accuracy["mean"] < 0.15


def test_scores_are_soft_and_of_the_normalised_answer(tmp_path: Path, photos: Photos) -> None:
    path = write(
        tmp_path / "q.jsonl",
        question(1, answer="The Two Dogs!"),
        {**question(2), "answers": {"2 dogs": 0.667, "cat": 1}},
    )
    one, two = read_rows(path, photos)[0]
    assert one.score("2 dogs.") == 1
    assert one.score("dogs") == 0
    assert two.score("a two dogs") == 0.667
    assert two.score("Cat") == 1
    assert two.score("") == 0


def test_a_killed_run_goes_on(tmp_path: Path, photos: Photos) -> None:
    rows, whole, killed = made_up(6), tmp_path / "whole", tmp_path / "killed"
    expected = evaluate(Told(gold(rows)), rows, photos, whole, RUN)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Told(gold(rows), die_after=3), rows, photos, killed, RUN)
    before = (killed / "predictions.jsonl").read_bytes()
    assert before.count(b"\n") == 3
    assert not (killed / "summary.json").exists()

    with (killed / "predictions.jsonl").open("ab") as file:  # a kill in the middle of a line
        file.write(b'{"question_id": 3, "answ')
    resumed = evaluate(Told(gold(rows), die_after=3), rows, photos, killed, RUN)
    assert (killed / "predictions.jsonl").read_bytes().startswith(before)
    assert records_of(killed) == records_of(whole)
    assert resumed["accuracy"] == expected["accuracy"]

    evaluate(Told({}), rows, photos, killed, RUN)  # nothing is left to ask
    assert records_of(killed) == records_of(whole)


def test_a_folder_of_another_run_is_refused(tmp_path: Path, photos: Photos) -> None:
    rows = made_up(2)
    evaluate(Told(gold(rows)), rows, photos, tmp_path, RUN)
    with pytest.raises(UserError, match="a run with other seed"):
        evaluate(Told(gold(rows)), rows, photos, tmp_path, {**RUN, "seed": 1})
    (tmp_path / "run.json").unlink()
    with pytest.raises(UserError, match="unknown run"):
        evaluate(Told(gold(rows)), rows, photos, tmp_path, RUN)


def test_a_broken_record_is_one_clear_line(tmp_path: Path, photos: Photos) -> None:
    (tmp_path / "predictions.jsonl").write_text("[]\n")
    with pytest.raises(UserError, match="line 1 is no record"):
        harness.read_back(tmp_path / "predictions.jsonl")


def test_bad_rows_are_skipped_by_line(tmp_path: Path, photos: Photos) -> None:
    no_question, no_answer = question(3), question(4)
    del no_question["question"], no_answer["answer"]
    path = write(
        tmp_path / "q.jsonl",
        question(1),
        "{not json",
        "",
        no_question,
        no_answer,
        question(5, image="absent.png"),
        question(1),
        question(6, answers={"yes": 3}),
        question(7, answers={"yes": float("nan")}),
        question(8, answers={}),
        "[1]",
        question(9),
    )
    rows, bad = read_rows(path, photos)
    assert [row.question_id for row in rows] == [1, 9]
    assert [line.partition(":")[0] for line in bad] == [f"line {n}" for n in (2, *range(4, 12))]
    told = {"line 4": "'question' is missing", "line 5": "'answer' is missing"}
    told |= {"line 6": "no photo 'absent.png'", "line 7": "already on line 1"}
    for line in bad:
        assert told.get(line.partition(":")[0], "") in line

    summary = evaluate(Told({"Why?": "yes"}), rows, photos, tmp_path / "out", RUN, bad)
    assert summary["bad_rows"] == bad
    assert summary["num_questions"] == 2

    with pytest.raises(UserError, match="no usable question; line 1"):
        read_rows(write(tmp_path / "none.jsonl", "nothing"), photos)


def test_photos_come_from_a_zip_or_a_folder(tmp_path: Path, folder: Path) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as file:
        file.write(folder / "a.png", "a.png")
    zipped = Photos(tmp_path / "photos.zip")
    assert "a.png" in zipped
    assert "b.png" not in zipped
    opened = zipped.open("a.png")
    assert isinstance(opened, io.BytesIO)
    assert opened.getvalue() == (folder / "a.png").read_bytes()
    with pytest.raises(UserError, match="neither a folder"):
        Photos(folder / "a.png")
    with pytest.raises(UserError, match="no photos at"):
        Photos(tmp_path / "absent")


def test_a_draw_depends_on_its_seed_alone_and_grows() -> None:
    rows = made_up(50)
    few, more = draw(rows, 10, seed=3), draw(rows, 20, seed=3)
    assert few == draw(rows, 10, seed=3) != draw(rows, 10, seed=4)
    assert len(few) == 10
    assert set(map(id, few)) < set(map(id, more))
    assert [row.line for row in more] == sorted(row.line for row in more)
    assert draw(rows, None, 0) == draw(rows, 99, 0) == rows


# The real pipeline from here on.


def test_a_real_run_resumes_to_the_same_records(
    tmp_path: Path, pipeline: Pipeline, folder: Path
) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "photos" / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "photos" / "torn.png").write_bytes((folder / "a.png").read_bytes()[:40])
    photos = Photos(tmp_path / "photos")
    path = write(
        tmp_path / "q.jsonl",
        question(1, question=LOOKED_UP),
        question(2, question=LOOKED_UP, image="torn.png"),
        question(3, question="How is this made?", image="b.png"),
    )
    rows, bad = read_rows(path, photos)
    out = tmp_path / "out"
    whole = evaluate(pipeline, rows, photos, out, RUN, bad)
    assert [line[:17] for line in whole["bad_rows"]] == ["line 2: torn.png:"]
    assert 0 < whole["latency_ms"]["p50"] <= whole["latency_ms"]["p95"]
    records = records_of(out)
    assert [record["question_id"] for record in records] == [1, 3]
    for record in records:
        assert (record["tokens"], record["passages"]) == (64, 6)
        assert record["flops"] > 0
        assert record["edges"] > 0
        assert record["evidence"]

    first, second = (out / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (out / "predictions.jsonl").write_bytes(first + second[:50])
    evaluate(pipeline, rows, photos, out, RUN, bad)
    assert (out / "predictions.jsonl").read_bytes().startswith(first)
    assert records_of(out) == records


def test_the_command(tmp_path: Path, home: Path, folder: Path) -> None:
    from skipqa.cli.eval import app

    path = write(tmp_path / "q.jsonl", question(1, question=LOOKED_UP), "torn", question(2))
    words = ["vqa", "--questions", path, "--images", folder, "--out", tmp_path / "out"]
    words += ["--set", "budget.tokens=32", "--system", "no-retrieval", "--limit", 1, "--json"]
    done = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0
    assert "skipped rows: 1" in done.stderr
    assert "line 2: not JSON" in done.stderr
    summary = json.loads(done.stdout)
    assert summary["num_questions"] == 1
    assert summary["passages_mean"] == 0
    budget = summary["config"]["budget"]
    assert (budget["tokens"], budget["passages"]) == (32, 0)
    assert summary["system"] == "no-retrieval"
    with pytest.raises(UserError, match="no system 'x'"):
        CliRunner().invoke(app, [*map(str, words[:-3]), "--system", "x"], catch_exceptions=False)
