"""Outputs: all of the input comes through, whole or not at all, on a full disk and after a kill."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skipqa.batch.fragments import cut, plan
from skipqa.batch.outputs import NOT_ANSWERED, carried_names, write
from skipqa.batch.sources import Fragment, find_sources

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ANSWERED = {**NOT_ANSWERED, "answer": "a cup", "route": "draft"}
FAILED = {**NOT_ANSWERED, "error": "no such file"}


def fragments_of(path: Path, size: int) -> list[Fragment]:
    return cut(find_sources(path, size, leave_out=path / "out"), size)


def read(out: Path, fragments: Sequence[Fragment]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in (out / fragment.output for fragment in fragments):
        if path.suffix == ".parquet":
            rows += parquet.read_table(path).to_pylist()
        else:
            rows += map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return rows


def test_parquet_columns_come_through_with_their_types(tmp_path: Path) -> None:
    stored = [{"bytes": b"\x89PNG", "path": f"{number}.png"} for number in range(5)]
    given = arrow.table(
        {
            "id": arrow.array([3, 1, None, 7, 9], arrow.int16()),
            "image": stored,
            "answer": ["right"] * 5,
            "question": ["What?"] * 5,
            "more": [[1.5], [], None, [2.0], [3.0]],
        }
    )
    parquet.write_table(given, tmp_path / "a.parquet", row_group_size=2)
    fragments = fragments_of(tmp_path / "a.parquet", 3)
    for fragment in fragments:
        write(tmp_path / fragment.output, fragment, [ANSWERED, FAILED, FAILED][: fragment.rows])
    tables = [parquet.read_table(tmp_path / fragment.output) for fragment in fragments]
    table = arrow.concat_tables(tables)
    assert table.column_names[:5] == ["id", "image", "input_answer", "question", "more"]
    assert table.column("image").to_pylist() == [row["path"] for row in stored]
    for name in ("id", "question", "more"):
        assert table.schema.field(name).type == given.schema.field(name).type
        assert table.column(name).to_pylist() == given.column(name).to_pylist()
    assert table.column("input_answer").to_pylist() == ["right"] * 5
    assert table.column("answer").to_pylist() == ["a cup", None, None, "a cup", None]
    assert plan(fragments, tmp_path).left == []


@pytest.mark.parametrize(
    ("images", "kept"), [([b"\x89PNG"] * 2, None), (["a.png", None], ["a.png", None])]
)
def test_images_in_the_table_are_not_copied(
    tmp_path: Path, images: list[Any], kept: list[Any] | None
) -> None:
    asked = {"image": images, "question": ["What?"] * 2}
    parquet.write_table(arrow.table(asked), tmp_path / "a.parquet")
    (fragment,) = fragments_of(tmp_path / "a.parquet", 2)
    write(tmp_path / fragment.output, fragment, [ANSWERED, FAILED])
    columns = parquet.read_table(tmp_path / fragment.output).to_pydict()
    assert columns["id"] == [0, 1]
    assert columns.get("image") == kept


def test_lines_come_through(tmp_path: Path) -> None:
    lines = [
        '{"id": "ü", "image": "a.png", "question": "What?", "error": 5, "half": "\\ud800"}',
        "{cut off",
        '{"image": "a.png", "question": "What?", "id": null}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "b.csv").write_text("question,image,route\nWhat?,a.png,66\n")
    fragments = fragments_of(tmp_path, 2)
    for fragment in fragments:
        write(tmp_path / fragment.output, fragment, [ANSWERED, FAILED][: fragment.rows])
    asked = {"image": "a.png", "question": "What?"}
    assert read(tmp_path, fragments) == [
        {"id": "ü", **asked, "input_error": 5, "half": "\ud800", **ANSWERED},
        {"id": 1, **FAILED},
        {"id": None, **asked, **ANSWERED},
        {"id": 0, **asked, "input_route": "66", **ANSWERED},
    ]


def test_names_that_are_ours_step_aside() -> None:
    assert carried_names(["id", "answer", "input_answer", "x"]) == {
        "id": "id",
        "answer": "input_input_answer",
        "input_answer": "input_answer",
        "x": "x",
    }


@contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """Every write of this process beyond `size` bytes of a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_full_disk_leaves_what_was_finished_and_no_halves(tmp_path: Path, name: str) -> None:
    rows = [{"image": "a.png", "question": f"{number}" * 9_000} for number in range(4)]
    if name == "a.parquet":
        table = arrow.Table.from_pylist(rows)
        parquet.write_table(table, tmp_path / name, compression="none", use_dictionary=False)
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = fragments_of(tmp_path / name, 2)
    out = tmp_path / "out"
    write(out / first.output, first, [ANSWERED] * 2)
    with pytest.raises(OSError, match="File too large") as raised, no_room_beyond(64):
        write(out / second.output, second, [ANSWERED] * 2)
    assert raised.value.errno == errno.EFBIG
    assert [path.name for path in out.iterdir()] == [first.output]
    assert plan([first, second], out).left == [second]


SIZE = 200
KILLED = f"""
import sys
from itertools import cycle
from pathlib import Path
from skipqa.batch.fragments import cut
from skipqa.batch.outputs import NOT_ANSWERED, write
from skipqa.batch.sources import find_sources
given, out = Path(sys.argv[1]), Path(sys.argv[2])
for fragment in cycle(cut(find_sources(given, {SIZE}, leave_out=out), {SIZE})):
    write(out / fragment.output, fragment, [NOT_ANSWERED] * fragment.rows)
"""


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_kill_leaves_nothing_but_whole_outputs(tmp_path: Path, suffix: str) -> None:
    """SIGKILL while outputs are written one after the other, again and again."""
    given, out = tmp_path / f"a{suffix}", tmp_path / "out"
    rows = [{"id": n, "image": "a.png", "question": "What?" * 200} for n in range(10 * SIZE)]
    if suffix == ".parquet":
        parquet.write_table(arrow.Table.from_pylist(rows), given)
    else:
        given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(given), str(out)])
    try:
        ends = time.monotonic() + 60
        while len(list(out.glob(f"*{suffix}"))) < 3:
            assert writer.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.002)
    finally:
        writer.kill()
        writer.wait()
    fragments = fragments_of(given, SIZE)
    left = plan(fragments, out).left
    done = [fragment for fragment in fragments if fragment not in left]
    assert len(done) >= 3
    assert {path.name for path in out.glob(f"*{suffix}")} == {f.output for f in done}
    assert [row["id"] for row in read(out, done)] == list(range(len(done) * SIZE))
