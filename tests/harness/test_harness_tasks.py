"""The tasks for lmms-eval without lmms-eval: their YAML files, their documents, their scores."""

from __future__ import annotations

import importlib
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageFile

from skipqa.errors import UserError
from skipqa.harness import TASK_FOLDER
from skipqa.harness.benchmarks import BENCHMARKS, Source, documents, example_of
from skipqa.harness.functions import (
    doc_to_target,
    doc_to_text,
    doc_to_visual,
    official,
    process_results,
)
from skipqa.image import open_image
from skipqa.tasks import SCORE_FILES, TASKS

WITHOUT_MODEL = [name for name in BENCHMARKS if name != "evqa_bem"]  # BEM has weights of its own
FUNCTIONS = ("process_docs", "doc_to_visual", "doc_to_text", "doc_to_target", "process_results")


class Reader(yaml.SafeLoader):
    """Reads `!function a.b.c` as lmms-eval does: the attribute c of the module a.b."""


def function(reader: Reader, node: yaml.ScalarNode) -> Any:
    module, _, name = str(reader.construct_scalar(node)).rpartition(".")
    return getattr(importlib.import_module(module), name)


Reader.add_constructor("!function", function)


def read(path: Path) -> dict[str, Any]:
    return yaml.load(path.read_text(encoding="utf-8"), Reader)


def test_every_benchmark_has_its_yaml() -> None:
    assert {path.stem for path in TASK_FOLDER.glob("*.yaml")} == {
        f"skipqa_{name}" for name in BENCHMARKS
    }


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_a_yaml_names_functions_and_metrics_that_exist(name: str) -> None:
    task = read(TASK_FOLDER / f"skipqa_{name}.yaml")
    assert task["task"] == f"skipqa_{name}"
    assert all(callable(task[key]) for key in FUNCTIONS)
    assert [metric["metric"] for metric in task["metric_list"]] == list(BENCHMARKS[name].metrics)
    assert all(metric["aggregation"] is official for metric in task["metric_list"])
    (file,) = task["dataset_kwargs"]["data_files"].values()
    assert json.loads((TASK_FOLDER / file).read_text()) == {"benchmark": name}
    assert list(task["dataset_kwargs"]["data_files"]) == [task["test_split"]]


def test_the_command_prints_the_folder() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "skipqa.harness"], capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == TASK_FOLDER


def test_tasks_need_neither_lmms_eval_nor_datasets() -> None:
    code = """
import sys
sys.modules["lmms_eval"] = sys.modules["datasets"] = None  # as if they were not installed
import skipqa.harness.manifest, skipqa.harness.functions
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", WITHOUT_MODEL)
def test_documents_are_the_examples_of_the_task(name: str, data: Path) -> None:
    source, task = Source.of({"benchmark": name}), BENCHMARKS[name].task()
    examples = task.load(data / BENCHMARKS[name].folder, task.default_split)
    found = documents(source)
    assert [example_of(document)[1] for document in found] == examples
    assert len(found) == (2 if name == "aokvqa" else 3)  # one answer is too difficult to compare
    for document, example in zip(found, examples, strict=True):
        assert json.loads(json.dumps(document)) == document
        assert doc_to_text(document) == example.question
        assert doc_to_target(document) == list(example.answers)
        photo = data / BENCHMARKS[name].folder / "images" / example.image
        (visual,) = doc_to_visual(document)
        assert np.array_equal(np.asarray(visual), np.asarray(open_image(photo)))


PREDICTIONS = ["red", "Blue", "the yellow ball", "a ball", "10", "9 - 11", "white, blue", "", "ink"]


@pytest.mark.parametrize("name", WITHOUT_MODEL)
@given(answers=st.lists(st.sampled_from(PREDICTIONS), min_size=3, max_size=3))
def test_scores_are_those_of_the_task(name: str, answers: list[str], official_data: Path) -> None:
    benchmark = BENCHMARKS[name]
    source = Source.of({"benchmark": name, "folder": str(official_data / benchmark.folder)})
    task, asked = benchmark.task(), documents(source)
    examples = task.load(official_data / benchmark.folder, task.default_split)
    results = [process_results(d, [a]) for d, a in zip(asked, answers, strict=False)]
    predictions = {e.id: task.prediction(e, a) for e, a in zip(examples, answers, strict=False)}
    report = task.report(examples, predictions)
    assert report is not None
    for metric in benchmark.metrics:
        items = [result[metric] for result in results]
        assert official(items) == benchmark.metric(report, metric)
        if metric == benchmark.mean:
            scores = [100 * task.score(e, predictions[e.id]) for e in examples]
            assert [item["score"] for item in items] == scores
            assert np.mean(scores) == pytest.approx(official(items), abs=0.005)  # it is rounded


def test_scores_are_those_of_skipqa_score(data: Path, tmp_path: Path) -> None:
    """Through a predictions file, which takes no part of this package's way to the score."""
    asked = documents(Source.of({"benchmark": "okvqa"}))
    items = [process_results(d, [a])["accuracy"] for d, a in zip(asked, PREDICTIONS, strict=False)]
    rows = [{"question_id": int(i["question_id"]), "answer": i["prediction"]} for i in items]
    (tmp_path / "predictions.json").write_text(json.dumps(rows))
    _, annotations = TASKS["okvqa"].files(data / "okvqa", "val")
    report = SCORE_FILES["okvqa"](tmp_path / "predictions.json", annotations)
    assert official(items) == report.scores["overall"] == 66.67  # two of three


def test_prompts_of_a_task_stand_around_the_question(data: Path) -> None:
    document = documents(Source.of({"benchmark": "viquae"}))[0]
    prompts = {"pre_prompt": "Q: ", "post_prompt": " A:"}
    assert doc_to_text(document, prompts) == "Q: what is ball 0? A:"


def test_a_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SKIPQA_DATA", "SKIPQA_OKVQA", "SKIPQA_BEM"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"OK-VQA: set SKIPQA_DATA to the folder that holds okvqa/"):
        Source.of({"benchmark": "okvqa"})
    with pytest.raises(UserError, match="did you mean okvqa"):
        Source.of({"benchmark": "okvq"})
    with pytest.raises(UserError, match="set SKIPQA_BEM"):
        Source.of({"benchmark": "evqa_bem"})
    monkeypatch.setenv("SKIPQA_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"questions\.json does not exist"):
        documents(Source.of({"benchmark": "okvqa"}))


def test_the_line_of_a_task_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPQA_DATA", "/data")
    assert Source.of({"benchmark": "aokvqa_mc"}) == Source(
        "aokvqa_mc", "/data/aokvqa", "/data/aokvqa/images", "val"
    )
    for name, value in {"": "/a", "_IMAGES": "/photos.zip", "_SPLIT": "train"}.items():
        monkeypatch.setenv(f"SKIPQA_AOKVQA{name}", value)
    assert Source.of({"benchmark": "aokvqa"}) == Source("aokvqa", "/a", "/photos.zip", "train")
    line = {"benchmark": "aokvqa", "folder": "/b", "images": "/c", "split": "test_w_ans"}
    assert Source.of(line) == Source("aokvqa", "/b", "/c", "test_w_ans")


def test_a_question_without_photo_is_left_out(
    official_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "viquae"
    shutil.copytree(official_data / "viquae", folder)
    (folder / "images" / "ball-1.png").unlink()
    with caplog.at_level(logging.WARNING):
        found = documents(Source.of({"benchmark": "viquae", "folder": str(folder)}))
    assert [document["number"] for document in found] == [0, 2]
    assert [example_of(document)[1].image for document in found] == ["ball-0.png", "ball-2.png"]
    assert "1 questions are left out" in caplog.text


def test_a_number_that_nobody_can_read_is_not_counted(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = documents(Source.of({"benchmark": "infoseek"}))[1]
    with caplog.at_level(logging.WARNING):
        assert process_results(number, ["-.1.2"]) == {}
    assert "not counted" in caplog.text


def test_a_cut_photo_is_an_error_also_where_pillow_would_fill_it(
    official_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "viquae"
    shutil.copytree(official_data / "viquae", folder)
    photo = folder / "images" / "ball-0.png"
    photo.write_bytes(photo.read_bytes()[:200])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as lmms-eval does
    document, other, _ = documents(Source.of({"benchmark": "viquae", "folder": str(folder)}))
    with pytest.raises(UserError, match="damaged or cut short"):
        doc_to_visual(document)
    assert doc_to_visual(other)
    assert ImageFile.LOAD_TRUNCATED_IMAGES
