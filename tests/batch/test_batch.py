"""`skipqa batch` with a real Ray and real weights: the answers of the pipeline, each row once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("ray.data")

import pyarrow as arrow
from batch_runs import check_same, draw_images, rows_of
from pyarrow import dataset, parquet

from skipqa.batch.answering import Answering, Job, answer_fragment, answer_row, check_machine
from skipqa.batch.fragments import cut, plan
from skipqa.batch.outputs import RUN, Tally
from skipqa.batch.run import absolute, claim_folder, connected, head_of_cluster
from skipqa.batch.sources import Fragment, Row, find_sources
from skipqa.cli.batch import batch, duration
from skipqa.errors import UserError
from skipqa.pipeline import Pipeline

FRAGMENT = Fragment("a.jsonl", 0, 2, "a-000000000-000000002.jsonl")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """One Ray for the runs of this process, next to the trace of a cluster that died."""
    short = Path(tempfile.mkdtemp(prefix="r"))  # Ray's sockets take at most 107 characters
    (short / "ray").mkdir()
    (short / "ray/ray_current_cluster").write_text("127.0.0.1:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(short))
        patch.delenv("RAY_ADDRESS", raising=False)
        with connected(2) as cores:
            assert cores.all >= 2
            yield
    shutil.rmtree(short, ignore_errors=True)


def answer(*given: object) -> dict[str, Any]:
    """The summary of a run in this process."""
    app = typer.Typer()
    app.command()(batch)
    done = CliRunner().invoke(app, [*map(str, given), "--untrained", "--workers", "1", "--json"])
    if done.exception is not None:
        raise done.exception
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.usefixtures("ray_here")
def test_a_folder_is_answered_as_one_by_one(
    pipeline: Pipeline, images: Path, photo: Path, tmp_path: Path
) -> None:
    given, out = tmp_path / "in", tmp_path / "out"
    (given / "sub").mkdir(parents=True)
    stored = [  # the last row is beyond the limit; as Hugging Face datasets store images
        {"bytes": (images / "disc.png").read_bytes(), "path": None},
        {"bytes": None, "path": str(photo)},
        {"bytes": (images / "broken.png").read_bytes(), "path": None},
        {"bytes": None, "path": None},
    ]
    questions = ["What color is it?", "How is this drink brewed?", "What is this?", "What?"]
    ids = ["q0", "q1", "q2", "q3"]
    asked = {"id": ids, "image": stored, "question": questions, "answers": [[7]] * 4}
    parquet.write_table(arrow.table(asked), given / "sub/a.parquet", row_group_size=2)
    lines = [
        json.dumps({"id": 7, "image": "box.png", "question": "What is this?", "more": [1]}),
        "{cut off",
    ]
    (given / "b.jsonl").write_text("\n".join(lines))
    (given / "c.csv").write_text("question,image\nWhat is this?,missing.png\n")

    options = ("--images", images, "--fragment", 2, "--limit", 6)
    summary = answer(given, out, *options)
    assert summary["questions"] == summary["answered_now"] == 6
    assert (summary["fragments"], summary["workers"], summary["errors"]) == (4, 1, 3)
    rows = rows_of(out)
    assert [row["id"] for row in rows] == [7, 1, 0, "q0", "q1", "q2"]
    check_same(rows[0], pipeline, images / "box.png", "What is this?")
    check_same(rows[3], pipeline, images / "disc.png", questions[0])
    check_same(rows[4], pipeline, photo, questions[1])
    for bad, why in ((1, "not JSON"), (2, "no such file"), (5, "damaged or cut short")):
        assert rows[bad]["answer"] is None
        assert why in rows[bad]["error"]
        assert "\n" not in rows[bad]["error"]
    assert rows[0]["more"] == [1]
    assert [row["answers"] for row in rows[3:]] == [[7]] * 3
    table = dataset.dataset(out / "sub").to_table()  # the whole folder reads as one
    assert table.num_rows == 3

    again = answer(given, out, *options)  # starts no worker
    assert (again["answered_now"], again["workers"], again["fragments_done_before"]) == (0, 0, 4)
    same = ("questions", "errors", "drafted")
    assert [again[name] for name in same] == [summary[name] for name in same]


def test_a_folder_holds_one_run(pipeline: Pipeline, images: Path, tmp_path: Path) -> None:
    asked = tmp_path / "a.jsonl"
    asked.write_text('{"image": "disc.png", "question": "What?"}\n')
    sources = find_sources(asked, 2, leave_out=tmp_path / "out")
    claim_folder(tmp_path / "out", sources, pipeline, {"fragment": 2})
    claim_folder(tmp_path / "out", sources, pipeline, {"fragment": 2})
    other = pipeline.with_config(draft={"threshold": 0.0})
    with pytest.raises(UserError, match="holds a run with other config, fragment:"):
        claim_folder(tmp_path / "out", sources, other, {"fragment": 3})
    asked.write_text('{"image": "disc.png", "question": "Why?"}\n')
    changed = find_sources(asked, 2, leave_out=tmp_path / "out")
    with pytest.raises(UserError, match="holds a run with other input:"):
        claim_folder(tmp_path / "out", changed, pipeline, {"fragment": 2})
    with pytest.raises(UserError, match="files of something else"):
        claim_folder(images, sources, pipeline, {"fragment": 2})


def test_bad_rows_are_rows(pipeline: Pipeline, images: Path) -> None:
    def error(row: Row) -> str:
        result = answer_row(pipeline, images, row)
        assert result["answer"] is None
        return str(result["error"])

    def of(image: Any, question: Any = "What?") -> str:
        return error({"image": image, "question": question})

    assert error(UserError("not JSON")) == "not JSON"
    assert "no such file" in of("missing.png")
    assert "cut short" in of("broken.png")
    assert "is a folder" in of(".")
    assert "not an image" in of(b"no image")
    assert "null byte" in of("a\0b")
    for url in ("https://example.org/a.png", "file:///a.png", "data:image/png;base64,AA"):
        assert "is a URL, and none is fetched" in of(url)
    for absent in (None, "", 5, {"bytes": None, "path": None}, {"bytes": "text"}):
        assert of(absent) == "the image is missing, or neither a path nor bytes"
    for empty in (None, "", " \n", 5):
        assert of("disc.png", empty) == "the question is missing or no text"


def test_a_file_that_changes_ends_its_fragment(
    pipeline: Pipeline, images: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"image": ""}\n' * 3)
    (fragment,) = cut(find_sources(tmp_path / "a.jsonl", 4, leave_out=tmp_path / "out"), 4)
    job = Job({}, images, tmp_path / "out")
    assert answer_fragment(pipeline, job, fragment) == Tally(3, 3, 0)
    assert plan([fragment], job.out).left == []
    (tmp_path / "a.jsonl").write_text('{"image": ""}\n' * 2)
    with pytest.raises(UserError, match="has changed since the run began"):
        answer_fragment(pipeline, job, fragment)


def test_a_machine_that_does_not_fit_is_named(tmp_path: Path) -> None:
    job = Job({}, tmp_path, tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path} is not to be seen"):
        check_machine(job)
    (tmp_path / RUN).touch()
    check_machine(job)
    with pytest.raises(UserError, match=r"but the run was started by 0\.0\.1: install the same"):
        check_machine(replace(job, version="0.0.1"))


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / RUN).touch()
    worker = Answering(Job({"index": ["nowhere"]}, tmp_path, tmp_path))
    counts = worker({name: np.array([value]) for name, value in asdict(FRAGMENT).items()})
    assert (counts["questions"], counts["output"]) == ([0], [FRAGMENT.output])
    assert counts["failed"][0].startswith("no index at nowhere: build one with")


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path\n"
        "from skipqa.cli.batch import batch\n"
        "from skipqa.errors import UserError\n"
        "try: batch(Path('a.jsonl'), Path('out'))\n"
        "except UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "skipqa batch needs an optional dependency: pip install 'skipqa[ray]'" in done.stdout


def test_a_ray_client_is_refused() -> None:
    with pytest.raises(UserError, match="does not work through a Ray client"):
        head_of_cluster("ray://127.0.0.1:10001")


def test_an_index_is_named_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("default") == "default"
    assert absolute("notes") == f"local:{tmp_path / 'notes'}"
    assert absolute(f"local:{tmp_path}/notes?a=b") == f"local:{tmp_path}/notes?a=b"


def test_durations_are_rounded() -> None:
    assert [duration(s) for s in (0.4, 89, 600, 9000)] == ["0 s", "89 s", "10 min", "2.5 h"]
