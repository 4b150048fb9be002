"""Plain words: names and prose say what a reader of the field expects.

Names are read from the package's tokens, part by part (`log_shares` has the part `shares`); prose
is comments, strings and the documents.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import skipqa

PACKAGE = Path(skipqa.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]

PER = "token|region|question|passage|stage|query|word|row|answer|picture|image"
# Words that stand between two things without counting one by the other
LINK = (
    "of|for|to|in|with|as|by|from|than|or|and|is|on|per|at|has|if|when|where|that|not|over|"
    "without|makes|holds|gives|reads|keeps"
)
# (pattern, what to say instead): of a part of a name, and of prose
IN_NAMES = [
    ("shares?", "probs, fraction"),
    ("wanted", "target, required"),
    ("weigh(s|ed|ing)?", "score, loglikelihood"),
    ("glance[ds]?", "low_res"),
    ("nats", "information"),
    ("expectations?", "concept_prior"),
    ("towers?", "encoder"),
    ("teach(es|ing|er)?|taught", "train, fine_tune"),
    ("asker|exam|lessons?|study|studied|remembering", "the field's own word"),
]
WHOLE_NAMES = [
    ("look_it_up", "ABSTAIN"),
    ("passed_on", "not accepted"),
    ("look_closer", "high_res"),
]
IN_PROSE = [
    (r"shares? of", "fraction of, probability of"),
    (r"wanted", "target, required, needed"),
    (r"weigh(?:s|ed|ing)?", "score, log-likelihood"),
    (r"(?:a|at a|the|one|first) glance", "low resolution"),
    (r"look(?:s|ed|ing)? closer|closer look", "high resolution"),
    (r"expectations?", "concept prior"),
    (r"look it up", "abstain"),
    (r"towers?", "encoder"),
    (r"teach(?:es|ing)?|taught", "train, fine-tune"),
    (rf"(?:one|two|\d+|a|an) (?:(?!(?:{LINK})\b)[\w-]+ ){{0,2}}(?<!half )a (?:{PER})", "per token"),
]


def compiled(patterns: list[tuple[str, str]]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(rf"\b(?:{p})\b", re.IGNORECASE), say) for p, say in patterns]


PROSE = compiled(IN_PROSE)
PARTS, WHOLE = compiled(IN_NAMES), compiled(WHOLE_NAMES)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@cache  # most names come again and again
def in_name(name: str) -> tuple[str, ...]:
    found = [say for pattern, say in WHOLE if pattern.fullmatch(name)]
    for part in CAMEL.sub("_", name).split("_"):
        found += (say for pattern, say in PARTS if pattern.fullmatch(part))
    return tuple(f"{name}: say {say}" for say in found)


def in_prose(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(paragraph.replace("#", " ").split())  # a phrase may go over two lines
        for pattern, say in PROSE:
            yield from (f"{match[0]!r}: say {say}" for match in pattern.finditer(joined))


def found_in(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return list(in_prose(text))
    found, comment = [], ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment += " " + token.string  # lines of one comment belong together
            continue
        if token.type not in (tokenize.NL, tokenize.NEWLINE):
            found += in_prose(comment)
            comment = ""
        if token.type == tokenize.NAME:
            found += in_name(token.string)
        elif tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE"):
            found += in_prose(token.string)
    return found


@pytest.mark.parametrize("path", SOURCES + DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_words_are_plain(path: Path) -> None:
    found = found_in(path)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["log_shares", "LOOK_IT_UP", "weighed", "Asker", "visionTower"])
def test_a_name_of_the_old_words_is_found(name: str) -> None:
    assert list(in_name(name))


@pytest.mark.parametrize(
    "name", ["shared", "weight", "example", "ABSTAIN", "expected", "eliminates"]
)
def test_a_name_that_only_resembles_one_is_not(name: str) -> None:
    assert not list(in_name(name))


@pytest.mark.parametrize(
    "text",
    [
        "the share of tokens",
        "one logit a token",
        "one a region",
        "a query a region",
        "at a\n# glance",
        "two passages a question",
    ],
)
def test_prose_in_the_old_words_is_found(text: str) -> None:
    assert list(in_prose(text))


@pytest.mark.parametrize(
    "text",
    [
        "regions share a cache",
        "one query per region",
        "a token of a region",
        "weights",
        "is a token",
    ],
)
def test_plain_prose_is_not(text: str) -> None:
    assert not list(in_prose(text))
