"""A .txt, .md or .html file: one document."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from skipqa.knowledge.sources.lines import not_utf8
from skipqa.knowledge.sources.markup import html_page, tidy
from skipqa.knowledge.sources.source import BadRow, Document

ENDINGS = (".txt", ".md", ".markdown", ".html", ".htm")
MAX_BYTES = 64 << 20
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


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
    yield Document("", title, text, source="") if text else BadRow("", "empty")


def _title_and_text(raw: str, path: Path) -> tuple[str, str]:
    stem = path.stem.replace("_", " ").replace("-", " ")
    if path.suffix.lower() in (".html", ".htm"):
        title, text = html_page(raw)
        return title or stem, text
    text = tidy(raw)
    if path.suffix.lower() in (".md", ".markdown") and text.startswith("# "):
        title, _, text = text.removeprefix("# ").partition("\n")
        return title.strip(), text.strip()
    return stem, text
