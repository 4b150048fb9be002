"""The harness on real and on made-up systems: scores, recall, resuming, bad rows."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from asking import LOOKED_UP, RUN, Told, gold, made_up, question, records_of, write
from typer.testing import CliRunner

from skipqa.errors import UserError
from skipqa.evaluation import harness, records
from skipqa.evaluation.harness import Entrant, EvalSet, draw
from skipqa.pipeline import Answer, Pipeline
from skipqa.state import State
from skipqa.tasks import Example
from skipqa.tasks.jsonl import JSONL
from skipqa.tasks.jsonl import read as read_rows
from skipqa.tasks.photos import Photos
from skipqa.trace import Trace
from skipqa.types import Decoded, Passage, Retrieved, RetrievedPassage, Route, Verified


def evaluate(
    system: harness.System,
    rows: Sequence[Example],
    photos: Photos,
    folder: Path,
    run: Mapping[str, Any],
    bad: Sequence[str] = (),
) -> dict[str, Any]:
    """One system on its own."""
    asked = EvalSet(rows, photos, JSONL, bad)
    (summary,) = harness.evaluate([Entrant(system, folder, run)], asked)
    return summary


def annotated(path: Path, count: int, seed: int = 0) -> Path:
    """A file of the shape of OK-VQA's: soft scores, several answers, some far more common."""
    random_ = random.Random(seed)
    words = [f"word{n}" for n in range(60)]
    lines = []
    for number in range(count):
        drawn = [round(60 * random_.random() ** 2 - 0.5) for _ in range(3)]  # low numbers often
        scores = [1.0, *random_.choices((0.3, 0.6, 0.9), k=2)]
        answers = {
            words[n]: fraction for n, fraction in zip(drawn[::-1], scores[::-1], strict=True)
        }
        lines.append(
            question(
                number,
                question=f"What is it, number {number}?",
                answers=answers | {words[drawn[0]]: 1.0},
                category=random_.choice("abc"),
            )
        )
    for line in lines:
        del line["answer"]
    return write(path, *lines)


def test_oracle_scores_100(tmp_path: Path, photos: Photos) -> None:
    rows, bad = read_rows(annotated(tmp_path / "q.jsonl", 40), photos)
    assert bad == []
    summary = evaluate(Told(gold(rows)), rows, photos, tmp_path, RUN)
    accuracy = summary["accuracy"]
    assert (accuracy["mean"], accuracy["high"], accuracy["count"]) == (1.0, 1.0, 40)
    assert accuracy["low"] == pytest.approx(0.025 ** (1 / 40))  # none of 40 wrong, yet not certain
    assert list(summary["accuracy_by_category"]) == ["a", "b", "c"]
    assert all(part["mean"] == 1 for part in summary["accuracy_by_category"].values())
    assert summary["fast_path_rate"] == 1.0
    assert summary == json.loads((tmp_path / "summary.json").read_text())


def test_shuffled_answers_are_near_chance(tmp_path: Path, photos: Photos) -> None:
    """Chance is the mean score of any question's answer to any question, computed in full."""
    rows, _ = read_rows(annotated(tmp_path / "q.jsonl", 400), photos)
    right = list(gold(rows).values())
    chance = sum(JSONL.score(row, answer) for row in rows for answer in right) / len(rows) ** 2
    assert 0.01 < chance < 0.2
    means, covered = [], 0
    for seed in range(20):
        answers = right.copy()
        random.Random(seed).shuffle(answers)
        told = dict(zip(gold(rows), answers, strict=True))
        accuracy = evaluate(Told(told), rows, photos, tmp_path / str(seed), RUN)["accuracy"]
        means.append(accuracy["mean"])
        covered += accuracy["low"] <= chance <= accuracy["high"]
    assert sum(means) / len(means) == pytest.approx(chance, rel=0.1)
    assert max(means) < 0.3
    assert covered >= 17


def test_scores_are_soft_and_of_the_normalised_answer(tmp_path: Path, photos: Photos) -> None:
    path = write(
        tmp_path / "q.jsonl",
        question(1, answer="The Two Dogs!"),
        {**question(2), "answers": {"2 dogs": 0.667, "cat": 1}},
    )
    one, two = read_rows(path, photos)[0]
    assert JSONL.score(one, "2 dogs.") == 1
    assert JSONL.score(one, "dogs") == 0
    assert JSONL.score(two, "a two dogs") == 0.667
    assert JSONL.score(two, "Cat") == 1
    assert JSONL.score(two, "") == 0


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
        records.read_back(tmp_path / "predictions.jsonl")


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
        question(6, answers={"yes": 1.5}),
        question(7, answers={"yes": float("nan")}),
        question(8, answers={}),
        "[1]",
        question(9),
    )
    rows, bad = read_rows(path, photos)
    assert [row.id for row in rows] == [1, 9]
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


TEXTS = {"lamp": "a source of light", "moth": "flies at night"}  # by the title of a passage


def found(*names: str, kept: int, route: Route = "full") -> Answer:
    """An answer for which the named passages were retrieved and the first few kept."""
    passages = tuple(
        RetrievedPassage(row, Passage(name, name, TEXTS.get(name, ""), "test"), 1.0, 0, 1.0)
        for row, name in enumerate(names)
    )
    state = State("nowhere.png", "").add(answer=Decoded("yes"))
    if route == "full":
        verified = Verified(passages[:kept], (1.0,) * kept, (), torch.zeros(kept, 1), ())
        retrieved = Retrieved(passages, len(names), len(names))
        state = state.add(retrieved=retrieved, verified=verified)
    return Answer(state, route, Trace())


class Finds:
    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = answers

    def answer(self, image: Path | IO[bytes], question: str) -> Answer:
        return self.answers[question]


def test_recall_where_gold_passages_are_known(tmp_path: Path, photos: Photos) -> None:
    path = write(
        tmp_path / "q.jsonl",
        question(1, question="first", gold=["g", "h"], subset=["small", "longtail"]),
        question(2, question="fifth", gold=["g"], subset="small", popularity=3),
        question(3, question="steps", gold=["g", "h"], hops=[["g"], ["h"]], subset=["multihop"]),
        question(4, question="drafted", gold=["g"], subset=["small"]),
        question(5, question="seen", gold=[], subset=["perceptual"], category="pets"),
    )
    answers = {
        "first": found("a", "h", "b", kept=1),
        "fifth": found("a", "b", "c", "d", "g", kept=5),
        "steps": found("h", "a", kept=1),
        "drafted": found("g", kept=1, route="draft"),
        "seen": found("g", kept=1),
    }
    rows, bad = read_rows(path, photos)
    assert bad == []
    summary = evaluate(Finds(answers), rows, photos, tmp_path / "out", RUN)
    one, two, three, four, five = records_of(tmp_path / "out")
    assert (one["recall@4"], one["recall_kept"], one["gold"]) == (1.0, 0.0, ["g", "h"])
    assert (one["subset"], one["retrieved"], one["evidence"]) == (
        ["small", "longtail"],
        ["a", "h", "b"],
        ["a"],
    )
    assert (two["recall@4"], two["recall_kept"], two["popularity"]) == (0.0, 1.0, 3)
    assert (three["recall@4"], three["recall_kept"]) == (0.5, 0.5)  # one step of two
    assert not {"gold", "recall@4"} & (four.keys() | five.keys())
    assert (summary["recall@4"]["mean"], summary["recall@4"]["count"]) == (0.5, 3)
    assert summary["recall_kept"]["mean"] == 0.5
    assert {name: value["mean"] for name, value in summary["recall_by_subset"].items()} == {
        "longtail": 1.0,
        "multihop": 0.5,
        "small": 0.5,
    }
    assert {name: value["count"] for name, value in summary["accuracy_by_subset"].items()} == {
        "longtail": 1,
        "multihop": 1,
        "perceptual": 1,
        "small": 3,
    }
    assert list(summary["accuracy_by_category"]) == ["pets"]


def test_a_passage_that_states_the_fact_counts_as_gold(tmp_path: Path, photos: Photos) -> None:
    fact = "Lamps are a source of light"
    path = write(
        tmp_path / "q.jsonl",
        question(1, question="stated", fact=fact),
        question(2, question="not stated", fact=fact),
        question(3, question="fifth", fact=fact),
        question(4, question="by id", fact=fact, gold=["g"]),
        question(5, question="one of two steps", fact=fact, hops=[["g"], ["h"]]),
        question(6, question="drafted", fact=fact),
    )
    answers = {
        "stated": found("moth", "lamp", kept=1),
        "not stated": found("moth", kept=1),
        "fifth": found("a", "b", "c", "moth", "lamp", kept=5),
        "by id": found("g", "moth", kept=2),
        "one of two steps": found("lamp", "g", kept=0),
        "drafted": found("lamp", kept=1, route="draft"),
    }
    rows, bad = read_rows(path, photos)
    assert bad == []
    evaluate(Finds(answers), rows, photos, tmp_path / "out", RUN)
    *others, drafted = records_of(tmp_path / "out")
    recalls = [(record["recall@4"], record["recall_kept"]) for record in others]
    assert recalls == [(1, 0), (0, 0), (0, 1), (1, 1), (1, 0)]
    assert others[0]["fact"] == fact
    assert not {"fact", "recall@4"} & drafted.keys()


def test_accuracy_by_type(tmp_path: Path, photos: Photos) -> None:
    rows = [replace(row, type="ocr" if row.id == 0 else "lookup") for row in made_up(4)]
    rows.append(replace(made_up(5)[4], type=None))
    told = gold(rows) | {rows[1].question: "wrong"}
    summary = evaluate(Told(told), rows, photos, tmp_path, RUN)
    assert {n: (a["count"], a["mean"]) for n, a in summary["accuracy_by_type"].items()} == {
        "lookup": (3, pytest.approx(2 / 3)),
        "ocr": (1, 1.0),
    }
    assert [record.get("type") for record in records_of(tmp_path)] == [
        *("ocr", "lookup", "lookup", "lookup"),
        None,
    ]


def test_without_gold_there_is_no_recall(tmp_path: Path, photos: Photos) -> None:
    rows = made_up(3)
    summary = evaluate(Told(gold(rows)), rows, photos, tmp_path, RUN)
    assert summary["recall@4"] is None
    assert "official" not in summary  # JSON Lines have no official report
    assert summary["recall_by_subset"] == summary["accuracy_by_subset"] == {}


@pytest.mark.parametrize("wrong", [{"gold": "g"}, {"gold": [1]}, {"hops": ["g"]}, {"hops": 3}])
def test_gold_of_another_shape_is_one_clear_line(
    tmp_path: Path, photos: Photos, wrong: dict[str, Any]
) -> None:
    path = write(tmp_path / "q.jsonl", question(1, **wrong), question(2, popularity=[]))
    with pytest.raises(UserError, match="line 1: 'gold' must be a list of passage ids"):
        read_rows(path, photos)


class Turns(Told):
    """Writes down whose turn it was."""

    def __init__(self, name: str, log: list[str], answers: Mapping[str, str]) -> None:
        super().__init__(answers)
        self.name, self.log = name, log

    def answer(self, image: Path | IO[bytes], question: str) -> Answer:
        self.log.append(self.name)
        return super().answer(image, question)


def test_several_systems_take_turns(tmp_path: Path, photos: Photos) -> None:
    rows, log = made_up(4), list[str]()
    right = gold(rows)
    entrants = [
        Entrant(Turns(name, log, answers), tmp_path / name, {"system": name})
        for name, answers in (("x", right), ("y", dict.fromkeys(right, "no")))
    ]
    one, other = harness.evaluate(entrants, EvalSet(rows, photos, JSONL))
    assert log == ["x", "y", "y", "x", "x", "y", "y", "x"]
    assert (one["accuracy"]["mean"], other["accuracy"]["mean"]) == (1, 0)
    assert (one["system"], other["system"]) == ("x", "y")

    # A kill between two systems: each goes on where it stopped.
    cut = (tmp_path / "y" / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "y" / "predictions.jsonl").write_bytes(b"".join(cut[:2]))
    log.clear()
    harness.evaluate(entrants, EvalSet(rows, photos, JSONL))
    assert log == ["y", "y"]
    assert len(records_of(tmp_path / "y")) == 4


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
        assert (record["tokens"], record["passages"]) == (29, 6)
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
    words += ["--limit", 1, "--json", "--system", "no-retrieval"]

    def run(*more: Any) -> Any:
        return CliRunner().invoke(app, list(map(str, (*words, *more))), catch_exceptions=False)

    done = run()
    assert done.exit_code == 0
    assert "skipped rows: 1" in done.stderr
    assert "line 2: not JSON" in done.stderr
    summary = json.loads(done.stdout)
    assert summary["num_questions"] == 1
    assert summary["passages_mean"] == 0
    assert summary["config"]["budget"]["passages"] == 0
    assert (summary["system"], summary["pruner"], summary["retention"]) == (
        "no-retrieval",
        None,
        None,
    )
    with pytest.raises(UserError, match="no system 'x'"):
        run("--system", "x")
    with pytest.raises(UserError, match="no pruner 'x'"):
        run("--pruner", "x")

    several = run("--system", "skip", "--pruner", "downsample", "--retention", 0.04)
    one, two = json.loads(several.stdout)
    assert [one["system"], two["system"]] == ["no-retrieval", "skip"]
    for summary, name in ((one, "no-retrieval+downsample@0.04"), (two, "skip+downsample@0.04")):
        assert summary["tokens_mean"] == 9  # the largest square up to ceil(0.04 * 256)
        assert summary == json.loads((tmp_path / "out" / name / "summary.json").read_text())
        about = json.loads((tmp_path / "out" / name / "run.json").read_text())
        assert (about["pruner"], about["retention"]) == ("downsample", 0.04)
    words.remove("--json")
    again = run("--system", "skip", "--pruner", "downsample", "--retention", 0.04)
    assert "no-retrieval+downsample@0.04" in again.stdout
    summary = json.loads((tmp_path / "out" / name / "summary.json").read_text())
    assert summary["latency_ms"] == two["latency_ms"]  # nothing was asked again
