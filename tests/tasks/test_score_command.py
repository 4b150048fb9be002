"""`skipqa score` on small files in the official layouts, and on bad ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from skipqa.cli.score import score
from skipqa.errors import UserError

app = typer.Typer()
app.command()(score)

HEADER = {"info": {}, "data_type": "mscoco", "data_subtype": "val2014", "license": {}}
EVQA_COLUMNS = ["question", "answer", "question_type", "encyclopedic_vqa_split"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def scores(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


def complaint(*arguments: object) -> str:
    """The one line that the entry point prints before it exits with 2."""
    error = run(*arguments).exception
    assert isinstance(error, UserError), repr(error)
    assert "\n" not in str(error)
    return str(error)


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def vqa(tmp_path: Path) -> list[object]:
    """Arguments that score two questions, the first answered "dog" by four people of ten."""
    answers = [{"answer_id": i, "answer": "dog" if i < 5 else f"x{i}"} for i in range(1, 11)]
    rows = [
        {"question_id": i, "image_id": 9, "question_type": kind, "answer_type": "other"}
        | {"answers": answers}
        for i, kind in ((1, "one"), (2, "two"))
    ]
    questions = [{"question_id": i, "image_id": 9, "question": "What?"} for i in (1, 2)]
    predictions = [{"question_id": 2, "answer": "cat"}, {"question_id": 1, "answer": "The dog."}]
    asked = HEADER | {"task_type": "Open-Ended", "questions": questions}
    return [
        *("--annotations", write(tmp_path / "annotations.json", HEADER | {"annotations": rows})),
        *("--questions", write(tmp_path / "questions.json", asked)),
        *("--predictions", write(tmp_path / "predictions.json", predictions)),
    ]


def test_okvqa(vqa: list[object]) -> None:
    found = scores("okvqa", *vqa)
    assert found["benchmark"] == "okvqa"
    assert found["scores"] == {
        "overall": 50.0,
        "perQuestionType": {"one": 100.0, "two": 0.0},
        "perAnswerType": {"other": 50.0},
    }
    assert (found["questions"], found["predictions"]) == (2, 2)
    assert scores("vqav2", *vqa)["benchmark"] == "vqav2"


def test_table(vqa: list[object]) -> None:
    shown = run("okvqa", *vqa).stdout
    assert "perQuestionType" in shown
    assert "50.00" in shown


def test_repeats_are_reported(vqa: list[object]) -> None:
    rows = [{"question_id": i, "answer": a} for i, a in ((1, "dog"), (2, "dog"), (2, "cat"))]
    write(Path(str(vqa[-1])), rows)
    result = run("okvqa", *vqa, "--json")
    assert json.loads(result.stdout)["duplicate"] == 1
    assert "note: 1 repeated ids (first: 2): the last answer counts" in result.stderr


def test_aokvqa(tmp_path: Path) -> None:
    dataset = [
        {
            "question_id": name,
            "choices": ["cab", "bus"],
            "correct_choice_idx": 0,
            "direct_answers": ["cab"] * 2 + ["taxi"] * 8,
            "difficult_direct_answer": False,
        }
        for name in ("a", "b")
    ]
    annotations = write(tmp_path / "aokvqa_v1p0_val.json", dataset)
    predictions = tmp_path / "predictions_val.json"
    predictions.write_text(
        '{"a": {"multiple_choice": "bus"},'
        ' "a": {"multiple_choice": "cab", "direct_answer": "cab"}}',
        encoding="utf-8",
    )
    files = ("--annotations", annotations, "--predictions", predictions)
    found = scores("aokvqa", *files)
    assert found["scores"]["multiple_choice"] == 50.0
    assert found["scores"]["direct_answer"] == pytest.approx(100 / 3)
    assert (found["missing"], found["duplicate"]) == (1, 1)
    write(predictions, {"a": "cab"})
    assert "expected an object, found a string" in complaint("aokvqa", *files)
    write(predictions, {"a": {}})
    assert "no prediction has multiple_choice or direct_answer" in complaint("aokvqa", *files)
    write(predictions, {"a": {"direct_answer": "cab"}})
    write(annotations, [row | {"correct_choice_idx": 4} for row in dataset])
    assert "correct_choice_idx 4 is not one of 2 choices" in complaint("aokvqa", *files)


def infoseek_files(folder: Path, predictions: list[Any]) -> list[object]:
    references = [
        {"data_id": "q", "data_split": "val_unseen_question", "answer_eval": ["dog"]},
        {"data_id": "e", "data_split": "val_unseen_entity", "answer_eval": [{"range": [9, 11]}]},
    ]
    types = [
        {"data_id": "q", "question_type": "String"},
        {"data_id": "e", "question_type": "Numerical"},
    ]
    return [
        *("--references", write_lines(folder / "infoseek_val.jsonl", references)),
        *("--qtypes", write_lines(folder / "infoseek_val_qtype.jsonl", types)),
        *("--predictions", write_lines(folder / "predictions.jsonl", predictions)),
    ]


def test_infoseek(tmp_path: Path) -> None:
    given = [("q", "The dog"), ("e", "10 m"), ("e", "12"), ("zzz", "x")]
    rows = [{"data_id": i, "prediction": p} for i, p in given]
    found = scores("infoseek", *infoseek_files(tmp_path, rows))
    assert found["scores"]["final_score"] == 66.67
    assert found["scores"]["unseen_entity_score"]["score_num"] == 50.0
    assert (found["duplicate"], found["unknown"]) == (1, 1)


def test_infoseek_complaints(tmp_path: Path) -> None:
    bad = infoseek_files(tmp_path, [{"data_id": "e", "prediction": "-.1.2"}])
    assert "e cannot be scored" in complaint("infoseek", *bad)
    bad = infoseek_files(tmp_path, [{"data_id": "e", "prediction": 10}])
    assert "'prediction' must be a string, found an integer" in complaint("infoseek", *bad)
    bad = infoseek_files(tmp_path, [{"data_id": "e", "prediction": "10"}])
    write_lines(Path(str(bad[3])), [{"data_id": "q", "question_type": "String"}])
    assert "1 references have no question type (first: 'e')" in complaint("infoseek", *bad)


def evqa_files(folder: Path, predictions: object) -> list[object]:
    path = folder / "test.csv"
    rows = [
        ["What, then?", "dog|a hound", "automatic", "test"],
        ['The "colours"', "red&&blue", "multi_answer", "test"],
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([EVQA_COLUMNS, *rows])
    return ["--references", path, "--predictions", write(folder / "predictions.json", predictions)]


@pytest.mark.parametrize(
    "predictions", [["Hound", "blue and red"], {"1": "blue and red", "0": "Hound"}]
)
def test_evqa(tmp_path: Path, predictions: object) -> None:
    found = scores("evqa", *evqa_files(tmp_path, predictions))
    assert found["scores"] == {
        "exact_match": 100.0,
        "perQuestionType": {"automatic": 100.0, "multi_answer": 100.0},
        "perSplit": {"test": 100.0},
    }
    assert "BEM" in found["notes"][0]


def test_evqa_complaints(tmp_path: Path) -> None:
    assert "1 predictions for 2 questions" in complaint("evqa", *evqa_files(tmp_path, ["dog"]))
    wrong = evqa_files(tmp_path, {"0": "dog", "7": "red"})
    assert "1 missing (first: '1'), 1 unknown (first: '7')" in complaint("evqa", *wrong)
    number = evqa_files(tmp_path, ["dog", 5])
    assert "the answer to 1 must be a string, found an integer" in complaint("evqa", *number)
    good = evqa_files(tmp_path, ["dog", "red"])
    Path(str(good[1])).write_text('question,answer\n"cut off', encoding="utf-8")
    assert "not CSV" in complaint("evqa", *good)
    Path(str(good[1])).write_text("question,answer\nx,y\n", encoding="utf-8")
    assert "lacks the column 'question_type'" in complaint("evqa", *good)
    Path(str(good[1])).write_text("question,answer,question_type\nx,y\n", encoding="utf-8")
    assert "row 0: not as many fields" in complaint("evqa", *good)


@pytest.mark.parametrize(
    "predictions",
    [
        ["levis", "Paris, France"],
        {"f" * 32: "levis", "0" * 32: "Paris, France"},
        [{"id": "1", "prediction_text": "Paris, France"}, {"id": "0", "prediction_text": "levis"}],
    ],
)
def test_viquae(tmp_path: Path, predictions: object) -> None:
    rows = [
        {"id": name * 32, "output": {"answer": answers, "original_answer": answers[0]}}
        for name, answers in (("f", ["Levi's", "Levi Strauss"]), ("0", ["Paris"]))
    ]
    references = write_lines(tmp_path / "test.jsonl", rows)
    files = ("--references", references, "--predictions", write(tmp_path / "p.json", predictions))
    found = scores("viquae", *files)["scores"]
    assert found["exact_match"] == 50.0
    assert found["f1"] == pytest.approx(100 * (1 + 2 / 3) / 2)


def test_retrieval(tmp_path: Path) -> None:
    qrels = write(tmp_path / "qrels.json", {"a": {"1": 1}, "b": {"2": 1}})
    run_file = write(tmp_path / "run.json", {"a": {"1": 2.0, "9": 1}, "b": {"9": 2.0, "2": 1.0}})
    found = scores("viquae-retrieval", "--qrels", qrels, "--run", run_file)["scores"]
    assert found == {
        "mrr@100": 75.0,
        "precision@1": 50.0,
        "precision@20": pytest.approx(5.0),
        "hit_rate@20": 100.0,
    }
    trec_qrels, trec_run = tmp_path / "qrels.txt", tmp_path / "run.txt"
    trec_qrels.write_text("a 0 1 1\nb 0 2 1\n", encoding="utf-8")
    trec_run.write_text(
        "a Q0 1 1 2.0 x\na Q0 9 2 1 x\nb Q0 9 1 2 x\n\nb Q0 2 2 1 x", encoding="utf-8"
    )
    assert scores("viquae-retrieval", "--qrels", trec_qrels, "--run", trec_run)["scores"] == found
    trec_run.write_text("a Q0 1\n", encoding="utf-8")
    line = complaint("viquae-retrieval", "--qrels", qrels, "--run", trec_run)
    assert "line 1: expected 'query Q0 passage rank number name'" in line
    write(run_file, {"a": {"1": "high"}})
    line = complaint("viquae-retrieval", "--qrels", qrels, "--run", run_file)
    assert "must be an integer or a number, found a string" in line


BAD_FILES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
    "not json": (b"question_id,answer\n1,dog\n", "not JSON"),
    "truncated": (b'[{"question_id": 1, "answer": "do', "cut off"),
    "truncated list": (b'[{"question_id": 1, "answer": "dog"},', "cut off"),
    "NaN": (b'[{"question_id": 1, "answer": NaN}]', "NaN is not JSON"),
    "infinity": (b'[{"question_id": 1, "answer": -Infinity}]', "-Infinity is not JSON"),
    "latin-1": ('[{"question_id": 1, "answer": "café"}]'.encode("latin-1"), "not UTF-8"),
    "utf-16": ('[{"question_id": 1}]'.encode("utf-16"), "not UTF-8"),
    "an object": (b'{"1": "dog"}', "expected a list of objects, found an object"),
    "strings": (b'["dog"]', "row 0: expected an object, found a string"),
    "no answer": (b'[{"question_id": 1}]', "row 0: the field 'answer' is missing"),
    "null answer": (b'[{"question_id": 1, "answer": null}]', "must be a string, found null"),
    "number": (b'[{"question_id": 1, "answer": 5}]', "must be a string, found an integer"),
    "wrong ids": (b'[{"question_id": 7, "answer": "dog"}]', "2 missing (first: 1, 2), 1 unknown"),
    "text ids": (b'[{"question_id": "1", "answer": "dog"}]', "unknown (first: '1')"),
    "no rows": (b"[]", "2 missing"),
    "deep": (b"[" * 100_000, "not usable JSON"),
    "huge number": (b'[{"question_id": ' + b"9" * 5000 + b"}]", "not usable JSON"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_predictions_give_one_clear_line(vqa: list[object], name: str) -> None:
    contents, expected = BAD_FILES[name]
    Path(str(vqa[-1])).write_bytes(contents)
    assert expected in complaint("okvqa", *vqa)


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_score_or_give_one_line(vqa: list[object], data: st.DataObject) -> None:
    """Damage the file anywhere: never a traceback."""
    good = b'[{"question_id": 1, "answer": "dog"}, {"question_id": 2, "answer": "cat"}]'
    start, end = sorted(
        (data.draw(st.integers(0, len(good))), data.draw(st.integers(0, len(good))))
    )
    Path(str(vqa[-1])).write_bytes(good[:start] + data.draw(st.binary(max_size=5)) + good[end:])
    result = run("okvqa", *vqa)
    assert result.exit_code == 0 or isinstance(result.exception, UserError), result.exception


def test_byte_order_mark_is_no_fault(vqa: list[object]) -> None:
    path = Path(str(vqa[-1]))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert scores("okvqa", *vqa)["scores"]["overall"] == 50.0


def test_bad_annotations(vqa: list[object]) -> None:
    annotations, questions = Path(str(vqa[1])), Path(str(vqa[3]))
    good = json.loads(annotations.read_text(encoding="utf-8"))
    write(annotations, {"annotations": [good["annotations"][0] | {"answers": []}]})
    assert "question 1: no answers" in complaint("okvqa", *vqa)
    write(annotations, {"annotations": good["annotations"] * 2})
    assert "annotated twice" in complaint("okvqa", *vqa)
    write(annotations, {"questions": []})
    assert "the field 'annotations' is missing" in complaint("okvqa", *vqa)
    write(annotations, good)
    asked = json.loads(questions.read_text(encoding="utf-8"))
    write(questions, asked | {"questions": asked["questions"][:1]})
    assert "lacks 1 annotated questions (first: 2)" in complaint("okvqa", *vqa)
    del asked["license"]
    write(questions, asked)
    assert "the field 'license' is missing" in complaint("okvqa", *vqa)


def test_options_are_checked(vqa: list[object], tmp_path: Path) -> None:
    assert "unknown benchmark 'gqa'" in complaint("gqa", *vqa)
    assert "needs --annotations" in complaint("okvqa", *vqa[-2:])
    assert "no use for --qtypes" in complaint("okvqa", *vqa, "--qtypes", tmp_path / "x")
    absent = [*vqa[:-1], tmp_path / "absent.json"]
    assert "absent.json does not exist" in complaint("okvqa", *absent)
    assert "is a folder" in complaint("okvqa", *vqa[:-1], tmp_path)
