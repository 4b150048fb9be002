"""A .txt, .md or .html file, or a folder of them: one document per file. Ids are relative paths."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from skipqa.errors import UserError
from skipqa.knowledge.sources.lines import file_fingerprint
from skipqa.knowledge.sources.markup import html_page, tidy
from skipqa.knowledge.sources.source import BadRow, Document

ENDINGS = (".txt", ".md", ".markdown", ".html", ".htm")
PDF = ".pdf"  # not supported, but reported
MAX_BYTES = 64 << 20


class Texts:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        self.folder = path if path.is_dir() else path.parent
        endings = {file.suffix.lower() for file in self._files()}
        if not endings - {PDF}:
            advice = ": convert its PDFs to text first" if endings else ""
            raise UserError(f"{path} holds no .txt, .md or .html file{advice}")

    def fingerprint(self) -> str:
        everything = "\n".join(map(file_fingerprint, self._files()))
        return hashlib.sha256(everything.encode()).hexdigest()

    def read(self) -> Iterator[Document | BadRow]:
        for path in self._files():
            place = path.relative_to(self.folder).as_posix()
            if path.suffix.lower() == PDF:
                yield BadRow(place, "a PDF, convert it to text first")
                continue
            try:
                if path.stat().st_size > MAX_BYTES:
                    yield BadRow(place, f"larger than {MAX_BYTES >> 20} MB")
                    continue
                raw = path.read_bytes().decode("utf-8-sig")
            except UnicodeDecodeError as error:
                line = error.object[: error.start].count(b"\n") + 1
                yield BadRow(f"{place}:{line}", f"not UTF-8 (byte {error.start})")
                continue
            except OSError as error:
                yield BadRow(place, f"cannot be read: {error.strerror}")
                continue
            title, text = _title_and_text(raw, path)
            if text:
                yield Document(f"{self.name}:{place}", title, text, self.name)
            else:
                yield BadRow(place, "empty")

    def _files(self) -> Iterator[Path]:
        for path in sorted(self.path.rglob("*")) if self.path.is_dir() else [self.path]:
            if path.suffix.lower() in (*ENDINGS, PDF) and path.is_file():
                yield path


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
