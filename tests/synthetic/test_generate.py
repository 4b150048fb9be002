"""Photos into rows: what is kept, what is rejected, and that a stopped run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from scripted_vlm import Asked, ScriptedVLM, refused
from typer.testing import CliRunner, Result

from skipqa.cli.synthetic import synthetic
from skipqa.errors import UserError
from skipqa.pipeline import Pipeline
from skipqa.prompted.endpoint import Endpoint
from skipqa.synthetic import Generator, SyntheticConfig
from skipqa.synthetic.filters import all_three
from skipqa.synthetic.pairs import GivenPairs, RetrievedPairs, mentions, photos_in
from skipqa.tasks import jsonl
from skipqa.tasks.photos import Photos
from skipqa.types import Passage

app = typer.Typer()
app.command()(synthetic)


def ask(vlm: ScriptedVLM, photos: Path, pairs: Path, *more: str) -> Result:
    words = ["--images", photos, "--pairs", pairs, "--out", photos.parent / "out"]
    words += ["--endpoint", vlm.url, "--model", "some-vlm", *more]
    return CliRunner().invoke(app, list(map(str, words)))


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_rows_are_questions_that_eval_reads(vlm: ScriptedVLM, photos: Path, pairs: Path) -> None:
    done = ask(vlm, photos, pairs, "--json")
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert (found["photos"], found["rows"], found["rejected"]) == (3, 2, {"verbatim": 1})
    # three questions, and two more calls about each of the two that stand in their passage
    assert found["usage"]["total_tokens"] == 7 * 110
    assert "770 tokens" in done.stderr
    out = photos.parent / "out"
    first, second = rows(out, "rows.jsonl")
    assert first == {
        "question_id": "a.png#0",
        "image": "a.png",
        "question": "How is this drink brewed?",
        "answer": "under pressure",
        "gold": ["p1"],
        "type": "synthetic",
        "entity": "espresso",
        "names_entity": False,
        "filters": {"verbatim": 1.0, "grammatical": 0.9, "depicted": 0.8},
        "model": "some-vlm",
    }
    assert second["question_id"] == "b.jpg#0"
    (rejected,) = rows(out, "rejected.jsonl")
    assert (rejected["gold"], rejected["rejected_by"]) == (["p2"], "verbatim")
    examples, bad = jsonl.read(out / "rows.jsonl", Photos(photos))
    assert (len(examples), bad) == (2, [])
    assert examples[0].gold == (frozenset({"p1"}),)
    told = ask(vlm, photos, pairs).stdout
    assert told == f"2 questions about 3 photos in {out}, 1 not verbatim\n"
    assert len(vlm.asked) == 7, "nothing was asked again"


def test_what_is_sent(vlm: ScriptedVLM, photos: Path, pairs: Path) -> None:
    ask(vlm, photos, pairs)
    (asked, *_) = vlm.of("question")
    assert asked.image is not None
    assert asked.image.size == (60, 40)
    assert all(one.image is None for one in vlm.of("grammatical"))
    assert {one.purpose for one in vlm.asked} == {"question", "grammatical", "depicted"}


def test_a_failed_photo_is_tried_again(vlm: ScriptedVLM, photos: Path, pairs: Path) -> None:
    (photos / "b.jpg").write_bytes(b"damaged")
    vlm.replies = [refused(400, "too long")]
    one_by_one = ("--set", "endpoint.concurrency=1")
    done = ask(vlm, photos, pairs, *one_by_one)
    assert done.exit_code == 1
    assert "a.png: too long" in done.stderr
    assert "b.jpg: " in done.stderr
    assert "2 photos failed: the same command tries again" in done.stderr
    assert rows(photos.parent / "out", "rows.jsonl") == []
    (photos / "b.jpg").write_bytes((photos / "a.png").read_bytes())
    done = ask(vlm, photos, pairs)  # at another pace, which changes no row
    assert done.exit_code == 0
    assert len(rows(photos.parent / "out", "rows.jsonl")) == 2


def test_a_refusal_of_everything_ends_it_and_keeps_what_is_done(
    vlm: ScriptedVLM, photos: Path, pairs: Path
) -> None:
    def until_b(asked: Asked) -> Any:
        if len(vlm.of("question")) > 2:
            return refused(401, "no more credit")
        return '{"question": "How is this drink brewed?", "answer": "under pressure"}'

    vlm.script["question"] = until_b
    done = ask(vlm, photos, pairs, "--set", "endpoint.concurrency=1")
    assert isinstance(done.exception, UserError)
    assert "no more credit" in str(done.exception)
    assert [row["image"] for row in rows(photos.parent / "out", "rows.jsonl")] == ["a.png"]


KILLED = """
import os, sys
import skipqa.synthetic.generate as generate
from skipqa.cli.main import app

append = generate.append_jsonl
def append_then_die(path, row):
    append(path, row)
    with path.open("a") as file:
        file.write('{"image": "half a li')
    os._exit(9)
generate.append_jsonl = append_then_die
app(sys.argv[1:])
"""


def test_a_killed_run_goes_on(vlm: ScriptedVLM, photos: Path, pairs: Path) -> None:
    out = photos.parent / "out"
    words = ["data", "synthetic", "--images", photos, "--pairs", pairs, "--out", out]
    words += ["--endpoint", vlm.url, "--model", "some-vlm", "--set", "endpoint.concurrency=1"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *map(str, words)], capture_output=True)
    assert killed.returncode == 9, killed.stderr.decode()
    before = len(vlm.asked)
    assert ask(vlm, photos, pairs).exit_code == 0
    assert len(vlm.asked) - before == 3, "b.jpg alone: c.webp has no pair"
    assert len(rows(out, "rows.jsonl")) == 2


def test_another_run_does_not_mix_with_it(vlm: ScriptedVLM, photos: Path, pairs: Path) -> None:
    ask(vlm, photos, pairs)
    done = ask(vlm, photos, pairs, "--set", "depicted=0.9")
    assert "holds a run with other config" in str(done.exception)


def test_calls_are_made_at_the_same_time(vlm: ScriptedVLM, photos: Path, pairs: Path) -> None:
    vlm.allowed = 1

    def wait(asked: Asked) -> str:
        vlm.too_many.wait(10)
        return '{"question": "What?", "answer": "steam"}'

    vlm.script["question"] = wait
    assert ask(vlm, photos, pairs, "--set", "endpoint.concurrency=2").exit_code == 0
    assert vlm.most_at_once == 2


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"images": "nowhere"}, "no folder of photos at nowhere"),
        ({"pairs": "nowhere.jsonl"}, "nowhere.jsonl does not exist"),
        ({"endpoint": ""}, "--endpoint URL --model NAME"),
    ],
)
def test_bad_commands_are_one_line(
    vlm: ScriptedVLM, photos: Path, pairs: Path, change: dict[str, str], line: str
) -> None:
    given = {"images": photos, "pairs": pairs, "endpoint": vlm.url} | change
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    done = CliRunner().invoke(app, [*words, "--model", "m", "--out", str(photos.parent / "out")])
    assert isinstance(done.exception, UserError)
    assert line in str(done.exception)
    assert not vlm.asked


def test_a_folder_without_photos(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no photos"):
        photos_in(tmp_path)


def test_a_pair_needs_its_passage(pairs: Path) -> None:
    pairs.write_text('{"image": "a.png", "entity": "tea", "passage": "p9"}\n')
    with pytest.raises(UserError, match="no index has the passage 'p9'; give its `text`"):
        GivenPairs(pairs, None)


def test_a_passage_about_something_else_is_no_pair() -> None:
    passage = Passage("p", "Coffee", "Cups of espresso are small.", "made")
    assert mentions(passage, "espresso")
    assert mentions(passage, "cup")
    assert not mentions(passage, "espresso machine")


def test_the_pipeline_finds_pairs(pipeline: Pipeline, photo: Path, vlm: ScriptedVLM) -> None:
    """The real pipeline on a photo of a cup: what it sees, and passages about that."""
    find = RetrievedPairs(pipeline)
    config = SyntheticConfig(pairs=2)
    generator = Generator(Endpoint(vlm.url), "some-vlm", find, all_three(config), config)
    line = generator._photo(photo, "coffee.png")
    assert isinstance(line, dict)
    written = [*line["rows"], *line["rejected"]]
    assert len(written) == 2
    for row in written:
        number = pipeline.library.row_of(row["gold"][0])
        assert number is not None
        assert mentions(pipeline.library.passage(number), row["entity"])
