"""`skipqa eval NAME` over small fabricated files in the official layouts, with the real pipeline.

The photos are drawn here. What is asserted is that the official files are read, that the score is
that of the official rule, and that the files that a run leaves score the same by `skipqa score`.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from skipqa.cli.eval import app
from skipqa.errors import UserError
from skipqa.tasks import SCORE_FILES, TASKS, Task, llava_bench

SYSTEM = ("--system", "no-retrieval")  # the fastest that runs the decoder
HEADER = {"info": {}, "data_type": "mscoco", "data_subtype": "val2014", "license": {}}
COLOURS = {1: (200, 120, 40), 2: (20, 90, 160), 3: (60, 160, 60)}


def draw(path: Path, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    photo = Image.new("RGB", (48, 48), colour)
    photo.paste((255, 255, 255), (8, 8, 24, 30))
    photo.save(path)


def ask(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [str(word) for word in (*words, *SYSTEM, "--json")])
    if done.exception is not None:
        raise done.exception
    assert done.exit_code == 0
    return json.loads(done.stdout)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]


def write_okvqa(folder: Path) -> None:
    """Three questions, one of whose photos is not there."""
    for image in (1, 2):
        name = f"COCO_val2014_{image:012d}.jpg"
        draw(folder / "images" / "val2014" / name, COLOURS[image])
    rows = [(image, 10 * image) for image in (1, 2, 3)]
    questions = [
        {"image_id": i, "question": "Where is it made?", "question_id": q} for i, q in rows
    ]
    answers = [{"answer_id": n, "answer": "dog" if n < 9 else "cat"} for n in range(1, 11)]
    kinds = {"question_type": "eight", "answer_type": "other", "answers": answers}
    annotations = [{"image_id": i, "question_id": q} | kinds for i, q in rows]
    asked = HEADER | {"task_type": "Open-Ended", "questions": questions}
    (folder / "OpenEnded_mscoco_val2014_questions.json").write_text(json.dumps(asked))
    answered = HEADER | {"annotations": annotations}
    (folder / "mscoco_val2014_annotations.json").write_text(json.dumps(answered))


def write_aokvqa(folder: Path) -> None:
    rows = [
        {
            "split": "val",
            "image_id": image,
            "question_id": letter * 22,
            "question": "Where is it made?",
            "choices": ["kitchen", "factory", "garden", "sea"],
            "correct_choice_idx": 1,
            "direct_answers": ["factory"] * 10,
            "difficult_direct_answer": letter == "b",
            "rationales": [],
        }
        for image, letter in ((1, "a"), (2, "b"))
    ]
    (folder / "aokvqa_v1p0_val.json").write_text(json.dumps(rows))
    for image in (1, 2):
        draw(folder / "images" / "val2017" / f"{image:012d}.jpg", COLOURS[image])


def write_infoseek(folder: Path) -> None:
    rows = [
        {
            "data_id": f"infoseek_val_{number:08d}",
            "image_id": f"oven_{number:08d}",
            "question": "Where is it made?",
            "answer": ["China"],
            "answer_eval": ["China"] if kind == "String" else [{"range": [0, 1]}],
            "data_split": f"val_unseen_{unseen}",
        }
        for number, (kind, unseen) in enumerate([("String", "question"), ("Numerical", "entity")])
    ]
    types = [
        {"data_id": row["data_id"], "question_type": kind}
        for row, kind in zip(rows, ("String", "Numerical"), strict=True)
    ]
    (folder / "infoseek_val.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "infoseek_val_qtype.jsonl").write_text("\n".join(map(json.dumps, types)))
    draw(folder / "images" / "oven_00000000.png", COLOURS[1])
    draw(folder / "images" / "oven_00000001.JPEG", COLOURS[2])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_okvqa(home: Path, data: Path, tmp_path: Path) -> None:
    write_okvqa(data)
    out = tmp_path / "out"
    summary = ask("okvqa", "--data", data, "--split", "val", "--out", out)
    assert summary["task"] == "okvqa"
    assert summary["num_questions"] == 2
    assert summary["bad_rows"] == [
        "question 30: no photo 'val2014/COCO_val2014_000000000003.jpg'",
    ]
    found = records(out)
    assert [record["question_id"] for record in found] == [10, 20]
    assert list(summary["accuracy_by_category"]) == ["Plants and Animals"]
    examples = TASKS["okvqa"].load(data, "val")
    for record, example in zip(found, examples, strict=False):
        assert record["score"] == TASKS["okvqa"].score(example, record["answer"])
    official = out / "official"
    report = SCORE_FILES["okvqa"](
        official / "predictions.json",
        official / "mscoco_val2014_annotations.json",
        official / "OpenEnded_mscoco_val2014_questions.json",
    )
    assert summary["official"] == report.as_dict()
    assert summary["official"]["scores"]["overall"] == pytest.approx(
        100 * summary["accuracy"]["mean"], abs=0.01
    )
    again = ask("okvqa", "--data", data, "--split", "val", "--out", out)
    assert again["latency_ms"] == summary["latency_ms"]  # nothing was asked again


def test_types_of_a_benchmark(home: Path, data: Path, tmp_path: Path) -> None:
    write_okvqa(data)
    types, out = tmp_path / "types.jsonl", tmp_path / "out"
    words = ["okvqa", "--data", data, "--types", types, "--out", out, *SYSTEM]

    def run() -> Any:
        return CliRunner().invoke(app, list(map(str, words)))

    types.write_text('{"question_id": 7, "type": "ocr"}\n')
    assert "has the type of none of the 2 questions" in str(run().exception)
    assert not out.exists()
    types.write_text('{"question_id": 10, "type": "lookup"}\n')
    done = run()
    assert done.exit_code == 0, done.exception
    assert "1 questions without a type (first: 20)" in done.stderr
    assert "questions per second" in done.stderr
    assert "By type" in done.stdout
    assert "all types" in done.stdout
    assert [record.get("type") for record in records(out)] == ["lookup", None]
    summary = json.loads((out / "summary.json").read_text())
    assert {name: part["count"] for name, part in summary["accuracy_by_type"].items()} == {
        "lookup": 1
    }
    assert summary["types"]["file"].endswith("types.jsonl")
    again = run()
    assert "all questions were answered before" in again.stderr
    types.write_text('{"question_id": 10, "type": "ocr"}\n')
    assert "a run with other types" in str(run().exception)


def test_fvqa(home: Path, data: Path, tmp_path: Path) -> None:
    rows = [
        {
            "question_id": number,
            "image": "1.png",
            "question": "Which thing here gives light?",
            "answer": "lamp",
            "from": origin,
            "fact": "lamps give light",
            "kb": "conceptnet",
        }
        for number, origin in ((1, "image"), (2, "kb"))
    ]
    (data / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw(data / "1.png", COLOURS[1])
    with zipfile.ZipFile(data / "val.zip", "w") as file:
        file.write(data / "1.png", "1.png")
    summary = ask("fvqa", "--data", data, "--out", tmp_path / "out")
    assert (summary["task"], summary["num_questions"]) == ("fvqa", 2)
    assert list(summary["accuracy_by_type"]) == ["image", "kb"]
    assert list(summary["accuracy_by_category"]) == ["conceptnet"]
    official = tmp_path / "out" / "official"
    report = SCORE_FILES["fvqa"](official / "predictions.json", official / "val.jsonl")
    assert summary["official"]["scores"] == report.scores
    for record in records(tmp_path / "out"):
        assert (record["route"] == "full") == ("recall@4" in record)


def test_aokvqa_in_both_settings(home: Path, data: Path, tmp_path: Path) -> None:
    write_aokvqa(data)
    direct = ask("aokvqa", "--data", data, "--out", tmp_path / "direct")
    choice = ask("aokvqa", "--data", data, "--out", tmp_path / "choice", "--multiple-choice")
    assert (direct["task"], choice["task"]) == ("aokvqa", "aokvqa-multiple-choice")
    assert (direct["num_questions"], choice["num_questions"]) == (1, 2)  # one is too difficult
    assert list(direct["official"]["scores"]) == ["direct_answer"]
    choices = TASKS["aokvqa"].load(data, "val")[0].choices
    for record in records(tmp_path / "choice"):
        assert record.get("prediction", record["answer"]) in choices
        assert record["score"] == (record.get("prediction", record["answer"]) == "factory")
    for summary, name in ((direct, "direct"), (choice, "choice")):
        official = tmp_path / name / "official"
        files = (official / "predictions.json", official / "aokvqa_v1p0_val.json")
        assert summary["official"] == SCORE_FILES["aokvqa"](*files).as_dict()
    with pytest.raises(UserError, match="a run with other task"):
        ask("aokvqa", "--data", data, "--out", tmp_path / "direct", "--multiple-choice")


def test_infoseek(home: Path, data: Path, tmp_path: Path) -> None:
    write_infoseek(data)
    summary = ask("infoseek", "--data", data, "--out", tmp_path / "out")
    assert summary["num_questions"] == 2
    assert list(summary["accuracy_by_category"]) == ["Numerical", "String"]
    official = tmp_path / "out" / "official"
    report = SCORE_FILES["infoseek"](
        official / "predictions.jsonl",
        official / "infoseek_val.jsonl",
        official / "infoseek_val_qtype.jsonl",
    )
    assert summary["official"] == report.as_dict()


def test_pathvqa(home: Path, data: Path, tmp_path: Path) -> None:
    rows = [
        {"image": "val_0001", "question": "Where is it made?", "answer": "liver"},
        {"image": "val_0002", "question": "Is it made?", "answer": "yes"},
    ]
    (data / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for image in (1, 2):
        draw(data / "images" / "val" / f"val_{image:04d}.jpg", COLOURS[image])
    summary = ask("pathvqa", "--data", data, "--out", tmp_path / "out")
    assert list(summary["accuracy_by_category"]) == ["open", "yes/no"]
    official = tmp_path / "out" / "official"
    report = SCORE_FILES["pathvqa"](official / "predictions.json", official / "val.jsonl")
    assert summary["official"] == report.as_dict()


def test_llava_bench_leaves_answers_for_a_judge(home: Path, data: Path, tmp_path: Path) -> None:
    question = {"question_id": 0, "image": "001.jpg", "text": "What is it?", "category": "conv"}
    (data / "questions.jsonl").write_text(json.dumps(question))
    (data / "answers_gpt4.jsonl").write_text('{"question_id": 0, "text": "a lake"}')
    (data / "context.jsonl").write_text('{"image": "001.jpg", "caption": "A lake."}')
    draw(data / "images" / "001.jpg", COLOURS[1])
    summary = ask("llava-bench", "--data", data, "--out", tmp_path / "out")
    assert "see `skipqa judge`" in summary["official"]["notes"][0]
    (record,) = records(tmp_path / "out")
    answers = llava_bench.read_answers(tmp_path / "out" / "official" / "answers.jsonl")
    assert answers == {0: record["answer"]}
    (case,) = llava_bench.cases(TASKS["llava-bench"].load(data, "test"), answers)
    assert case.answer in case.prompt()


def test_every_task_has_its_command() -> None:
    commands = {command.name for command in app.registered_commands}
    assert commands - {"vqa", "systems"} == {t.name for t in TASKS.values() if t.has_command}
    assert [t.name for t in TASKS.values() if not t.has_command] == ["aokvqa-multiple-choice"]


@pytest.mark.parametrize("task", [t for t in TASKS.values() if t.has_command], ids=lambda t: t.name)
def test_without_a_split_the_tasks_own_is_asked(task: Task, data: Path, tmp_path: Path) -> None:
    (first, *_) = task.files(data, task.default_split)
    with pytest.raises(UserError, match=f"{first.name} does not exist"):
        ask(task.name, "--data", data, "--out", tmp_path / "out")


def test_a_task_brings_its_own_options(data: Path, tmp_path: Path) -> None:
    words = ("--data", data, "--out", tmp_path / "out")
    with pytest.raises(UserError, match="put the SavedModel of"):
        ask("evqa", *words, "--bem", tmp_path / "no-model")
    assert TASKS["aokvqa"].with_options(multiple_choice=True) == TASKS["aokvqa-multiple-choice"]
    refused = CliRunner().invoke(app, ["okvqa", *map(str, words), "--multiple-choice"])
    assert refused.exit_code == 2


@pytest.mark.parametrize("name", TASKS)
def test_tasks_travel_to_other_processes(name: str) -> None:
    assert pickle.loads(pickle.dumps(TASKS[name])).name == name


def test_what_is_wrong_is_said_before_the_models_are_read(data: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    with pytest.raises(UserError, match="skipqa data fetch okvqa"):
        ask("okvqa", "--data", data, *out)
    write_okvqa(data)
    with pytest.raises(UserError, match="has no split 'test': use train, val"):
        ask("okvqa", "--data", data, "--split", "test", *out)
    with pytest.raises(UserError, match="no photos at"):
        ask("okvqa", "--data", data, "--images", data / "none", *out)
    (data / "empty").mkdir()
    with pytest.raises(UserError, match="has no photo of any question; question 10: no photo"):
        ask("okvqa", "--data", data, "--images", data / "empty", *out)
    write_infoseek(data)
    (data / "infoseek_val_qtype.jsonl").unlink()
    with pytest.raises(UserError, match="its type is not known"):
        ask("infoseek", "--data", data, *out)
    assert not (tmp_path / "out").exists()
