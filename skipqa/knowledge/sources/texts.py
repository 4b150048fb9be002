"""A .txt, .md or .html file: one document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skipqa.knowledge.sources.markup import html_page, tidy
from skipqa.knowledge.sources.source import BadRow, Document

ENDINGS = (".txt", ".md", ".markdown", ".html", ".htm")
MAX_BYTES = 64 << 20


def read_file(path: Path) -> Iterator[Document | BadRow]:
    if path.stat().st_size > MAX_BYTES:
        yield BadRow("", f"larger than {MAX_BYTES >> 20} MB")
        return
    try:
        raw = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        yield BadRow(str(line), f"not UTF-8 (byte {error.start})")
        return
    title, text = _title_and_text(raw, path)
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
