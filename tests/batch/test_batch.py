"""`skipqa batch` with real Ray workers: the answers of the pipeline, each input once, after a kill
too."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image, ImageDraw
from typer.testing import CliRunner

pytest.importorskip("ray.data")

import pyarrow as arrow
from pyarrow import dataset, parquet

from skipqa.batch.run import absolute, connected
from skipqa.cli.batch import batch
from skipqa.errors import UserError
from skipqa.pipeline import Pipeline

QUESTIONS = ("What is this?", "What color is it?")
SCRIPT = "import typer; from skipqa.cli.batch import batch; typer.run(batch)"
OPTIONS = ("--untrained", "--workers", "2")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name, shape in (("disc.png", "ellipse"), ("box.png", "rectangle")):
        drawn = Image.new("RGB", (160, 120), (30, 90, 160))
        getattr(ImageDraw.Draw(drawn), shape)((40, 20, 120, 100), fill=(230, 180, 40))
        drawn.save(folder / name)
    (folder / "broken.png").write_bytes((folder / "disc.png").read_bytes()[:60])
    return folder


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """One Ray for the runs of this process."""
    with connected(2) as cores:
        assert cores >= 2
        yield


def answer(*given: object) -> dict[str, Any]:
    """The summary of a run in this process."""
    app = typer.Typer()
    app.command()(batch)
    done = CliRunner().invoke(app, [*map(str, given), *OPTIONS, "--json"])
    if done.exception is not None:
        raise done.exception
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def rows_of(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(out.rglob("*-*-*.*")):
        if path.suffix == ".parquet":
            rows += parquet.read_table(path).to_pylist()
        else:
            rows += map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return rows


def same(row: dict[str, Any], pipeline: Pipeline, image: Path, question: str) -> bool:
    one = pipeline.answer(image, question)
    assert row["answer"] == one.text
    assert row["path"] == one.route
    assert row["grounded"] == one.grounded
    assert row["confidence"] == pytest.approx(one.confidence, abs=1e-3)
    assert row["gflops"] == pytest.approx(one.trace.flops / 1e9, rel=1e-3)
    assert row["seconds"] > 0
    passages = [(e.id, e.title, pytest.approx(e.score, abs=1e-3)) for e in one.evidence]
    return [(p["id"], p["title"], p["score"]) for p in row["passages"]] == passages


@pytest.mark.usefixtures("ray_here")
def test_a_folder_of_parquet_is_answered_as_one_by_one(
    pipeline: Pipeline, images: Path, photo: Path, tmp_path: Path
) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    disc, box = images / "disc.png", images / "box.png"
    stored = [  # as Hugging Face datasets store images
        {"bytes": disc.read_bytes(), "path": None},
        {"bytes": None, "path": "box.png"},
        {"bytes": None, "path": str(photo)},
        {"bytes": (images / "broken.png").read_bytes(), "path": None},
    ]
    ids = [f"q{number}" for number in range(8)]
    asked = {"id": ids, "image": stored * 2, "question": [QUESTIONS[n // 4] for n in range(8)]}
    parquet.write_table(arrow.table(asked), tmp_path / "in/a.parquet", row_group_size=3)
    counted = {"image": [box.read_bytes(), b"", None], "question": ["What is this?", "What?", "A?"]}
    parquet.write_table(arrow.table(counted), tmp_path / "in/sub/b.parquet")

    out = tmp_path / "out"
    summary = answer(tmp_path / "in", out, "--images", images, "--fragment", 3)
    assert summary["questions"] == summary["answered_now"] == 11
    assert (summary["fragments"], summary["workers"], summary["errors"]) == (4, 2, 4)
    rows = rows_of(out)
    assert [row["id"] for row in rows] == [*ids, 0, 1, 2]
    shown = [disc, box, photo, None] * 2 + [box, None, None]
    questions = [*asked["question"], *counted["question"]]
    for row, image, question in zip(rows, shown, questions, strict=True):
        if image is None:
            assert row["answer"] is None
            assert row["passages"] == []
            assert row["error"]
            assert "\n" not in row["error"]
        else:
            assert row["error"] is None
            assert same(row, pipeline, image, question)
    # the whole folder reads as one table
    assert dataset.dataset(out / "sub").to_table().num_rows == 3
    assert parquet.read_schema(out / "a-000000000-000000003.parquet").field("id").type == "string"

    again = answer(tmp_path / "in", out, "--images", images, "--fragment", 3)
    assert (again["answered_now"], again["workers"]) == (0, 0)
    assert [again[name] for name in ("questions", "errors", "drafted")] == [
        summary[name] for name in ("questions", "errors", "drafted")
    ]
    others: dict[str, tuple[object, ...]] = {
        "fragment": ("--fragment", 4),
        "limit": ("--fragment", 3, "--limit", 5),
        "config": ("--fragment", 3, "--set", "draft.threshold=0"),
    }
    for name, options in others.items():
        with pytest.raises(UserError, match=f"holds a run with other {name}:"):
            answer(tmp_path / "in", out, "--images", images, *options)


@pytest.mark.usefixtures("ray_here")
def test_json_lines_in_and_out(pipeline: Pipeline, images: Path, tmp_path: Path) -> None:
    lines = [
        json.dumps({"id": 7, "image": "disc.png", "question": "What is this?", "more": [1]}),
        "{cut off",
        json.dumps({"image": "missing.png", "question": "What is this?"}),
        json.dumps({"id": "ü", "image": str(images / "box.png"), "question": "What is this?"}),
        json.dumps({"id": "beyond the limit", "image": "box.png", "question": "What is this?"}),
    ]
    (images / "asked.jsonl").write_text("\n".join(lines), encoding="utf-8")
    summary = answer(images / "asked.jsonl", tmp_path / "out", "--fragment", 2, "--limit", 4)
    assert (summary["questions"], summary["errors"], summary["fragments"]) == (4, 2, 2)
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == [
        "_run.json",
        "asked-000000000-000000002.jsonl",
        "asked-000000002-000000004.jsonl",
    ]
    rows = rows_of(tmp_path / "out")
    assert [row["id"] for row in rows] == [7, 1, 2, "ü"]
    assert same(rows[0], pipeline, images / "disc.png", "What is this?")
    assert same(rows[3], pipeline, images / "box.png", "What is this?")
    assert "not JSON" in rows[1]["error"]
    assert "no such file" in rows[2]["error"]


@pytest.mark.usefixtures("ray_here", "home")
def test_a_kill_and_a_second_run_answer_every_question_once(images: Path, tmp_path: Path) -> None:
    ids = list(range(100, 112))
    asked = {"id": ids, "image": ["disc.png"] * 12, "question": ["Where does this come from?"] * 12}
    parquet.write_table(arrow.table(asked), tmp_path / "asked.parquet")
    out, log = tmp_path / "out", tmp_path / "log"
    given = (str(tmp_path / "asked.parquet"), str(out), "--images", str(images), "--fragment", "1")
    with log.open("w") as told:
        first = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *given, *OPTIONS], stdout=told, stderr=told
        )
    try:
        ends = time.monotonic() + 120
        while not (done := {path: path.stat().st_ino for path in out.glob("*.parquet")}):
            assert first.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.02)
    finally:
        first.kill()  # SIGKILL: nothing can be tidied up
        first.wait()
    assert len(done) < 12
    said = log.read_text()
    assert "12 questions in 1 file: 12 fragments, 0 done, 2 workers" in said
    assert "ray" not in said.lower()  # it was started there, silently

    (out / "asked-000000000-000000001.parquet.1-abcdef01.partial").touch()  # as a kill may leave
    summary = answer(*given)
    assert summary["questions"] == 12
    assert summary["fragments_done_before"] >= len(done)
    assert summary["answered_now"] == 12 - summary["fragments_done_before"] > 0
    assert sorted(row["id"] for row in rows_of(out)) == ids
    assert {path: path.stat().st_ino for path in done} == done  # what was done was not done again
    assert not list(out.glob("*.partial"))


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from pathlib import Path\n"
        "from skipqa.cli.batch import batch\n"
        "from skipqa.errors import UserError\n"
        "try: batch(Path('a.jsonl'), Path('out'))\n"
        "except UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "pip install 'skipqa[ray]'" in done.stdout


def test_a_folder_of_something_else_is_refused(home: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"image": "disc.png", "question": "What?"}\n')
    with pytest.raises(UserError, match="files of something else"):
        answer(tmp_path / "a.jsonl", images)


def test_an_index_is_named_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("default") == "default"
    assert absolute("notes") == f"local:{tmp_path / 'notes'}"
    assert absolute(f"local:{tmp_path}/notes?a=b") == f"local:{tmp_path}/notes?a=b"
