"""Every row in exactly one fragment, stable names, and only whole outputs count as done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.batch.fragments import cut, plan
from skipqa.batch.outputs import Tally, output_name
from skipqa.batch.sources import Fragment, Source
from skipqa.errors import UserError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = st.from_regex(r"(sub/)?[a-c](-[0-9]{9}){0,2}\.(parquet|jsonl)", fullmatch=True)
FILES = st.dictionaries(NAMES, st.integers(0, 40), min_size=1, max_size=4)


def sources(files: dict[str, int], size: int) -> list[Source]:
    return [
        Source(Path("/in", name), name, rows, 0, "", tuple(range(0, rows, size)))
        for name, rows in files.items()
    ]


@given(FILES, st.integers(1, 12), st.none() | st.integers(1, 60))
def test_every_row_is_in_exactly_one_fragment(
    files: dict[str, int], size: int, limit: int | None
) -> None:
    fragments = cut(sources(files, size), size, limit)
    cut_rows = [(f.file, row) for f in fragments for row in range(f.start, f.stop)]
    rows = [(str(Path("/in", name)), row) for name, n in files.items() for row in range(n)]
    assert cut_rows == rows[:limit]
    assert all(1 <= f.rows <= size for f in fragments)
    assert len({f.output for f in fragments}) == len(fragments)


@given(FILES, st.integers(1, 12))
def test_names_depend_on_the_file_and_the_rows_alone(files: dict[str, int], size: int) -> None:
    together = {f.output for f in cut(sources(files, size), size)}
    alone = [cut(sources({name: rows}, size), size) for name, rows in files.items()]
    assert together == {f.output for fragments in alone for f in fragments}


def test_a_name_is_spelled_like_this() -> None:
    assert output_name("photos/a.parquet", 0, 64) == "photos/a-000000000-000000064.parquet"
    assert output_name("a.csv", 64, 70) == "a-000000064-000000070.jsonl"
    assert str(Fragment("a.parquet", 64, 128, "")) == "rows 64 to 127 of a.parquet"


def test_two_files_never_share_an_output() -> None:
    with pytest.raises(UserError, match=r"a\.csv and /in/a\.jsonl would have the same outputs"):
        cut(sources({"a.jsonl": 3, "a.csv": 3}, 4), 4)


def row_of(error: str | None = None) -> dict[str, Any]:
    return {"route": None if error else "draft", "error": error}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        schema = arrow.schema(dict.fromkeys(("route", "error"), arrow.string()))
        parquet.write_table(arrow.Table.from_pylist(rows, schema), path)
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@given(done=st.sets(st.integers(0, 4)), damaged=st.sets(st.integers(0, 4)), keep=st.floats(0, 0.99))
def test_only_whole_outputs_are_skipped(
    tmp_path_factory: pytest.TempPathFactory,
    suffix: str,
    done: set[int],
    damaged: set[int],
    keep: float,
) -> None:
    out = tmp_path_factory.mktemp("out")
    fragments = cut(sources({f"a{suffix}": 13}, 3), 3)
    assert len(fragments) == 5
    for number in done:
        fragment = fragments[number]
        write(out / fragment.output, [row_of() for _ in range(fragment.rows)])
        if number in damaged:  # by a power cut: a rename that outlived the data
            whole = (out / fragment.output).read_bytes()
            (out / fragment.output).write_bytes(whole[: int(len(whole) * keep)])
    found = plan(fragments, out)
    skipped = [fragments[n] for n in sorted(done - damaged)]
    rows_done = sum(f.rows for f in skipped)
    assert found.left == [f for f in fragments if f not in skipped]
    assert found.before == Tally(rows_done, 0, rows_done)
    assert found.questions_left == 13 - rows_done
    assert found.num_done == len(skipped)


def test_an_output_with_a_row_too_few_is_not_whole(tmp_path: Path) -> None:
    fragments = cut(sources({"a.jsonl": 6}, 3), 3)
    write(tmp_path / fragments[0].output, [row_of(), row_of("bad\u2028image"), row_of()])
    write(tmp_path / fragments[1].output, [row_of(), row_of()])
    found = plan(fragments, tmp_path)
    assert found.left == [fragments[1]]
    assert found.before == Tally(3, 1, 2)
