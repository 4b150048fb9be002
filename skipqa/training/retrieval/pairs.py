"""Queries and passages as tensors: what the sparse encoder is trained and measured on.

Enters: a library and the queries that its passages answer. Leaves: word pieces, gold rows, hard
negatives (rows that a lexical search ranks high), and every passage's stored impacts. From then on
neither an index nor its corpus is needed, so training can continue on another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from skipqa.files import atomic
from skipqa.knowledge import Library
from skipqa.knowledge.index.parts import LEVELS
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.training.retrieval.queries import SOURCES, Query
from skipqa.training.run import Counted
from skipqa.types import SparseVector

MAX_GOLD = 8
MAX_TOKENS = 32
ASKED_AT_ONCE = 8  # as region queries are
NO_ROW = -1


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths, one after another."""

    values: Tensor
    ends: Tensor  # [rows], where each row ends

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> Ragged:
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
        flat = [value for row in rows for value in row]
        return Ragged(torch.tensor(flat, dtype=torch.int16), lengths.cumsum(0).int())

    def places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Where the values of `rows` stand, and where each of them begins among those."""
        ends = self.ends[rows].long()
        starts = torch.where(rows > 0, self.ends[(rows - 1).clamp(min=0)].long(), 0)
        lengths = ends - starts
        first = lengths.cumsum(0) - lengths
        within = torch.arange(int(lengths.sum()), device=rows.device)
        return within + (starts - first).repeat_interleave(lengths), first

    def padded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, longest] and the mask of what is there."""
        places, first = self.places(rows)
        lengths = torch.diff(first, append=torch.tensor([len(places)], device=rows.device))
        mask = torch.arange(int(lengths.max()), device=rows.device) < lengths[:, None]
        found = torch.zeros(mask.shape, dtype=torch.long, device=rows.device)
        found[mask] = self.values[places].long()
        return found, mask


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
            value = getattr(self, field.name)
            if isinstance(value, Ragged):
                moved[field.name] = Ragged(value.values.to(device), value.ends.to(device))
            else:
                moved[field.name] = value.to(device)
        return Pairs(**moved)

    def select(self, source: str, *, held_out: bool) -> Tensor:
        return ((self.source == SOURCES.index(source)) & (self.held_out == held_out)).nonzero()[
            :, 0
        ]

    def scores(self, queries_BN: Tensor, rows: Tensor) -> Tensor:
        """Inner products [B, rows] with stored passages."""
        places, first = self.terms.places(rows)
        by_row = F.embedding_bag(
            self.terms.values[places].long(),
            queries_BN.T.contiguous(),
            first,
            mode="sum",
            per_sample_weights=self.impacts[places].to(queries_BN.dtype) / LEVELS,
        )
        return by_row.T

    def recall(self, queries_BN: Tensor, asked: Tensor, k: int = 4) -> Tensor:
        """For each query, whether a gold passage is among its k best of all, [B]."""
        found = []
        every = torch.arange(len(self.terms.ends), device=asked.device)
        for queries, which in zip(queries_BN.split(64), asked.split(64), strict=True):
            # in blocks: all passages at once would be the largest thing in memory
            blocks = [self.scores(queries, rows) for rows in every.split(1 << 15)]
            best = torch.cat(blocks, dim=1).topk(k).indices
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


def prepare(library: Library, queries: Sequence[Query], num_hard: int, counted: Counted) -> Pairs:
    """The passages of all indexes as if they were in one: a term has one idf."""
    encoder = _common_encoder(library)
    tokenizer = encoder.tokenizer

    def pieces(texts: Iterable[str], special: bool) -> Ragged:
        found = tokenizer.encode_batch(list(texts), add_special_tokens=special)
        # a text that is cut still ends with its [SEP]
        return Ragged.of(
            [e.ids if len(e.ids) <= MAX_TOKENS else [*e.ids[: MAX_TOKENS - 1], e.ids[-1]]
             for e in found]
        )  # fmt: skip

    row_of = {library.passage(row).id: row for row in range(len(library))}
    gold = torch.full((len(queries), MAX_GOLD), NO_ROW, dtype=torch.int32)
    hard = torch.full((len(queries), num_hard), NO_ROW, dtype=torch.int32)
    for start in range(0, len(queries), ASKED_AT_ONCE):
        some = queries[start : start + ASKED_AT_ONCE]
        found = _search(library, [encoder.encode_terms(q.whole) for q in some], num_hard + MAX_GOLD)
        for i, (query, best) in enumerate(zip(some, found, strict=True), start):
            rows = [row_of[id] for id in query.gold[:MAX_GOLD]]
            wrong = [row for row in best if row not in rows][:num_hard]
            gold[i, : len(rows)] = torch.tensor(rows)
            hard[i, : len(wrong)] = torch.tensor(wrong, dtype=torch.int32)
        if start % 4_096 == 0:
            counted(start, len(queries))
    indexes = library.indexes.values()
    forward = [segment.forward for index in indexes for segment in index.segments]
    lengths = np.concatenate([np.diff(offsets) for offsets, _, _ in forward])
    terms = np.concatenate([terms for _, terms, _ in forward]).astype(np.int16)
    ends = torch.from_numpy(np.cumsum(lengths, dtype=np.int32))
    return Pairs(
        whole=pieces((q.whole for q in queries), True),
        text=pieces((q.text for q in queries), True),
        name=pieces((q.name for q in queries), False),
        gold=gold,
        hard=hard,
        source=torch.tensor([SOURCES.index(q.source) for q in queries], dtype=torch.int8),
        held_out=torch.tensor([q.held_out for q in queries]),
        terms=Ragged(torch.from_numpy(terms), ends),
        impacts=torch.from_numpy(np.concatenate([impacts for _, _, impacts in forward])),
        idf=torch.from_numpy(encoder.idf[:NUM_TERMS].copy()),
        matched_as=torch.from_numpy(encoder.vocabulary.matched_as[:NUM_TERMS].copy()),
    )


def _common_encoder(library: Library) -> LexicalEncoder:
    """That of the first index, with the term frequencies of all."""
    indexes = list(library.indexes.values())
    first = indexes[0].encoder
    assert isinstance(first, LexicalEncoder)
    common = LexicalEncoder(first.vocabulary, first.saturation)
    frequency = np.sum([index.document_frequency() for index in indexes], axis=0)
    common.observe(frequency, int(library.bases[-1]))
    return common


def _search(library: Library, queries: Sequence[SparseVector], k: int) -> list[list[int]]:
    """The k best rows of the library per query: one idf makes all scores comparable."""
    found: list[list[tuple[float, int]]] = [[] for _ in queries]
    for index, base in zip(library.indexes.values(), library.bases.tolist(), strict=False):
        for best, hits in zip(found, index.search(queries, k), strict=True):
            best += ((-hit.score, base + hit.row) for hit in hits)
    return [[row for _, row in sorted(best)[:k]] for best in found]
