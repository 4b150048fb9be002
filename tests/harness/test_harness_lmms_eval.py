"""Inside lmms-eval, where it is installed: the plugin is found, the model answers, tasks score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

LACKING = "lmms-eval is not installed: pip install 'skipqa[lmms-eval]'"
lmms_eval = pytest.importorskip("lmms_eval", reason=LACKING)

from lmms_eval.api.instance import Instance  # noqa: E402
from lmms_eval.evaluator import simple_evaluate  # noqa: E402
from lmms_eval.models.registry_v2 import ModelRegistryV2  # noqa: E402
from lmms_eval.tasks import TaskManager  # noqa: E402
from PIL import Image, ImageFile  # noqa: E402

from skipqa.errors import UserError  # noqa: E402
from skipqa.harness import TASK_FOLDER  # noqa: E402
from skipqa.harness.benchmarks import Source, documents, example_of  # noqa: E402
from skipqa.harness.decoding import whole_photos  # noqa: E402
from skipqa.harness.functions import doc_to_visual  # noqa: E402
from skipqa.harness.manifest import manifest  # noqa: E402
from skipqa.harness.model import SkipQA  # noqa: E402
from skipqa.tasks import TASKS  # noqa: E402

NAME = "skipqa_okvqa"
ImageFile.LOAD_TRUNCATED_IMAGES = False  # for the tests of other files: lmms-eval has set it


@pytest.fixture(autouse=True)
def as_lmms_eval_leaves_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)


@pytest.fixture(scope="module")
def manager() -> TaskManager:
    return TaskManager(include_path=str(TASK_FOLDER), include_defaults=False, model_name="skipqa")


@pytest.fixture(scope="module")
def model(home: Path) -> SkipQA:
    return SkipQA(preset="pocket", index="default", batch_size="2")


def request(visuals: list[Any], kind: str = "generate_until") -> Instance:
    metadata = {"task": "other", "doc_id": 0, "repeats": 1, "split": "test"}
    arguments = ("What is it?", {}, lambda _: visuals, 0, "other", "test")
    return Instance(request_type=kind, arguments=arguments, idx=0, metadata=metadata)


def test_the_manifest_leads_to_the_model() -> None:
    registry = ModelRegistryV2()
    registry.register_manifest(manifest())
    assert registry.get_model_class("skipqa") is SkipQA


def test_every_task_is_indexed(manager: TaskManager) -> None:
    assert manager.all_subtasks == sorted(path.stem for path in TASK_FOLDER.glob("*.yaml"))


def test_a_run_answers_and_scores_as_we_do(manager: TaskManager, model: SkipQA, data: Path) -> None:
    found = simple_evaluate(
        model=model, tasks=[NAME], task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    logged = [sample["accuracy"]["prediction"] for sample in found["samples"][NAME]]
    examples = [example_of(d)[1] for d in documents(Source.of({"benchmark": "okvqa"}))]
    with whole_photos():
        answers = [
            model.pipeline.answer(data / "okvqa" / "images" / e.image, e.question).text
            for e in examples
        ]
    assert logged == answers
    report = TASKS["okvqa"].report(
        examples, {e.id: a for e, a in zip(examples, answers, strict=True)}
    )
    assert report is not None
    assert found["results"][NAME]["accuracy,none"] == report.scores["overall"]


@pytest.mark.parametrize("name", ["aokvqa", "aokvqa_mc", "infoseek", "evqa", "viquae"])
def test_other_tasks_load(name: str, manager: TaskManager, data: Path) -> None:
    (task,) = manager.load_task_or_group([f"skipqa_{name}"], "chat").values()
    document = task.eval_docs_no_media[0]
    (message,) = task.doc_to_messages(document)
    assert [part["type"] for part in message["content"]] == ["image", "text"]
    assert message["content"][1]["text"] == document["question"]
    assert doc_to_visual(document)[0].size == (96, 64)


def test_missing_files_end_the_run_with_one_line(
    manager: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKIPQA_DATA", raising=False)
    monkeypatch.delenv("SKIPQA_OKVQA", raising=False)
    with pytest.raises(SystemExit, match="error: OK-VQA: set SKIPQA_DATA"):
        manager.load_task_or_group([NAME], "simple")


def test_requests_that_do_not_apply_are_refused_in_one_line(model: SkipQA) -> None:
    model.task_dict["other"] = {"test": [{}]}
    image = Image.new("RGB", (32, 32))
    for visuals, found in (([], "no image"), ([image, image], "2 images"), ([{}], "a dict")):
        with pytest.raises(UserError, match=f"about one image; document 0 of other has {found}"):
            model.generate_until([request(visuals)])
    with pytest.raises(UserError, match="other asks for log-likelihoods"):
        model.loglikelihood([request([image], "loglikelihood")])
    with pytest.raises(UserError, match="other asks for several rounds"):
        model.generate_until_multi_round([request([image])])


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"colour": "red"}, "skipqa has no setting 'colour'"),
        ({"batch_size": "auto"}, "--batch_size auto is no number"),
        ({"device": "cuda"}, "set SKIPQA_DEVICE=cuda"),
        ({"preset": "pockets"}, "did you mean pocket"),
    ],
)
def test_settings_that_do_not_exist_are_refused(given: dict[str, str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        SkipQA(**given)
