"""Another index of skipqa, asked for names alone: a large one that not every question searches.

Enters: the folder of an index, or `engine:folder`, and names. Leaves: its passages that have a name
in their title. The index is opened when it is first asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from skipqa.knowledge.coverage import name_key, title_keys
from skipqa.knowledge.engines import parse_uri
from skipqa.knowledge.index.format import read_manifest
from skipqa.knowledge.index.index import Index
from skipqa.knowledge.on_demand.source import Answers, Told, now
from skipqa.types import Origin

MAX_PASSAGES = 12  # about one name
SEARCHED = 4 * MAX_PASSAGES  # as others may score higher


class IndexSource:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        _, self.folder, _ = parse_uri(uri)
        self.corpus: str = read_manifest(self.folder)["corpus"]["hash"]

    @property
    def name(self) -> str:
        return self.folder.absolute().name

    @property
    def identity(self) -> str:
        return f"index:{self.folder.absolute()}@{self.corpus}"

    @cached_property
    def _index(self) -> Index:
        return Index.open(self.uri)

    def ask(self, names: Sequence[str]) -> Answers:
        queries = [self._index.encoder.encode_terms(name) for name in names]
        found = self._index.search(queries, SEARCHED)
        asked = now()
        told: dict[str, list[Told]] = {}
        for name, hits in zip(names, found, strict=True):
            passages = (self._index.passage(hit.row) for hit in hits)
            own = [one for one in passages if name_key(name) in title_keys(one.title)]
            told[name] = [Told(one, Origin(self.name, one.id, asked)) for one in own[:MAX_PASSAGES]]
        return told
