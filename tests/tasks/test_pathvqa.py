"""PathVQA: its scores against independent computations, its forms, and its Parquet files."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from skipqa.cli.main import app
from skipqa.errors import MissingExtra, UserError
from skipqa.tasks.pathvqa import (
    PATHVQA,
    bleu,
    evaluate,
    exact_match,
    f1,
    kind_of_question,
    score_files,
    words,
)
from skipqa.tasks.pathvqa_parquet import convert

sentences = st.lists(st.sampled_from("cell wall of the liver 2".split()), max_size=8).map(" ".join)


def test_yes_and_no_are_told_by_the_answer() -> None:
    assert [kind_of_question(a) for a in ("Yes", " no ", "no change", "liver")] == [
        *("yes/no", "yes/no"),
        *("open", "open"),
    ]


def test_exact_match_ignores_case_and_spacing_alone() -> None:
    assert exact_match(" Fatty  Change", "fatty change") == 1
    assert exact_match("fatty changes", "fatty change") == exact_match("fatty", "fatty change") == 0
    assert exact_match("5", "6") == 0


def test_f1_of_bags_of_words() -> None:
    # two of three words are right, two of four are found: 2 * (2/3) (2/4) / (2/3 + 2/4)
    assert f1("the liver cell", "liver cell with fat") == pytest.approx(4 / 7)
    assert f1("cell cell", "cell") == pytest.approx(2 / 3), "a repetition is wrong"
    assert f1("", "cell") == f1("cell", "") == f1("", "") == 0.0


@pytest.mark.parametrize(
    ("prediction", "answer", "n", "expected"),
    [
        ("the cat sat", "the cat sat", 3, 1.0),
        ("the the the", "the cat", 1, 1 / 3),  # clipped
        ("the cat", "the cat sat down", 1, math.exp(1 - 4 / 2)),  # brevity alone
        # precisions 3/4 and 2/3; as long as the reference
        ("the cat sat here", "the cat sat down", 2, math.sqrt(3 / 4 * 2 / 3)),
        # 4/5, 3/4, 2/3; longer than the reference
        ("on the cat sat down", "the cat sat down", 3, (4 / 5 * 3 / 4 * 2 / 3) ** (1 / 3)),
        ("cat", "cat", 2, 0.0),  # no two words
        ("sat cat", "cat sat", 2, 0.0),  # a precision of zero is not left out
        ("", "cat", 1, 0.0),
    ],
)
def test_bleu_by_hand(prediction: str, answer: str, n: int, expected: float) -> None:
    assert bleu(prediction, answer, n) == pytest.approx(expected)


def independent_bleu(given: list[str], expected: list[str], longest: int) -> float:
    """By taking n-grams off the reference one by one, with exact fractions."""
    product = Fraction(1)
    for n in range(1, longest + 1):
        left = [tuple(expected[i : i + n]) for i in range(len(expected) - n + 1)]
        said = [tuple(given[i : i + n]) for i in range(len(given) - n + 1)]
        hits = 0
        for gram in said:
            if gram in left:
                left.remove(gram)
                hits += 1
        product *= Fraction(hits, len(said)) if said else 0
    brevity = 1.0 if len(given) > len(expected) else math.exp(1 - len(expected) / len(given or [0]))
    return float(product) ** (1 / longest) * brevity


@given(sentences, sentences, st.integers(1, 3))
def test_bleu_equals_another_computation(prediction: str, answer: str, n: int) -> None:
    expected = independent_bleu(words(prediction), words(answer), n)
    assert bleu(prediction, answer, n) == pytest.approx(expected, abs=1e-12)


@given(sentences.filter(bool), sentences.filter(bool))
def test_scores_are_fractions_and_f1_is_symmetric(one: str, other: str) -> None:
    assert 0 <= f1(one, other) <= 1
    assert f1(one, other) == pytest.approx(f1(other, one))
    assert bleu(one, one, 1) == f1(one, one) == 1.0


def test_the_report_has_both_kinds() -> None:
    report = evaluate(["yes", "no", "fatty liver"], ["Yes", "yes", "fatty change"])
    assert report.scores["exact_match"] == pytest.approx(100 / 3)
    assert report.scores["yes_no_accuracy"] == 50.0
    assert report.scores["open"] == {
        "exact_match": 0.0,
        "f1": pytest.approx(50.0),
        "bleu-1": pytest.approx(50.0),
        "bleu-2": 0.0,
        "bleu-3": 0.0,
    }
    assert list(evaluate(["yes"], ["yes"]).scores) == ["exact_match", "yes_no_accuracy"]
    assert list(evaluate(["fat"], ["fat"]).scores) == ["exact_match", "open"]
    with pytest.raises(UserError, match="no questions"):
        evaluate([], [])
    with pytest.raises(UserError, match="1 missing"):
        evaluate(["fat"], ["fat", "fat"])


def test_predictions_are_scored_in_row_order(tmp_path: Path) -> None:
    rows = [{"image": "a", "question": "?", "answer": a} for a in ("yes", "liver")]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    PATHVQA.write_predictions({0: "yes", 1: "lung"}, tmp_path / "p.json")
    report = score_files(tmp_path / "p.json", tmp_path / "test.jsonl")
    assert report.scores["exact_match"] == 50.0
    (tmp_path / "test.jsonl").write_text('{"image": "a", "question": "?"}\n')
    with pytest.raises(UserError, match="row 0: the field 'answer' is missing"):
        score_files(tmp_path / "p.json", tmp_path / "test.jsonl")


def test_pickles_are_refused_with_the_line_that_converts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that is told really converts one."""
    rows = [{"image": "test_0001", "question": "What?", "answer": "fat"}]
    (tmp_path / "qas").mkdir()
    (tmp_path / "qas" / "test_qa.pkl").write_bytes(pickle.dumps(rows))
    with pytest.raises(UserError, match="is a pickle, which can run code") as told:
        PATHVQA.load(tmp_path, "test")
    assert "\n" not in str(told.value)
    command = str(told.value).split("`")[1]

    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True)
    (example,) = PATHVQA.load(tmp_path, "test")
    assert (example.image, example.question) == ("test/test_0001.jpg", "What?")


def write_parquet(path: Path, **columns: list[Any]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)


def test_parquet_becomes_the_layout(tmp_path: Path) -> None:
    photo, other = ({"bytes": data, "path": None} for data in (b"one photo", b"another"))
    hub = tmp_path / "hub"
    write_parquet(
        hub / "test-00000-of-00002.parquet",
        image=[photo] * 2,
        question=["a", "b"],
        answer=["x"] * 2,
    )
    write_parquet(hub / "test-00001-of-00002.parquet", image=[other], question=["c"], answer=["y"])
    write_parquet(hub / "validation" / "0000.parquet", image=[other], question=["d"], answer=["z"])
    write_parquet(hub / "readme.parquet", image=[other], question=["?"], answer=["?"])
    with pytest.raises(UserError, match="`skipqa data pathvqa --parquet"):
        PATHVQA.load(hub, "test")
    out = tmp_path / "out"
    arguments = ["data", "pathvqa", "--parquet", str(hub), "--out", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["questions"] == {"test": 3, "val": 1}
    examples = PATHVQA.load(out, "test")
    assert [e.question for e in examples] == ["a", "b", "c"]
    photos = [(out / "images" / e.image).read_bytes() for e in examples]
    assert photos == [b"one photo", b"one photo", b"another"]
    assert len(list((out / "images" / "test").iterdir())) == 2, "a shared photo is written once"
    told = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert told == f"test 3 questions, val 1 question in {out}\n"


def test_bad_parquet_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="has no Parquet files of train"):
        convert(tmp_path, tmp_path / "out")
    path = tmp_path / "train.parquet"
    write_parquet(path, image=["a.jpg"], question=["?"])
    with pytest.raises(UserError, match="lacks the column 'answer'"):
        convert(tmp_path, tmp_path / "out")
    write_parquet(path, image=["a.jpg"], question=["?"], answer=["x"])
    with pytest.raises(UserError, match="must hold the photos themselves"):
        convert(tmp_path, tmp_path / "out")
    write_parquet(path, image=[{"bytes": b"x"}], question=["?"], answer=[None])
    with pytest.raises(UserError, match="'answer' must be a string, found null"):
        convert(tmp_path, tmp_path / "out")
    path.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="is not a Parquet file"):
        convert(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out" / "train.jsonl").exists()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"skipqa\[parquet\]"):
        convert(tmp_path, tmp_path / "out")
