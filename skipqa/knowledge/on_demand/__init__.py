"""Knowledge beyond the corpus (SKIP-ADR): sources that are asked for names the library lacks.

To add one, write a module here with a class that follows `KnowledgeSource` (source.py): `name`,
`identity` and `ask(names)`, which returns passages by name or raises `SourceFailed`. `sparql.py` is
an example. Add what its specification begins with to `KINDS` below. Caching, deadlines, threads and
warnings (`sources.py`) then work with it, and so does `--source` of every command that answers.
A source is configured by whoever runs the program, never by a question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from skipqa.errors import UserError, choices
from skipqa.knowledge.on_demand.cache import Cache
from skipqa.knowledge.on_demand.index_source import IndexSource
from skipqa.knowledge.on_demand.json_source import JsonSource
from skipqa.knowledge.on_demand.source import KnowledgeSource, SourceFailed, Told
from skipqa.knowledge.on_demand.sources import Asked, Sources
from skipqa.knowledge.on_demand.sparql import SparqlSource

__all__ = ["Asked", "KnowledgeSource", "SourceFailed", "Sources", "Told", "open_sources"]

WIKIDATA = "wikidata"
WIKIDATA_ENDPOINT = "https://query.wikidata.org/sparql"
KINDS: Mapping[str, Callable[[str], KnowledgeSource]] = {
    "sparql": SparqlSource,
    "json": JsonSource,
    "index": IndexSource,
}


def open_sources(specs: Sequence[str]) -> Sources:
    """The sources of `wikidata`, `sparql:URL`, `json:URL#FIELDS` or `index:FOLDER`, each once."""
    sources = [_open(spec) for spec in dict.fromkeys(specs)]
    return Sources(sources, Cache.default()) if sources else Sources()


def _open(spec: str) -> KnowledgeSource:
    if spec == WIKIDATA:
        return SparqlSource(WIKIDATA_ENDPOINT, WIKIDATA)
    kind, colon, place = spec.partition(":")
    if not colon or not place or kind not in KINDS:
        known = choices(kind, [WIKIDATA, *(f"{one}:…" for one in KINDS)])
        raise UserError(f"no knowledge source {spec!r}; there is {known}")
    return KINDS[kind](place)
