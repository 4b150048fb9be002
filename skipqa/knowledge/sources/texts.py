"""A .txt, .md or .html file: one document."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from skipqa.knowledge.sources.lines import not_utf8
from skipqa.knowledge.sources.markup import html_page, tidy
from skipqa.knowledge.sources.source import BadRow, Document

ENDINGS = (".txt", ".md", ".markdown", ".html", ".htm")
MAX_BYTES = 64 << 20
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ENDED = re.compile(r"[.!?:;|][\"'”’)\]]*$")
_ITEM = re.compile(r"[-*+•–#>|]|\d+[.)]\s")  # of a list, a heading, a row of a table
MOST_WRAPPED = 120  # characters; lines that are longer were not broken by an editor


def read_file(path: Path) -> Iterator[Document | BadRow]:
    if path.stat().st_size > MAX_BYTES:
        yield BadRow("", f"larger than {MAX_BYTES >> 20} MB")
        return
    raw = path.read_bytes()
    try:
        # Notepad and PowerShell have written UTF-16, which always begins with its byte order mark
        text = raw.decode("utf-16" if raw.startswith(UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        yield BadRow(str(line), not_utf8(error))
        return
    if "\0" in text:  # valid UTF-8, as is UTF-16 without its mark, but nobody's words
        yield BadRow("", "no text: it has zero bytes")
        return
    title, text = _title_and_text(text, path)
    yield Document("", title, text, source="", prose=True) if text else BadRow("", "empty")


def _title_and_text(raw: str, path: Path) -> tuple[str, str]:
    stem = path.stem.replace("_", " ").replace("-", " ")
    if path.suffix.lower() in (".html", ".htm"):
        title, text = html_page(raw)
        return title or stem, text
    text = unwrapped(raw)
    if path.suffix.lower() in (".md", ".markdown") and text.startswith("# "):
        title, _, text = text.removeprefix("# ").partition("\n")
        return title.strip(), text.strip()
    return stem, text


def unwrapped(raw: str) -> str:
    """One line per paragraph, item or heading, however the lines were broken."""
    lines = [line.strip() for line in raw.splitlines()]
    width = max(map(len, lines), default=0)
    return tidy(
        "".join(
            f"{line} " if _is_wrapped(line, after, width) else f"{line}\n"
            for line, after in pairwise([*lines, ""])
        )
    )


def _is_wrapped(line: str, after: str, width: int) -> bool:
    """Whether a line breaks off within a sentence: what follows goes on in lower case, or its first
    word would not have fitted."""
    if not line or not after or _ENDED.search(line) or _ITEM.match(after) or line.startswith("#"):
        return False
    fitted = len(line) + 1 + len(after.split()[0]) <= width
    return after[0].islower() or (width <= MOST_WRAPPED and not fitted)
