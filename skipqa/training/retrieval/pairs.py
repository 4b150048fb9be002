"""Queries and passages as tensors: what the sparse encoder is trained and measured on.

Enters: a corpus and the queries that its passages answer. Leaves: word pieces, gold rows, hard
negatives (rows that a lexical search ranks high), and every passage's stored impacts. From then on
neither an index nor its corpus is needed, so training can continue on another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from skipqa.files import atomic
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.knowledge.vocabulary import cut_pieces
from skipqa.training.retrieval.query import SOURCES, Query
from skipqa.training.retrieval.stored import Corpus, Ragged, Stored
from skipqa.training.run import Counted

MAX_GOLD = 8
MAX_TOKENS = 32
NO_ROW = -1


@dataclass(frozen=True, slots=True)
class Pairs:
    """Q queries, P passages, N terms."""

    whole: Ragged  # [Q] the name and the text as word pieces, with [CLS] and [SEP]
    text: Ragged  # [Q] the text alone
    name: Ragged  # [Q] the name alone, no [CLS]
    gold: Tensor  # [Q, MAX_GOLD], NO_ROW where there are fewer
    hard: Tensor  # [Q, H], NO_ROW where a search found fewer
    source: Tensor  # [Q] of `SOURCES`
    held_out: Tensor  # [Q]
    terms: Ragged  # [P] of each passage
    impacts: Tensor  # in the order of the terms' values
    idf: Tensor  # [N]
    matched_as: Tensor  # [N]

    def to(self, device: torch.device) -> Pairs:
        moved: dict[str, Any] = {}
        for field in fields(self):
            moved[field.name] = getattr(self, field.name).to(device)
        return Pairs(**moved)

    def select(self, source: str, *, held_out: bool) -> Tensor:
        return ((self.source == SOURCES.index(source)) & (self.held_out == held_out)).nonzero()[
            :, 0
        ]

    @property
    def stored(self) -> Stored:
        return Stored(self.terms, self.impacts)

    def scores(self, queries_BN: Tensor, rows: Tensor) -> Tensor:
        """Inner products [B, rows] with stored passages."""
        return self.stored.scores(queries_BN, rows)

    def recall(self, queries_BN: Tensor, asked: Tensor, k: int = 4) -> Tensor:
        """For each query, whether a gold passage is among its k best of all, [B]."""
        found = []
        for queries, which in zip(queries_BN.split(64), asked.split(64), strict=True):
            _, best = self.stored.best(queries, k)
            found.append((best[:, :, None] == self.gold[which][:, None]).any(-1).any(-1))
        return torch.cat(found)

    def save(self, path: Path) -> None:
        tensors: dict[str, Tensor] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Ragged):
                tensors |= {f"{field.name}.values": value.values, f"{field.name}.ends": value.ends}
            else:
                tensors[field.name] = value
        with atomic(path) as partial:
            save_file(tensors, partial)

    @staticmethod
    def load(path: Path) -> Pairs:
        tensors = load_file(path)
        ragged = {name.removesuffix(".ends") for name in tensors if name.endswith(".ends")}
        kept = {name: Ragged(tensors[f"{name}.values"], tensors[f"{name}.ends"]) for name in ragged}
        plain = {name: value for name, value in tensors.items() if "." not in name}
        return Pairs(**kept, **plain)  # type: ignore[arg-type]


def prepare(corpus: Corpus, queries: Sequence[Query], num_hard: int, counted: Counted) -> Pairs:
    tokenizer = corpus.encoder.tokenizer

    def pieces(texts: Iterable[str], special: bool) -> Ragged:
        found = tokenizer.encode_batch(list(texts), add_special_tokens=special)
        return Ragged.of([cut_pieces(one.ids, MAX_TOKENS) for one in found])

    row_of = {passage.id: row for row, passage in enumerate(corpus.passages)}
    gold = torch.full((len(queries), MAX_GOLD), NO_ROW, dtype=torch.int32)
    hard = torch.full((len(queries), num_hard), NO_ROW, dtype=torch.int32)
    depth = num_hard + max(len(query.gold) for query in queries)
    found = corpus.find([query.whole for query in queries], depth, counted)
    for i, (query, best) in enumerate(zip(queries, found, strict=True)):
        rows = [row_of[id] for id in query.gold]
        wrong = [row for row in best if row not in rows][:num_hard]
        gold[i, : min(len(rows), MAX_GOLD)] = torch.tensor(rows[:MAX_GOLD])
        hard[i, : len(wrong)] = torch.tensor(wrong, dtype=torch.int32)
    encoder, stored = corpus.encoder, Stored.of(corpus.library)
    return Pairs(
        whole=pieces((q.whole for q in queries), True),
        text=pieces((q.text for q in queries), True),
        name=pieces((q.name for q in queries), False),
        gold=gold,
        hard=hard,
        source=torch.tensor([SOURCES.index(q.source) for q in queries], dtype=torch.int8),
        held_out=torch.tensor([q.held_out for q in queries]),
        terms=stored.terms,
        impacts=stored.impacts,
        idf=torch.from_numpy(encoder.idf[:NUM_TERMS].copy()),
        matched_as=torch.from_numpy(encoder.vocabulary.matched_as[:NUM_TERMS].copy()),
    )
