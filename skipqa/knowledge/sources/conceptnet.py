"""ConceptNet 4, English: what people say about everyday things, as short sentences.

The graph has one assertion per line: two concepts and a relation, all in base forms and without
articles (`stove`, `heat pot`, CapableOf). Each becomes a sentence ("A stove can heat a pot."), and
the sentences of a concept become documents small enough to be passages, best-scored first. Every
sentence names its subject, so a document needs no lead. Assertions that people denied are left out.

The lines are in no order, so the graph, 32 MB of text, is held in memory while it is grouped.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from skipqa import assets
from skipqa.knowledge.sources.assertions import PHRASES, Assertion, sentence, words_of
from skipqa.knowledge.sources.lines import UNREADABLE
from skipqa.knowledge.sources.source import BadRow, Document

MAX_WORDS = 64  # of a document, so that it is one passage
MAX_CONCEPT_WORDS = 6  # longer ones are whole sentences that were not understood
MAX_FACTS = 1_000  # of one concept: "person" has 18,000
MAX_INVERSE = 30
EMPTY = frozenset(("something", "someone", "thing", "anything", "it", "this", "not", "only"))
RANK = {relation: rank for rank, relation in enumerate(PHRASES)}
INVERSE = ("AtLocation", "PartOf", "HasA", "MadeOf")  # also told of their object
FIELDS = re.compile(r"'(freq|score|rel)': u?'?([-\w]+)'?")


class ConceptNet:
    name = "conceptnet"

    def __init__(self, graph: Path | None = None) -> None:
        self._graph = graph

    def fingerprint(self) -> str:
        return assets.CONCEPTNET.key if self._graph is None else assets.sha256_of(self._graph)

    def read(self) -> Iterator[Document | BadRow]:
        graph = self._graph or assets.fetch(assets.CONCEPTNET) / "conceptnet_en.graph.gz"
        assertions = []
        for row in read_graph(graph):
            if isinstance(row, BadRow):
                yield row
            elif row is not None:
                assertions.append(row)
        words = words_of(assertions)
        for concept, facts in by_concept(assertions).items():
            sentences = unique(sentence(fact, words) for fact in facts)
            for number, text in enumerate(packed(sentences)):
                part = f":{number + 1}" if number else ""
                yield Document(
                    id=f"conceptnet:{_quoted(concept)}{part}",
                    title=concept,
                    text=text,
                    source="conceptnet",
                )


def read_graph(path: Path) -> Iterator[Assertion | BadRow | None]:
    """An assertion per line; None where it makes no sentence."""
    known: dict[str, str] = {}  # one string per concept, however often it stands in the graph
    number = 0
    try:
        with gzip.open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                place = f"{path.name}:{number}"
                try:
                    row = _assertion(line.decode("utf-8").rstrip("\r\n"))
                except ValueError as error:  # also of a line that is not UTF-8
                    yield BadRow(place, f"not an assertion: {error}")
                    continue
                if row is not None:
                    subject = known.setdefault(row.subject, row.subject)
                    other = known.setdefault(row.object, row.object)
                    row = row._replace(subject=subject, object=other)
                yield row
    except UNREADABLE as error:
        yield BadRow(f"{path.name}: after line {number}", f"reading ended: {error}")


def _assertion(line: str) -> Assertion | None:
    parts = line.split("\t")
    if len(parts) != 3:
        raise ValueError(f"{len(parts)} columns instead of 3")
    fields = dict(FIELDS.findall(parts[2]))
    if fields.keys() != {"freq", "score", "rel"}:
        raise ValueError("no freq, score and rel")
    subject, other = (" ".join(concept.split()) for concept in parts[:2])
    score = int(fields["score"])
    if int(fields["freq"]) <= 0 or score <= 0 or fields["rel"] not in PHRASES:
        return None
    if not _usable(subject) or not _usable(other) or subject == other:
        return None
    if fields["rel"] == "ReceivesAction" and other.startswith("find "):
        return Assertion(subject, "AtLocation", other.removeprefix("find "), score)
    return Assertion(subject, fields["rel"], other, score)


def _usable(concept: str) -> bool:
    return 0 < len(concept.split()) <= MAX_CONCEPT_WORDS and concept not in EMPTY


def by_concept(assertions: Iterable[Assertion]) -> dict[str, list[Assertion]]:
    """The facts of each concept, best-scored first; then those that are told of it by others."""
    direct: defaultdict[str, list[Assertion]] = defaultdict(list)
    inverse: defaultdict[str, list[Assertion]] = defaultdict(list)
    for fact in assertions:
        direct[fact.subject].append(fact)
        if fact.relation in INVERSE:
            inverse[fact.object].append(fact)
    return {
        concept: _best(direct[concept], MAX_FACTS, lambda fact: fact.object)
        + _best(inverse[concept], MAX_INVERSE, lambda fact: fact.subject)
        for concept in sorted(direct)
    }


def _best(facts: list[Assertion], limit: int, other: Callable[[Assertion], str]) -> list[Assertion]:
    """One fact for each other concept, of the relation that most people confirmed; where several
    relations join two concepts, all of them count."""
    total: Counter[str] = Counter()
    for fact in facts:
        total[other(fact)] += fact.score
    best: dict[str, Assertion] = {}
    for fact in sorted(facts, key=lambda fact: (-fact.score, RANK[fact.relation])):
        best.setdefault(other(fact), fact)
    return sorted(best.values(), key=lambda fact: -total[other(fact)])[:limit]


def unique(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(sentences))


def packed(sentences: Iterable[str]) -> Iterator[str]:
    """Texts of whole sentences with at most `MAX_WORDS` words."""
    text: list[str] = []
    length = 0
    for one in sentences:
        size = len(one.split())
        if text and length + size > MAX_WORDS:
            yield " ".join(text)
            text, length = [], 0
        text.append(one)
        length += size
    if text:
        yield " ".join(text)


def _quoted(concept: str) -> str:
    """For an id, in which a colon and a hash separate parts."""
    return concept.translate({ord(c): f"%{ord(c):02X}" for c in "%:#_"}).replace(" ", "_")
