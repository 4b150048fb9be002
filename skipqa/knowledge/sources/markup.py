"""Plain text from HTML: tags are dropped; blocks and line breaks become line breaks."""

from __future__ import annotations

import re
from html.parser import HTMLParser

BLOCKS = """
address article blockquote br dd div dl dt h1 h2 h3 h4 h5 h6 hr li ol p pre section
table td th tr ul
"""
BREAKING = frozenset(BLOCKS.split())
UNREAD = frozenset(("head", "script", "style", "noscript", "template"))
SPACES = re.compile(r"[^\S\n]+")
BREAKS = re.compile(r"\s*\n\s*")


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title = ""
        self._unread = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unread += tag in UNREAD
        self._in_title = tag == "title"
        if tag in BREAKING:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._unread = max(0, self._unread - (tag in UNREAD))
        self._in_title = False
        if tag in BREAKING:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data.strip()
        elif not self._unread:
            self.parts.append(data)


def html_to_text(html: str) -> str:
    return html_page(html)[1]


def html_page(html: str) -> tuple[str, str]:
    """The title of the page (may be empty) and its text, one line per block."""
    if "<" not in html and "&" not in html:
        return "", tidy(html)
    parser = _Text()
    parser.feed(html)
    parser.close()
    return parser.title, tidy("".join(parser.parts))


def tidy(text: str) -> str:
    """Single spaces and single line breaks, and none at either end."""
    return BREAKS.sub("\n", SPACES.sub(" ", text)).strip()
