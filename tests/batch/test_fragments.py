"""Every row in exactly one fragment, stable names, and only whole outputs count as done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.batch.fragments import (
    Fragment,
    Source,
    Tally,
    cut,
    find_sources,
    output_name,
    plan,
    read_rows,
)
from skipqa.errors import UserError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = st.from_regex(r"(sub/)?[a-c](-[0-9]{9}){0,2}\.(parquet|jsonl)", fullmatch=True)
FILES = st.dictionaries(NAMES, st.integers(0, 40), min_size=1, max_size=4)


def sources(files: dict[str, int], size: int) -> list[Source]:
    return [
        Source(Path("/in", name), name, rows, "", tuple(range(0, rows, size)))
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


def row_of(number: int, error: str | None = None) -> dict[str, Any]:
    return {"id": number, "path": None if error else "draft", "error": error}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        schema = arrow.schema(dict.fromkeys(("path", "error"), arrow.string()))
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
        rows = [row_of(n) for n in range(fragment.rows)]
        write(out / fragment.output, rows)
        if number in damaged:  # by a power cut: a rename that outlived the data
            whole = (out / fragment.output).read_bytes()
            (out / fragment.output).write_bytes(whole[: int(len(whole) * keep)])
    found = plan(fragments, out)
    skipped = [fragments[n] for n in sorted(done - damaged)]
    rows_done = sum(f.rows for f in skipped)
    assert found.left == [f for f in fragments if f not in skipped]
    assert found.before == Tally(rows_done, 0, rows_done)


def test_an_output_with_a_row_too_few_is_not_whole(tmp_path: Path) -> None:
    fragments = cut(sources({"a.jsonl": 6}, 3), 3)
    write(tmp_path / fragments[0].output, [row_of(0), row_of(1, "bad\u2028image"), row_of(2)])
    write(tmp_path / fragments[1].output, [row_of(3), row_of(4)])
    found = plan(fragments, tmp_path)
    assert found.left == [fragments[1]]
    assert found.before == Tally(3, 1, 2)


@given(
    st.lists(st.text('a\u2028é \\"', max_size=5), min_size=1, max_size=20),
    st.integers(1, 6),
    st.integers(1, 7),
    st.booleans(),
)
def test_fragments_read_back_every_row(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    size: int,
    group: int,
    blank: bool,
) -> None:
    folder = tmp_path_factory.mktemp("in")
    rows = [{"image": "a.png", "question": text} for text in texts]
    lines = [json.dumps(row, ensure_ascii=False) + ("\n\n" if blank else "\n") for row in rows]
    (folder / "a.jsonl").write_text("".join(lines).rstrip("\n"), encoding="utf-8")
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "b.parquet", row_group_size=group)
    found = find_sources(folder, size, leave_out=folder / "out")
    assert [(s.name, s.rows) for s in found] == [("a.jsonl", len(rows)), ("b.parquet", len(rows))]
    read: dict[str, list[tuple[int, Any]]] = {}
    for fragment in cut(found, size):
        read.setdefault(Path(fragment.file).name, []).extend(read_rows(fragment))
    assert read == {"a.jsonl": list(enumerate(rows)), "b.parquet": list(enumerate(rows))}


def test_outputs_inside_the_input_are_no_input(tmp_path: Path) -> None:
    for name in ("a.jsonl", "sub/b.jsonl", "out/a-0-1.jsonl", "_cache/c.jsonl", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"image": "a.png", "question": "What?"}\n')
    found = find_sources(tmp_path, 4, leave_out=tmp_path / "out")
    assert [source.name for source in found] == ["a.jsonl", "sub/b.jsonl"]
    with pytest.raises(UserError, match="both the input and the output"):
        find_sources(tmp_path, 4, leave_out=tmp_path)


def test_a_line_that_is_no_json_is_one_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"question": "What?"}\n{"quest\n\xff\xfe\n[]\n')
    (fragment,) = cut(find_sources(tmp_path / "a.jsonl", 8, leave_out=tmp_path / "out"), 8)
    rows = [row for _, row in read_rows(fragment)]
    assert rows[0] == {"question": "What?"}
    assert [type(row) for row in rows[1:]] == [UserError, UserError, list]


def bad_parquet(tmp_path: Path, columns: dict[str, list[Any]]) -> Path:
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    def refused(path: Path, why: str) -> None:
        with pytest.raises(UserError, match=why):
            find_sources(path, 4, leave_out=tmp_path / "out")

    refused(tmp_path / "missing.parquet", "does not exist")
    refused(tmp_path, "holds no questions")
    (tmp_path / "a.csv").write_text("image,question\n")
    refused(tmp_path / "a.csv", r"neither a \.parquet nor a \.jsonl")
    (tmp_path / "a.parquet").write_text("no parquet at all")
    refused(tmp_path / "a.parquet", "not a Parquet file")
    refused(bad_parquet(tmp_path, {"image": ["a.png"]}), "lacks the column 'question'")
    given = {"id": [0.5], "image": ["a.png"], "question": ["What?"]}
    refused(bad_parquet(tmp_path, given), "strings or integers, found double")


def test_a_fragment_names_its_rows() -> None:
    assert str(Fragment("a.parquet", 64, 128, "")) == "rows 64 to 127 of a.parquet"
