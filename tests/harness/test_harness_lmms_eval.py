"""Inside lmms-eval, where it is installed: the plugin is found, the model answers, tasks score."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from official_files import COLOURS, draw

LACKING = "lmms-eval is not installed: pip install 'skipqa[lmms-eval]'"
lmms_eval = pytest.importorskip("lmms_eval", reason=LACKING)

from lmms_eval.api.instance import Instance  # noqa: E402
from lmms_eval.evaluator import simple_evaluate  # noqa: E402
from lmms_eval.models.registry_v2 import ModelRegistryV2  # noqa: E402
from lmms_eval.tasks import TaskManager  # noqa: E402
from PIL import Image, ImageFile  # noqa: E402

from benchmarks.server_process import ServerProcess  # noqa: E402
from skipqa.answer import Answer  # noqa: E402
from skipqa.errors import UserError  # noqa: E402
from skipqa.harness import TASK_FOLDER  # noqa: E402
from skipqa.harness.benchmarks import Source, documents, example_of  # noqa: E402
from skipqa.harness.decoding import whole_photos  # noqa: E402
from skipqa.harness.functions import doc_to_visual  # noqa: E402
from skipqa.harness.manifest import manifest  # noqa: E402
from skipqa.harness.model import SkipQA  # noqa: E402
from skipqa.tasks import TASKS, Example  # noqa: E402

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


def asked_of(model: Any, manager: TaskManager) -> tuple[list[str], float]:
    """The answers that lmms-eval has logged, and its score."""
    found = simple_evaluate(
        model=model, tasks=[NAME], task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    logged = [sample["accuracy"]["prediction"] for sample in found["samples"][NAME]]
    return logged, found["results"][NAME]["accuracy,none"]


def our_score(examples: Sequence[Example], answers: Sequence[str]) -> Any:
    given = {e.id: answer for e, answer in zip(examples, answers, strict=True)}
    report = TASKS["okvqa"].report(examples, given)
    assert report is not None
    return report.scores["overall"]


def our_examples() -> list[Example]:
    return [example_of(d)[1] for d in documents(Source.of({"benchmark": "okvqa"}))]


def our_answers(model: SkipQA, examples: Sequence[Example], data: Path) -> list[Answer]:
    photos = data / "okvqa" / "images"
    with whole_photos():
        return [model.pipeline.answer(photos / e.image, e.question) for e in examples]


def test_a_run_answers_and_scores_as_we_do(manager: TaskManager, model: SkipQA, data: Path) -> None:
    logged, score = asked_of(model, manager)
    examples = our_examples()
    assert logged == [answer.text for answer in our_answers(model, examples, data)]
    assert score == our_score(examples, logged)


@pytest.fixture
def eight(tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight questions in OK-VQA's layout, two about each of four photos."""
    folder = tmp_path / "okvqa"
    header = {"info": {}, "data_type": "mscoco", "data_subtype": "val2014", "license": {}}
    texts = ("What color is it?", "Which sport is this ball for?") * len(COLOURS)
    texts += ("Which country is this drink from?", "What is in the cup?")
    questions, annotations = [], []
    for number, text in enumerate(texts):
        image = number // 2
        file = folder / "images" / "val2014" / f"COCO_val2014_{image:012d}.jpg"
        if image < len(COLOURS):
            draw(file, COLOURS[image])
        else:
            Image.open(photo).convert("RGB").save(file)
        asked = {"image_id": image, "question_id": 10 + number}
        questions.append(asked | {"question": text})
        given = ["red"] * 3 + ["coffee"] * 3 + ["tennis"] * 2 + ["italy"] * 2
        answers = [{"answer_id": n, "answer": answer} for n, answer in enumerate(given, 1)]
        kind = {"question_type": "eight", "answer_type": "other"}
        annotations.append(asked | kind | {"answers": answers})
    for name, value in (
        ("OpenEnded_mscoco_val2014_questions", {"task_type": "Open-Ended", "questions": questions}),
        ("mscoco_val2014_annotations", {"annotations": annotations}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(header | value))
    monkeypatch.setenv("SKIPQA_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServerProcess]:
    """As docs/harnesses.md starts it: passages that an answer quotes would count as part of it."""
    for needed in ("fastapi", "uvicorn"):
        pytest.importorskip(needed, reason="the server is an extra: pip install 'skipqa[serve]'")
    with ServerProcess("--port", "0", "--no-uploads", "--no-citations", "--workers", "1") as server:
        server.wait_ready()
        yield server


def test_a_run_through_the_server_is_the_same(
    model: SkipQA, manager: TaskManager, server: ServerProcess, eight: Path
) -> None:
    """lmms-eval's own client of OpenAI's API, against a `skipqa serve` in another process."""
    from lmms_eval.models.chat.openai import OpenAICompatible

    through = OpenAICompatible(
        model="skipqa-pocket",
        base_url=f"http://{server.host}:{server.port}/v1",
        api_key=server.key,
        max_retries=1,  # a question that failed would be answered by its error
        httpx_trust_env=False,  # no proxy between two processes of this machine
    )
    logged, score = asked_of(model, manager)
    examples = our_examples()
    ours = our_answers(model, examples, eight)
    assert len(ours) == 8
    assert {answer.route for answer in ours} == {"draft", "full"}
    assert logged == [answer.text for answer in ours]
    assert asked_of(through, manager) == (logged, score)
    assert score == our_score(examples, logged) > 0


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
