"""The one reader of JSON, JSON Lines and CSV files, with one clear line when they are bad.

A path enters, plain values leave; what the values mean is the caller's business. Everything
wrong with a file is a `UserError` that names the file, the row and the field. Files are read
whole; what streams a large corpus hands its lines to `parse_json`. Also here: writing a file whole
or not at all (`atomic`), or line by line (`append_jsonl`), and the file that says what a folder
holds (`claim`).
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from skipqa.errors import UserError

Types = type | tuple[type, ...]
Fields = Mapping[str, Types]


def read_text(path: Path, newline: str | None = None) -> str:
    try:  # a byte order mark is no part of the text
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            text = file.read()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if not text.strip():
        raise UserError(f"{path} is empty")
    return text


def is_text(value: str) -> bool:
    """Without halves of characters, which no tokenizer takes and no file: JSON may hold them, and
    names of files and arguments have them for bytes that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(path: Path) -> Any:
    return _parse(read_text(path), str(path))


def read_json_with_repeats(path: Path) -> tuple[Any, tuple[str, ...]]:
    """As `read_json`, and the keys that the outermost object has more than once."""
    repeats: tuple[str, ...] = ()

    def count(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeats  # objects close from the inside out, so the outermost comes last
        repeats = tuple(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        return dict(pairs)

    value = _parse(read_text(path), str(path), count)
    return value, repeats if isinstance(value, dict) else ()


def read_jsonl(path: Path) -> list[Any]:
    """One value per line; blank lines are skipped."""
    lines = enumerate(read_text(path).split("\n"), 1)
    return [_parse(line, f"{path} line {number}") for number, line in lines if line.strip()]


def read_csv(path: Path, columns: Iterable[str]) -> list[dict[str, str]]:
    csv.field_size_limit(1 << 30)  # evidence paragraphs exceed the default
    reader = csv.DictReader(io.StringIO(read_text(path, newline=""), newline=""), strict=True)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num}: not CSV: {error}") from None
    absent = [name for name in columns if name not in (reader.fieldnames or ())]
    if absent:
        raise UserError(f"{path} lacks the column {absent[0]!r}")
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise UserError(f"{path} row {number}: not as many fields as the header")
    return rows


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A name to write to. At the end of the block the file is renamed to `path`, so that a kill or
    an error leaves no half of it. No two writers share a name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{uuid4().hex[:8]}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Whole or not at all, as everything that is written by `atomic`."""
    with atomic(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def claim(path: Path, content: Mapping[str, Any]) -> None:
    """Write down in `path` what its folder holds, or check that it is the same."""
    content = json.loads(json.dumps(content))
    if not path.exists():
        write_json(path, content, indent=1)
        return
    found = read_json(path)
    if differing := sorted(k for k in found | content if found.get(k) != content.get(k)):
        raise UserError(
            f"{path.parent} holds a run with other {', '.join(differing)}: choose another folder, "
            f"or delete it"
        )


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """One more line, so that a kill costs at most the last one (`read_appended`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_appended(path: Path) -> list[Any]:
    """The rows that `append_jsonl` wrote; what a kill left of a last line is cut off."""
    if not path.exists():
        return []
    written = path.read_bytes()
    whole = written[: written.rfind(b"\n") + 1]
    if len(whole) < len(written):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    rows = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            rows.append(parse_json(line.decode()))
        except ValueError:
            raise UserError(f"{path} line {number} is no record: delete that line") from None
    return rows


def check_rows(where: str, rows: Any, fields: Fields) -> list[dict[str, Any]]:
    """`rows` itself, known to be a list of objects that have `fields` of the right types."""
    if not isinstance(rows, list):
        raise UserError(f"{where}: expected a list of objects, found {kind_of(rows)}")
    for number, row in enumerate(rows):
        check_object(f"{where} row {number}", row, fields)
    return rows


def check_object(where: str, value: Any, fields: Fields) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected an object, found {kind_of(value)}")
    for name, types in fields.items():
        if name not in value:
            raise UserError(f"{where}: the field {name!r} is missing")
        if not isinstance(value[name], types):
            expected = " or ".join(map(_word, types if isinstance(types, tuple) else (types,)))
            found = kind_of(value[name])
            raise UserError(f"{where}: the field {name!r} must be {expected}, found {found}")
    return value


def kind_of(value: Any) -> str:
    return "null" if value is None else _word(type(value))


_WORDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
}


def _word(kind: type) -> str:
    return _WORDS.get(kind, kind.__name__)


def parse_json(text: str) -> Any:
    """The value of a whole text or of one line. NaN and Infinity are not JSON.

    The message of the `UserError` says what is wrong and where in the text; the caller knows the
    file and the line.
    """
    return _decode(text, None)


def _decode(text: str, hook: Callable[[list[tuple[str, Any]]], Any] | None) -> Any:
    def no_constant(name: str) -> NoReturn:
        raise UserError(f"{name} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=hook, parse_constant=no_constant)
    except UserError:
        raise
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or "Unterminated" in error.msg:
            raise UserError(f"not JSON, cut off at character {len(text)}") from None
        line = f"line {error.lineno} " if "\n" in text.rstrip() else ""
        what = error.msg.removesuffix(" at")
        raise UserError(f"not JSON at {line}column {error.colno} ({what})") from None
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond Python's limits
        raise UserError(f"not usable JSON ({error})") from None


def _parse(
    text: str, where: str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    try:
        return _decode(text, hook)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
