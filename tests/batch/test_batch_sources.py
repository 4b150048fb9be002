"""Files of questions: every row is read back from any fragment, bad rows are rows, bad files one
line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.batch.fragments import cut
from skipqa.batch.sources import Row, find_sources, read_rows
from skipqa.errors import UserError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def rows_of(path: Path, size: int) -> dict[str, list[Row]]:
    """The rows of all fragments, by the name of their file."""
    sources = find_sources(path, size, leave_out=path / "out")
    read: dict[str, list[Row]] = {source.name: [] for source in sources}
    for fragment in cut(sources, size):
        read[Path(fragment.file).name].extend(read_rows(fragment))
    assert {source.name: source.rows for source in sources} == {n: len(r) for n, r in read.items()}
    assert all(source.bytes == source.path.stat().st_size for source in sources)
    return read


@given(
    st.lists(st.text('a\u2028é,\n \\"', max_size=6), min_size=1, max_size=20),
    st.integers(1, 6),
    st.integers(1, 7),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_fragments_read_back_every_row(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], size: int, group: int, end: str
) -> None:
    folder = tmp_path_factory.mktemp("in")
    rows: list[dict[str, Any]] = [{"image": "a.png", "question": text} for text in texts]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (folder / "a.jsonl").write_bytes(end.join(lines).encode())
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "b.parquet", row_group_size=group)
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, ["image", "question"], lineterminator=end)
    writer.writeheader()
    writer.writerows(rows)
    (folder / "c.csv").write_bytes(b"\xef\xbb\xbf" + table.getvalue().encode())
    assert rows_of(folder, size) == {"a.jsonl": rows, "b.parquet": rows, "c.csv": rows}


def test_outputs_inside_the_input_are_no_input(tmp_path: Path) -> None:
    for name in ("a.jsonl", "sub/b.jsonl", "out/a-0-1.jsonl", "_cache/c.jsonl", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"image": "a.png", "question": "What?"}\n')
    found = find_sources(tmp_path, 4, leave_out=tmp_path / "out")
    assert [source.name for source in found] == ["a.jsonl", "sub/b.jsonl"]
    with pytest.raises(UserError, match="both the input and the output"):
        find_sources(tmp_path, 4, leave_out=tmp_path)


def test_a_line_that_cannot_be_read_is_one_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"question": "What?"}\n{"quest\n\xff\xfe\n[]\n')
    rows = rows_of(tmp_path / "a.jsonl", 3)["a.jsonl"]
    assert rows[0] == {"question": "What?"}
    assert [str(row) for row in rows[1:]] == [
        "not JSON, cut off at character 8",
        "not UTF-8 text",
        "expected an object, found a list",
    ]
    (tmp_path / "b.csv").write_bytes(b"image,question\na.png,What?\nb.png\n\xff.png,What?\n\n")
    rows = rows_of(tmp_path / "b.csv", 2)["b.csv"]
    assert rows[0] == {"image": "a.png", "question": "What?"}
    assert [str(row) for row in rows[1:]] == ["1 fields, but the header has 2", "not UTF-8 text"]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    def refused(path: Path, why: str) -> None:
        with pytest.raises(UserError, match=why):
            find_sources(path, 4, leave_out=tmp_path / "out")

    def table(**columns: list[Any]) -> Path:
        parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    def text(name: str, content: str) -> Path:
        (tmp_path / name).write_text(content)
        return tmp_path / name

    refused(tmp_path / "missing.parquet", "does not exist")
    refused(tmp_path, "holds no questions")
    refused(text("a.tsv", "image\tquestion\n"), r"neither a \.parquet nor a \.jsonl nor a \.csv")
    refused(text("a.parquet", "no parquet at all"), "not a Parquet file")
    refused(table(image=["a.png"]), "lacks the column 'question'; it has image")
    refused(text("a.csv", "image,question\n"), "holds no questions")
    refused(text("a.csv", ""), "lacks the column 'image'")
    refused(text("a.csv", "image,question,x,x\na,b,c,d\n"), "column 'x' more than once")
    refused(text("a.csv", 'image,question\na.png,"What\n'), "line 2: not CSV: unexpected end")
