"""Loaders on small files in the official layouts: what they read, and that it comes back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.data.download import manifest
from skipqa.errors import UserError
from skipqa.tasks import SCORE_FILES, TASKS, Example, Task
from skipqa.tasks.aokvqa import nearest_choice
from skipqa.tasks.llava_bench import cases, read_answers
from skipqa.tasks.pocket_kb import box_from_centre
from skipqa.tasks.task import official_file

MULTIPLE_CHOICE = "-multiple-choice"


def write_vqa(folder: Path, prefix: str = "") -> None:
    header = {
        "info": {"year": 2019},
        "data_type": "mscoco",
        "data_subtype": "val2014",
        "license": {"url": ""},
    }
    questions = [{"image_id": 42, "question": "What is it?", "question_id": i} for i in (421, 422)]
    annotations = [
        {
            "image_id": 42,
            "question_id": i,
            "question_type": "eight",
            "answer_type": "other",
            "answers": [
                {
                    "answer_id": n,
                    "answer": "dog" if n < 9 else "puppy",
                    "raw_answer": "dogs",
                    "answer_confidence": "yes",
                }
                for n in range(1, 11)
            ],
            "confidence": 3,
        }
        for i in (422, 421)  # not in the order of the questions
    ]
    (folder / f"{prefix}OpenEnded_mscoco_val2014_questions.json").write_text(
        json.dumps(header | {"task_type": "Open-Ended", "questions": questions}), encoding="utf-8"
    )
    (folder / f"{prefix}mscoco_val2014_annotations.json").write_text(
        json.dumps(header | {"annotations": annotations}), encoding="utf-8"
    )


def write_aokvqa(folder: Path) -> None:
    row = {
        "split": "val",
        "image_id": 299207,
        "question_id": "22MexNkBPpdZGX6sxbxVBH",
        "question": "What is awaited?",
        "choices": ["train", "cab", "mail", "rain"],
        "correct_choice_idx": 1,
        "direct_answers": ["cab"] * 9 + ["taxi"],
        "difficult_direct_answer": False,
        "rationales": ["a", "b", "ç"],
    }
    (folder / "aokvqa_v1p0_val.json").write_text(
        json.dumps([row, row | {"question_id": "b" * 22}]), encoding="utf-8"
    )


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_infoseek(folder: Path) -> None:
    text: dict[str, Any] = {
        "data_id": "infoseek_val_00000000",
        "image_id": "oven_01963180",
        "question": "Where is it endemic?",
        "answer": ["China"],
        "answer_eval": ["China", "PRC"],
        "data_split": "val_unseen_question",
    }
    number = text | {
        "data_id": "infoseek_val_00000001",
        "answer": ["10"],
        "answer_eval": [{"wikidata": 10.0, "range": [9.0, 11.0]}],
        "data_split": "val_unseen_entity",
    }
    write_lines(folder / "infoseek_val.jsonl", [text, number])
    types = [(text["data_id"], "String"), (number["data_id"], "Numerical")]
    rows = [{"data_id": data_id, "question_type": kind} for data_id, kind in types]
    write_lines(folder / "infoseek_val_qtype.jsonl", rows)


def write_evqa(folder: Path) -> None:
    columns = {
        "question": ["How tall, in metres?", "Two\nlines"],
        "answer": ["3|three metres", "red&&blue"],
        "dataset_image_ids": ["00cafe1234567890|deadbeef", "77"],
        "dataset_name": ["landmarks", "inaturalist"],
        "dataset_category_id": ["1", "2"],
        "question_type": ["templated", "multi_answer"],
        "wikipedia_url": ["https://en.wikipedia.org/wiki/X", "https://en.wikipedia.org/wiki/Y"],
        "wikipedia_title": ["X", 'The "Y"'],
        "evidence": ["X is 3 m tall.", ""],
        "evidence_section_id": ["0", "1"],
        "evidence_section_title": ["X", "Colour"],
        "encyclopedic_vqa_split": ["val", "val"],
        "question_original": ["How tall is X?", "?"],
        "wikipedia_url_used_in_train": ["True", "False"],
    }
    with (folder / "val.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])


def write_viquae(folder: Path) -> None:
    row = {
        "image": "512px-Jackie_Wilson.png",
        "input": "this singer advertised what brand?",
        "kilt_id": "sfq_1",
        "id": "0" * 32,
        "meta": {},
        "original_question": "Who?",
        "output": {
            "answer": ["Levi's", "Levis"],
            "original_answer": "Levi's",
            "provenance": [{"title": ["Jackie Wilson"]}],
        },
        "url": "http://example.org/x.png",
        "wikidata_id": "Q1",
    }
    write_lines(folder / "validation.jsonl", [row, row | {"id": "1" * 32}])


def write_pocket_kb(folder: Path) -> None:
    row = {
        "question_id": "val-00001",
        "image": "scenes/val-00001.webp",
        "question": "What is this dog like?",
        "answers": {"affectionate": 1.0, "sprightly": 1.0},
        "category": "dog",
        "gold": ["dog:a", "dog:b"],
        "hops": [["dog:a"], ["dog:b"]],
        "subset": ["small"],
        "popularity": 1,
        "box": [0.5, 0.625, 0.25, 0.5],
    }
    write_lines(
        folder / "val.jsonl", [row, row | {"question_id": "val-00002", "box": None, "hops": []}]
    )


def write_fvqa(folder: Path) -> None:
    row = {
        "question_id": 12,
        "image": "000000000042.webp",
        "question": "Which thing here gives light?",
        "answer": "A lamp",
        "from": "image",
        "fact": "lamps give light",
        "kb": "conceptnet",
    }
    write_lines(folder / "val.jsonl", [row, row | {"question_id": 13}])


def write_pathvqa(folder: Path) -> None:
    row = {"image": "val_0001", "question": "What is shown?", "answer": "Fatty change, liver"}
    write_lines(folder / "val.jsonl", [row, row | {"question": "Is it fat?", "answer": "yes"}])


def write_llava_bench(folder: Path) -> None:
    question = {"question_id": 0, "image": "001.jpg", "text": "What is it?", "category": "conv"}
    reference = {"question_id": 0, "text": "a crater lake", "answer_id": "x", "metadata": {}}
    other = {"question_id": 1, "category": "complex"}
    write_lines(folder / "questions.jsonl", [question, question | other])
    write_lines(folder / "answers_gpt4.jsonl", [reference, reference | {"question_id": 1}])
    write_lines(folder / "context.jsonl", [{"id": "001", "image": "001.jpg", "caption": "A lake."}])


@dataclass(frozen=True)
class Layout:
    """Two questions in the official files of the default split, both of which can be scored."""

    write: Callable[[Path], None]
    first_image: str  # as `load` names it


COCO_2014 = "val2014/COCO_val2014_000000000042.jpg"
COCO_2017 = "val2017/000000299207.jpg"
LAYOUTS = {
    "okvqa": Layout(write_vqa, COCO_2014),
    "vqav2": Layout(partial(write_vqa, prefix="v2_"), COCO_2014),
    "aokvqa": Layout(write_aokvqa, COCO_2017),
    "aokvqa-multiple-choice": Layout(write_aokvqa, COCO_2017),
    "infoseek": Layout(write_infoseek, "oven_01963180.jpg"),
    "evqa": Layout(write_evqa, "landmarks/0/0/c/00cafe1234567890.jpg"),
    "viquae": Layout(write_viquae, "512px-Jackie_Wilson.png"),
    "fvqa": Layout(write_fvqa, "000000000042.webp"),
    "pathvqa": Layout(write_pathvqa, "val/val_0001.jpg"),
    "llava-bench": Layout(write_llava_bench, "001.jpg"),
    "pocket-kb": Layout(write_pocket_kb, "scenes/val-00001.webp"),
}
Loaded = tuple[Task, str, list[Example]]


def layout_of(name: str) -> Layout:
    if name not in LAYOUTS:
        pytest.fail(f"{name} is not tested: add small files in its official layout to LAYOUTS")
    return LAYOUTS[name]


@pytest.fixture(params=list(TASKS))
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Loaded:
    task = TASKS[request.param]
    layout_of(task.name).write(tmp_path)
    return task, task.default_split, task.load(tmp_path, task.default_split)


def test_a_task_is_listed_under_its_name() -> None:
    assert set(LAYOUTS) <= set(TASKS)
    for name, task in TASKS.items():
        assert task.name == name
        assert task.title
        assert task.default_split in task.splits


def test_examples_have_ids_questions_and_answers(loaded: Loaded) -> None:
    _, _, examples = loaded
    assert len(examples) == 2
    assert len({example.id for example in examples}) == 2
    assert all(example.question and example.answers for example in examples)


def test_written_files_load_to_the_same_examples(loaded: Loaded, tmp_path: Path) -> None:
    data_set, split, examples = loaded
    data_set.write(examples, tmp_path / "copy", split)
    assert data_set.load(tmp_path / "copy", split) == examples


def test_rows_survive_untouched(loaded: Loaded, tmp_path: Path) -> None:
    """Beyond equal examples: the files hold the same official rows."""
    data_set, split, examples = loaded
    data_set.write(examples, tmp_path / "copy", split)
    for copy in (tmp_path / "copy").iterdir():
        assert rows_of(copy) == rows_of(tmp_path / copy.name)


def rows_of(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    value = json.loads(text)
    rows = value if isinstance(value, list) else value.get("questions") or value["annotations"]
    return sorted(rows, key=lambda row: row["question_id"])


def test_a_part_can_be_written_and_scored(loaded: Loaded, tmp_path: Path) -> None:
    """Handing each question its own answer scores 100, through files alone."""
    data_set, split, examples = loaded
    part, folder, predictions = examples[:1], tmp_path / "part", tmp_path / "predictions.json"
    data_set.write(part, folder, split)
    data_set.write_predictions({e.id: next(iter(e.answers)) for e in part}, predictions)
    match data_set.name:
        case "pocket-kb":
            return  # has no official scorer
        case "okvqa" | "vqav2":
            annotations = next(folder.glob("*annotations.json"))
            questions = next(folder.glob("*questions.json"))
            report = SCORE_FILES[data_set.name](predictions, annotations, questions)
            assert report.scores["overall"] == 100.0
        case "aokvqa":
            report = SCORE_FILES["aokvqa"](predictions, folder / "aokvqa_v1p0_val.json")
            assert report.scores == {"direct_answer": 100.0}
        case "aokvqa-multiple-choice":
            report = SCORE_FILES["aokvqa"](predictions, folder / "aokvqa_v1p0_val.json")
            assert report.scores == {"multiple_choice": 100.0}
        case "infoseek":
            files = (folder / "infoseek_val.jsonl", folder / "infoseek_val_qtype.jsonl")
            report = SCORE_FILES["infoseek"](predictions, *files)
            assert report.scores["unseen_question_score"]["score"] == 100.0
        case "evqa":
            report = SCORE_FILES["evqa"](predictions, folder / "val.csv")
            assert report.scores["exact_match"] == 100.0
        case "viquae":
            report = SCORE_FILES["viquae"](predictions, folder / "validation.jsonl")
            assert report.scores["f1"] == 100.0
        case "fvqa":
            report = SCORE_FILES["fvqa"](predictions, folder / "val.jsonl")
            assert report.scores == {"top1": 100.0}
        case "pathvqa":
            report = SCORE_FILES["pathvqa"](predictions, folder / "val.jsonl")
            assert report.scores["open"]["bleu-3"] == 100.0
        case "llava-bench":  # its scorer reads what a judge thinks of them
            (case,) = cases(part, read_answers(predictions))
            write_lines(tmp_path / "reviews.jsonl", [case.review("8 8\nEqual.")])
            report = SCORE_FILES["llava-bench"](
                tmp_path / "reviews.jsonl", folder / "questions.jsonl"
            )
            assert report.scores == {"all": 100.0, "conv": 100.0}
        case name:
            pytest.fail(f"say here how `skipqa score` scores the files of {name}")


def right(example: Example) -> str:
    return " and ".join(next(iter(example.answers)).split("&&"))


def test_one_answer_scores_as_the_files_do(loaded: Loaded) -> None:
    data_set, _, examples = loaded
    for example in examples:
        data_set.check(example)
        assert data_set.score(example, right(example)) == 1.0
        assert data_set.score(example, "zebra") == 0.0
    with pytest.raises(UserError, match="keeps the answers back"):
        data_set.check(replace(examples[0], answers={}))


def test_the_report_agrees_with_the_scores(loaded: Loaded) -> None:
    """One of two right: 50 percent, except where two splits enter a harmonic mean."""
    data_set, _, examples = loaded
    predictions = {examples[0].id: right(examples[0]), examples[1].id: "zebra"}
    report = data_set.report(examples, predictions)
    if report is None:
        assert data_set.name == "pocket-kb"
        return
    overall = next(iter(report.scores.values()))
    assert overall == (0.0 if data_set.name == "infoseek" else 50.0)
    assert (report.pairing.num_questions, report.pairing.num_predictions) == (2, 2)


def test_examples_say_where_they_come_from(loaded: Loaded) -> None:
    data_set, split, examples = loaded
    assert {example.split for example in examples} == {split}
    assert {example.source for example in examples} == {data_set.name.removesuffix(MULTIPLE_CHOICE)}
    assert all(0 <= score <= 1 for example in examples for score in example.answers.values())


def test_image_paths_follow_the_official_layouts(loaded: Loaded) -> None:
    data_set, _, examples = loaded
    assert examples[0].image == layout_of(data_set.name).first_image


def test_okvqa_categories_have_words(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    assert TASKS["okvqa"].load(tmp_path, "val")[0].category == "Plants and Animals"


def test_infoseek_finds_the_suffix_an_image_has(tmp_path: Path) -> None:
    write_infoseek(tmp_path)
    (tmp_path / "oven_01963180.JPEG").touch()
    image = TASKS["infoseek"].load(tmp_path, "val", tmp_path)[0].image
    assert image == "oven_01963180.JPEG"


def test_inaturalist_names_come_from_its_annotations(tmp_path: Path) -> None:
    write_evqa(tmp_path)
    (tmp_path / "inaturalist").mkdir()
    names = {"images": [{"id": 77, "file_name": "val/00001_Animalia/abc.jpg"}]}
    (tmp_path / "inaturalist" / "val.json").write_text(json.dumps(names), encoding="utf-8")
    image = TASKS["evqa"].load(tmp_path, "val", tmp_path)[1].image
    assert image == "inaturalist/val/00001_Animalia/abc.jpg"


def test_answers_may_be_kept_back(tmp_path: Path) -> None:
    row = {"question_id": "c" * 22, "image_id": 1, "question": "?", "choices": ["a", "b"]}
    (tmp_path / "aokvqa_v1p0_test.json").write_text(json.dumps([row]), encoding="utf-8")
    example = TASKS["aokvqa"].load(tmp_path, "test")[0]
    assert example.answers == {}
    assert example.choices == ("a", "b")
    assert example.image == "test2017/000000000001.jpg"


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_absent_files_and_splits_are_named(task: Task, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not exist: .*set the folder that holds it$") as told:
        task.load(tmp_path, task.default_split)
    collection = task.name.removesuffix(MULTIPLE_CHOICE)
    if collection in manifest():
        assert f"`skipqa data fetch {collection} --to {tmp_path}`" in str(told.value)
    else:
        assert "data fetch" not in str(told.value)
    with pytest.raises(UserError, match="has no split 'tset'"):
        task.load(tmp_path, "tset")


def test_only_what_can_be_fetched_is_told_to_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows\.json does not exist: set the folder"):
        official_file("nobody-hosts-it", tmp_path, "rows.json")
    with pytest.raises(UserError, match="`skipqa data pocket-kb --out"):
        TASKS["pocket-kb"].load(tmp_path, "val")


def test_a_question_without_annotation_is_named(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    path = tmp_path / "mscoco_val2014_annotations.json"
    contents = json.loads(path.read_text(encoding="utf-8"))
    contents["annotations"].pop()
    path.write_text(json.dumps(contents), encoding="utf-8")
    with pytest.raises(UserError, match="no annotation for question 421"):
        TASKS["okvqa"].load(tmp_path, "val")


def test_soft_scores_are_those_of_the_rule(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    task = TASKS["okvqa"]
    example = task.load(tmp_path, "val")[0]
    assert example.answers == {"dog": 1.0, "puppy": pytest.approx(0.6)}
    for text, score in example.answers.items():
        assert task.score(example, f"The {text}.") == score


def test_difficult_direct_answers_count_in_multiple_choice_only(tmp_path: Path) -> None:
    write_aokvqa(tmp_path)
    path = tmp_path / "aokvqa_v1p0_val.json"
    one, other = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps([one, other | {"difficult_direct_answer": True}]), encoding="utf-8")
    assert [e.id for e in TASKS["aokvqa"].load(tmp_path, "val")] == [one["question_id"]]
    assert len(TASKS["aokvqa-multiple-choice"].load(tmp_path, "val")) == 2


def test_infoseek_needs_its_question_types(tmp_path: Path) -> None:
    write_infoseek(tmp_path)
    (tmp_path / "infoseek_val_qtype.jsonl").unlink()
    task = TASKS["infoseek"]
    with pytest.raises(UserError, match=r"infoseek_val_qtype\.jsonl has the types"):
        task.check(task.load(tmp_path, "val")[0])


def test_an_answer_that_cannot_be_read_as_a_number_is_one_clear_line(tmp_path: Path) -> None:
    write_infoseek(tmp_path)
    task = TASKS["infoseek"]
    with pytest.raises(UserError, match=r"'-\.1\.2' cannot be scored"):
        task.score(task.load(tmp_path, "val")[1], "-.1.2")


@pytest.mark.parametrize(
    ("answer", "chosen"),
    [
        ("A cab!", "cab"),  # equal once normalised
        ("a yellow taxi", "taxi driver"),  # a shared word
        ("trains", "train"),  # spelt alike
        ("the mail train", "mail train"),
        ("", "train"),  # nothing to go by: the first
    ],
)
def test_free_text_becomes_the_nearest_choice(answer: str, chosen: str) -> None:
    assert nearest_choice(answer, ["train", "cab", "mail train", "taxi driver"]) == chosen


def test_boxes_are_left_top_right_bottom(tmp_path: Path) -> None:
    write_pocket_kb(tmp_path)
    one, other = TASKS["pocket-kb"].load(tmp_path, "val")
    assert one.box == (0.375, 0.375, 0.625, 0.875)
    assert other.box is None
    assert one.gold == (frozenset({"dog:a"}), frozenset({"dog:b"}))
    assert other.gold == (frozenset({"dog:a", "dog:b"}),)
    with pytest.raises(UserError, match="row 3: a box is its centre and its size"):
        box_from_centre([0.5, 0.5], "row 3")


@given(st.tuples(*[st.floats(0, 1)] * 4))
def test_a_box_keeps_its_centre_and_its_size(box: tuple[float, float, float, float]) -> None:
    left, top, right, bottom = box_from_centre(box)
    back = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
    assert back == pytest.approx(box, abs=1e-12)
