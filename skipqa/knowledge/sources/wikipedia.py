"""A Wikipedia dump (pages-articles .xml.bz2), streamed: a document for each section of an article.

Every passage has the title of its article. It begins with the names of article and section, or in
the first section with that of the article, if the passage does not name it. Only one page is in
memory at a time. Wiki markup is stripped, not rendered: templates, tables, references and files are
dropped; links keep their text. Redirects, disambiguation pages, lists of articles and sections of
references are left out.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from skipqa.knowledge.sources.lines import UNREADABLE, file_fingerprint, open_binary
from skipqa.knowledge.sources.markup import html_to_text, tidy
from skipqa.knowledge.sources.source import BadRow, Document

NAME = "wikipedia"
ARTICLES = "0"  # the namespace of articles
# Sections without statements; "related pages" and "other websites" are Simple English Wikipedia's.
BACK_MATTER = frozenset(
    (
        *("see also", "related pages", "references", "notes", "footnotes", "citations", "sources"),
        *("bibliography", "further reading", "external links", "other websites", "gallery"),
    )
)
DISAMBIGUATION = re.compile(
    r"\{\{\s*(?:disambig\w*|disamb|dab|hndis|geodis|surname|given name)\s*[|}]"
    r"|^.{0,200}\b(?:may|can|could|might) (?:also )?(?:refer to|mean)\b[^.]{0,60}:\s*$",
    re.IGNORECASE | re.MULTILINE,
)
LIST_TITLES = ("List of ", "Lists of ", "Index of ", "Outline of ")
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
HEADING = re.compile(r"^==+[ \t]*(.*?)[ \t]*==+[ \t]*$", re.MULTILINE)
LIST_MARK = re.compile(r"^[*#:;]+\s*", re.MULTILINE)
EMPTY_BRACKETS = re.compile(r"\(\s*[;,]*\s*\)")


class Wikipedia:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = NAME

    def fingerprint(self) -> str:
        return file_fingerprint(self.path)

    def read(self) -> Iterator[Document | BadRow]:
        with open_binary(self.path) as file:
            pages = 0
            try:
                for page in _pages(file):
                    pages += 1
                    if page.findtext("ns") == ARTICLES and page.find("redirect") is None:
                        yield from _article(page, f"{self.path.name}: page {pages}")
            except (ElementTree.ParseError, *UNREADABLE) as error:
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


def _article(page: ElementTree.Element, place: str) -> Iterator[Document | BadRow]:
    title, number = page.findtext("title") or "", page.findtext("id")
    wiki = page.findtext("revision/text") or ""
    if not number or not title:
        yield BadRow(place, "a page without id or title")
        return
    if title.startswith(LIST_TITLES) or "(disambiguation)" in title or DISAMBIGUATION.search(wiki):
        return
    empty = True
    for section, (heading, text) in enumerate(sections(wiki)):
        if text:
            empty = False
            yield Document(
                id=f"wikipedia:{number}:{section}" if section else f"wikipedia:{number}",
                title=title,
                text=text,
                source="wikipedia",
                lead=f"{title}, {heading}: " if heading else "",
                subject=title,
            )
    if empty:
        yield BadRow(place, f"{title!r} has no text")


def sections(wiki: str) -> Iterator[tuple[str, str]]:
    """The heading of each section, empty for the first, and its text as a reader sees it."""
    for pattern in DROPPED:
        wiki = pattern.sub("", wiki)
    wiki = _until_stable(INNERMOST_TEMPLATE, "", wiki)
    wiki = _until_stable(INNERMOST_LINK, _link_words, wiki)
    wiki = LIST_MARK.sub("", EMPHASIS.sub("", EXTERNAL_LINK.sub(r"\1", wiki)))
    first, *rest = HEADING.split(wiki)
    for heading, text in [("", first), *zip(rest[::2], rest[1::2], strict=True)]:
        if heading.lower() not in BACK_MATTER:
            yield tidy(html_to_text(heading)), tidy(EMPTY_BRACKETS.sub("", html_to_text(text)))


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
