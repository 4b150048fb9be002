"""A Wikipedia dump (pages-articles .xml.bz2), streamed: article pages as plain text.

Only one page is in memory at a time. Wiki markup is stripped, not rendered: templates, tables,
references and files are dropped; links keep their text.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from skipqa.knowledge.sources.lines import file_fingerprint, open_binary
from skipqa.knowledge.sources.markup import html_to_text, tidy
from skipqa.knowledge.sources.source import BadRow, Document

ARTICLES = "0"  # the namespace of articles
BACK_MATTER = re.compile(
    r"^==+\s*(see also|references|external links|further reading|notes|bibliography)\s*==+\s*$",
    re.IGNORECASE | re.MULTILINE,
)
DROPPED = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"<!--.*?-->",
        r"<ref[^>/]*/>",
        r"<ref\b[^>]*>.*?</ref>",
        r"<(gallery|math|timeline|score|syntaxhighlight|table)\b[^>]*>.*?</\1>",
        r"__[A-Z]+__",
    )
)
INNERMOST_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
INNERMOST_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
EXTERNAL_LINK = re.compile(r"\[(?:https?:)?//\S+\s?([^\]]*)\]")
UNSEEN_LINKS = ("file:", "image:", "category:")
EMPHASIS = re.compile(r"'{2,}")
HEADING = re.compile(r"^=+\s*(.*?)\s*=+\s*$", re.MULTILINE)
LIST_MARK = re.compile(r"^[*#:;]+\s*", re.MULTILINE)
EMPTY_BRACKETS = re.compile(r"\(\s*[;,]*\s*\)")


class Wikipedia:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = "wikipedia"

    def fingerprint(self) -> str:
        return file_fingerprint(self.path)

    def read(self) -> Iterator[Document | BadRow]:
        with open_binary(self.path) as file:
            pages = 0
            try:
                for page in _pages(file):
                    pages += 1
                    if page.findtext("ns") != ARTICLES or page.find("redirect") is not None:
                        continue
                    title = page.findtext("title") or ""
                    number = page.findtext("id")
                    text = plain_text(page.findtext("revision/text") or "")
                    place = f"{self.path.name}: page {pages}"
                    if not number or not title:
                        yield BadRow(place, "a page without id or title")
                    elif not text:
                        yield BadRow(place, f"{title!r} has no text")
                    else:
                        yield Document(f"wikipedia:{number}", title, text, "wikipedia")
            except (ElementTree.ParseError, EOFError, OSError) as error:
                # An XML parser cannot continue after an error; the pages before it are kept.
                yield BadRow(f"{self.path.name}: after page {pages}", f"reading ended: {error}")


def _pages(file: IO[bytes]) -> Iterator[ElementTree.Element]:
    """Each `page` element, without namespaces; it is freed when the next one is requested."""
    events = ElementTree.iterparse(file, events=("start", "end"))
    _, root = next(events)
    for event, element in events:
        element.tag = element.tag.rpartition("}")[2]
        if event == "end" and element.tag == "page":
            yield element
            root.clear()


def plain_text(wiki: str) -> str:
    """The text of an article as a reader sees it."""
    if back_matter := BACK_MATTER.search(wiki):
        wiki = wiki[: back_matter.start()]
    for pattern in DROPPED:
        wiki = pattern.sub("", wiki)
    wiki = _until_stable(INNERMOST_TEMPLATE, "", wiki)
    wiki = _until_stable(INNERMOST_LINK, _link_words, wiki)
    wiki = EXTERNAL_LINK.sub(r"\1", wiki)
    wiki = HEADING.sub(r"\1.", LIST_MARK.sub("", EMPHASIS.sub("", wiki)))
    return tidy(EMPTY_BRACKETS.sub("", html_to_text(wiki)))


def _link_words(link: re.Match[str]) -> str:
    target, _, words = link.group(1).partition("|")
    if target.strip().lower().startswith(UNSEEN_LINKS):
        return ""
    return words.rpartition("|")[2] or target


def _until_stable(pattern: re.Pattern[str], replacement: object, text: str) -> str:
    """Substitutes until nothing changes, so nested markup is removed from the inside out."""
    count = 1
    while count:
        text, count = pattern.subn(replacement, text)  # type: ignore[call-overload]
    return text
