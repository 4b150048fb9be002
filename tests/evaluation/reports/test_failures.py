"""Pages of failures: which errors are drawn, and what the page shows of them."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from skipqa.assets import sha256_of
from skipqa.cli.main import app
from skipqa.errors import UserError
from skipqa.evaluation.reports.failures import MEANING, Bucket, assigned, is_wrong, table
from skipqa.evaluation.reports.failures_page import (
    AnsweredRun,
    check_made_by,
    render,
    sample,
)
from skipqa.evaluation.reports.runs import read_run
from skipqa.tasks import Example
from skipqa.tasks.photos import Photos

if TYPE_CHECKING:
    from made_runs import MakeRun

    from skipqa.pipeline import Pipeline

MARKUP = "<script>alert(1)</script> & $question"
QUESTION = "How is this drink brewed?"


class Elements(html.parser.HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def record(number: int, category: str, route: str = "full", score: float = 0.0) -> dict[str, Any]:
    return {"question_id": number, "category": category, "route": route, "score": score}


def drawn(records: list[dict[str, Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """By bucket: what was drafted, and what was not."""
    buckets = {
        r["question_id"]: Bucket.DRAFTED if r["route"] == "draft" else Bucket.UNKNOWN
        for r in records
        if is_wrong(r)
    }
    return sample(records, buckets, count, seed)


def test_every_stratum_gives_about_the_same_fraction() -> None:
    records = [record(n, "large" if n < 80 else "small") for n in range(100)]
    counts = Counter(record["category"] for record in drawn(records, 50, seed=3))
    assert abs(counts["large"] - 40) <= 2
    assert abs(counts["small"] - 10) <= 2


@given(st.integers(1, 60), st.integers(0, 5), st.integers(1, 40))
def test_samples_are_errors_each_once_and_repeatable(count: int, seed: int, errors: int) -> None:
    records = [record(n, str(n % 3), "draft" if n % 2 else "full") for n in range(errors)]
    records += [record(n, "0", score=1.0) for n in range(100, 120)]
    chosen = drawn(records, count, seed)
    ids = [record["question_id"] for record in chosen]
    assert len(set(ids)) == len(ids) == min(count, errors)
    assert max(ids) < 100
    assert drawn(list(reversed(records)), errors, seed) == drawn(records, errors, seed)


def test_other_seeds_draw_others() -> None:
    records = [record(n, "0") for n in range(200)]
    assert drawn(records, 20, 0) != drawn(records, 20, 1)


def test_nothing_to_show() -> None:
    with pytest.raises(UserError, match="no errors to show"):
        drawn([record(1, "0", score=1.0)], 5, 0)
    with pytest.raises(UserError, match="shows nothing"):
        drawn([record(1, "0")], 0, 0)


GOLD = {"gold": (frozenset({"a", "b"}),)}
HOPS = {"gold": (frozenset({"a"}), frozenset({"b"}))}
FOUND = {"retrieved": ["x", "a"], "evidence": ["x"], "read": ["x"]}
EXAMPLES: dict[Bucket, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    Bucket.DOUBTFUL: [
        ({"score": 0.33}, {}),
        ({"answer": "steams"}, {}),
        ({"answer": "by hot steam"}, GOLD),
    ],
    Bucket.COUNTING: [({}, {"question": "How many people are there?"})],
    Bucket.TEXT: [({}, {"question": "What brand is the laptop?"}), ({"type": "ocr"}, {})],
    Bucket.DRAFTED: [({"route": "draft"}, {}), ({"route": "draft"}, GOLD)],
    Bucket.MISREAD: [
        ({"retrieved": ["a"], "evidence": ["a"], "read": ["a"]}, GOLD),
        ({"recall_kept": 1.0}, {"fact": "steam brews coffee"}),
    ],
    Bucket.NOT_READ: [({"retrieved": ["a"], "evidence": ["a", "x"], "read": ["x"]}, GOLD)],
    Bucket.NOT_VERIFIED: [(FOUND, GOLD), (FOUND | {"seen": False, "box_kept": 0.0}, GOLD)],
    Bucket.SECOND_HOP: [(FOUND, HOPS), (FOUND | {"evidence": ["a"]}, HOPS)],
    Bucket.WRONG_PLACE: [({"retrieved": ["x"], "box_kept": 0.2, "seen": False}, GOLD)],
    Bucket.NOT_SEEN: [
        ({"retrieved": ["x"], "box_kept": 0.7, "seen": False}, GOLD),
        ({"seen": False}, {}),
    ],
    Bucket.NOT_FOUND: [
        ({"retrieved": ["x"], "box_kept": 0.7, "seen": True}, GOLD),
        ({}, GOLD | {"question": "How many years does it live?"}),
        ({}, {"fact": "steam brews coffee"}),
    ],
    Bucket.CONFUSED: [({"seen": True}, {}), ({"seen": True, "box_kept": 0.7}, {})],
    Bucket.UNKNOWN: [({}, {}), ({"retrieved": ["a"], "evidence": ["a"]}, GOLD)],
}


@pytest.mark.parametrize(
    ("bucket", "fields", "known"),
    [(bucket, *one) for bucket, every in EXAMPLES.items() for one in every],
)
def test_buckets(bucket: Bucket, fields: dict[str, Any], known: dict[str, Any]) -> None:
    example = Example(**{"id": 1, "image": "a.png", "question": QUESTION} | known)
    example = dataclasses.replace(example, answers={"steam": 1.0, "ice": 0.2})
    one = record(1, "0") | {"answer": "sand"} | fields
    assert assigned({1: one}, {1: example}) == {1: bucket}


def test_every_bucket_has_an_example_and_a_meaning() -> None:
    assert set(EXAMPLES) == set(MEANING) == set(Bucket)


IDS = st.lists(st.sampled_from("abxyz"), max_size=4, unique=True)
RECORDS = st.fixed_dictionaries(
    {
        "answer": st.sampled_from(["steam", "steams", "ice", "sand", ""]),
        "score": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
        "route": st.sampled_from(["draft", "full"]),
    },
    optional={
        "retrieved": IDS,
        "evidence": IDS,
        "read": IDS,
        "seen": st.booleans(),
        "box_kept": st.floats(0, 1),
        "recall_kept": st.sampled_from([0.0, 1.0]),
        "type": st.sampled_from(["ocr", "lookup"]),
    },
)
KNOWN = st.fixed_dictionaries(
    {"question": st.sampled_from([QUESTION, "How many?", "What does the sign say?"])},
    optional={
        "gold": st.sampled_from([*GOLD.values(), *HOPS.values()]),
        "fact": st.just("steam brews coffee"),
    },
)


@given(st.lists(st.tuples(RECORDS, KNOWN), max_size=20))
def test_buckets_partition_the_wrong_answers(
    asked: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    records = {n: {"question_id": n, **fields} for n, (fields, _) in enumerate(asked)}
    examples = {
        n: Example(id=n, image="a.png", answers={"steam": 1.0}, **known)
        for n, (_, known) in enumerate(asked)
    }
    buckets = assigned(records, examples)
    assert buckets.keys() == {n for n, one in records.items() if one["score"] < 0.5}
    rows = table(buckets, len(records))
    assert [row["bucket"] for row in rows] == [str(bucket) for bucket in Bucket]
    assert sum(row["wrong"] for row in rows) == len(buckets)
    if buckets:
        assert sum(row["of_wrong"] for row in rows) == pytest.approx(1)


def test_page(made: MakeRun, pipeline: Pipeline, photo: Path) -> None:
    fields = {"category": MARKUP, "score": 0.0, "answer": MARKUP, "subset": ["small", "rare"]}
    run = read_run(made("a", questions=range(3), fields=lambda question: fields))
    rows = {
        n: Example(n, photo.name, QUESTION if n else MARKUP, {MARKUP: 1.0, "tea": 0.667})
        for n in range(3)
    }
    seen: list[tuple[int, int]] = []
    answered = AnsweredRun(run, rows, Photos(photo.parent), pipeline)
    page = render(answered, 2, 0, lambda *done: seen.append(done))
    shown = Elements(page)
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert "script" not in shown.tags
    assert shown.tags.count("section") == 2
    assert page.count("data:image/jpeg;base64,") == 4, "with its regions and as it is"
    assert "http" not in page, "the page stands alone"
    assert "2 of 3 wrong answers to 3 questions of okvqa/val.jsonl" in shown.text
    assert MEANING[Bucket.DOUBTFUL] in shown.text
    assert "now says" in shown.text
    assert "espresso" in shown.text, "a passage"
    for word in ("tea", "0.667", "subset small, rare", "route full", "encode", "decode"):
        assert word in shown.text
    assert shown.text.count(MARKUP) >= 5


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"index": {"name": "mine"}}, "was run over the index mine, not"),
        ({"components": {"drafter": "abc"}}, "was run with some of its components trained"),
        ({"config": {"budget": {"tokens": 9}}}, "was run with --set budget.tokens=9, not 0"),
        ({"config": {"budget": {"since_dropped": 9}, "preset": "pocket"}}, None),
    ],
)
def test_the_system_must_be_the_run_s(
    made: MakeRun, pipeline: Pipeline, about: dict[str, Any], why: str | None
) -> None:
    same = {"index": [{"name": name} for name in pipeline.library.names], "config": {}}
    run = read_run(made("a", **same | about))
    if why is None:
        check_made_by(run, pipeline, trained=False)
    else:
        with pytest.raises(UserError, match=re.escape(why)):
            check_made_by(run, pipeline, trained=False)


def test_questions_that_the_file_lacks(made: MakeRun, pipeline: Pipeline, photo: Path) -> None:
    run = read_run(made("a", accuracy=0.0, questions=range(3)))
    with pytest.raises(UserError, match="the questions lack 3 of the run's, first 0"):
        render(AnsweredRun(run, {}, Photos(photo.parent), pipeline), 3, 0)


@pytest.fixture
def asked(made: MakeRun, photo: Path, tmp_path: Path, pipeline: Pipeline) -> list[str]:
    """A run over one question about the photo, and the words that ask for its sheet."""
    questions = tmp_path / "q.jsonl"
    row = {"question_id": 0, "image": photo.name, "question": QUESTION, "answer": "steam"}
    questions.write_text(json.dumps(row) + "\n")
    library = pipeline.library.indexes
    index = [{"name": name, "passages": len(one)} for name, one in library.items()]
    config = dataclasses.asdict(pipeline.config)
    sha256 = sha256_of(questions)
    about = {"sha256": sha256, "index": index, "config": config, "task": "pocket-kb"}
    run = made("run", accuracy=0.0, questions=[0], **about)
    words = ["report", "failures", str(run), "--questions", str(questions)]
    return [*words, "--images", str(photo.parent), "--out", str(tmp_path / "sheet.html")]


def test_command(asked: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*asked, "--untrained", "--json"])
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["page"] == str(tmp_path / "sheet.html")
    assert "1 of 1 wrong answers" in (tmp_path / "sheet.html").read_text()


def test_the_table_needs_no_models(asked: list[str]) -> None:
    done = CliRunner().invoke(app, [*asked[:-2], "--json"])
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert (found["page"], found["asked"]) == (None, 1)
    assert {row["bucket"]: row["wrong"] for row in found["buckets"] if row["wrong"]} == {
        "unknown": 1
    }
    shown = CliRunner().invoke(app, asked[:-2])
    assert "unknown" in shown.stdout


def test_command_takes_the_official_files_of_a_task(asked: list[str], tmp_path: Path) -> None:
    (tmp_path / "val.jsonl").write_bytes((tmp_path / "q.jsonl").read_bytes())
    words = [*asked[:3], "--data", str(tmp_path), *asked[5:], "--untrained", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    assert "1 of 1 wrong answers" in (tmp_path / "sheet.html").read_text()


def test_command_refuses_what_does_not_belong_together(asked: list[str], tmp_path: Path) -> None:
    def refused(words: list[str], why: str) -> None:
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, UserError)
        assert why in str(done.exception)

    refused([*asked[:-1], str(tmp_path / "sheet.pdf")], "should end in .html")
    refused([*asked[:3], *asked[5:]], "give either --questions and --images, or --data")
    refused([*asked, "--data", str(tmp_path)], "give either --questions and --images, or --data")
    refused([*asked[:5], *asked[7:]], "--questions needs --images")
    official = [*asked[:3], "--data", str(tmp_path), *asked[5:]]
    refused([*official, "--task", "okvqqa"], "unknown task 'okvqqa': give --task, one of okvqa")
    refused(official, "val.jsonl does not exist")
    (tmp_path / "train.jsonl").write_text((tmp_path / "q.jsonl").read_text() + "\n")
    refused([*official, "--split", "train"], "train.jsonl is not the file of questions that")
    refused(asked, "was run with none of its components trained: add --untrained")
    (tmp_path / "q.jsonl").write_text((tmp_path / "q.jsonl").read_text() + "\n")
    refused(asked, "is not the file of questions that")
