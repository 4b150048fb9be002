"""What a fusion reader is good for: are held-out questions answered as well with it as by text?

Enters: a fusion reader, held-out questions, what verification keeps for each of them today. Leaves:
the score of several ways to read the same passages, the edges that were open, and whether the
reader ships. Nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from skipqa.nn.fusion_reader import FusionReader
from skipqa.ops.bipartite_attention.reference import num_edges_kept
from skipqa.training.pathway.fusion_examples import FusionExample, Scenes
from skipqa.training.pathway.fusion_loss import (
    AT_ONCE,
    FusionTables,
    Offer,
    ReaderNetworks,
    greedy,
    read_hard,
)
from skipqa.training.pathway.read_today import ReadToday

BEST, TWO, FUSED, FUSED_BEST = "best as text", "two as text", "fused", "fused and best as text"
NOTHING = "nothing"
WAYS = (NOTHING, BEST, TWO, FUSED, FUSED_BEST)
WITHIN = 0.015  # of two passages as text


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Questions and what each of them reads today."""

    tables: FusionTables
    today: Sequence[ReadToday]
    answers: Sequence[Mapping[str, float]]  # with their scores

    @staticmethod
    def of(
        examples: Sequence[FusionExample],
        today: Sequence[ReadToday],
        answers: Sequence[Mapping[str, float]],
        scenes: Scenes,
        networks: ReaderNetworks,
    ) -> HeldOut:
        return HeldOut(FusionTables(examples, scenes, networks), today, answers)

    def offer(self, row: int) -> Offer:
        return self.tables.found(row, self.today[row].kept)


@torch.inference_mode()
def compare_reading(
    reader: FusionReader, held_out: HeldOut, as_text: ReaderNetworks | None = None
) -> dict[str, Any]:
    """Mean scores by the way of reading. `as_text` reads text in place of the tables' own decoder,
    where that one was trained to read fused tokens."""
    tables = held_out.tables
    by_text = as_text or tables.networks
    points: dict[str, list[float]] = {name: [] for name in WAYS}
    edges, allowed, pairs = 0, 0, 0
    for first in range(0, len(held_out.today), AT_ONCE):
        rows = range(first, min(first + AT_ONCE, len(held_out.today)))
        some, offers = [held_out.today[row] for row in rows], [held_out.offer(row) for row in rows]
        read = read_hard(reader, tables, offers)
        opened, mass_BK = read.edges.open_BVK, read.mass_BVK.sum(1)
        for b, offer in enumerate(offers):
            num_tokens, num_passages = opened.shape[1], len(offer.texts)
            edges += int(opened[b, :, :num_passages].sum())
            pairs += num_tokens * num_passages
            beta = reader.config.beta
            allowed += num_edges_kept(num_tokens, num_passages, beta, None) if beta else 0
        order = [_order(one, mass_BK[b].tolist()) for b, one in enumerate(some)]
        ways: dict[str, tuple[list[list[int]], bool]] = {
            NOTHING: ([[] for _ in some], False),
            BEST: ([[*one.order[:1]] for one in some], False),
            TWO: ([[*reversed(one.order[:2])] for one in some], False),
            FUSED: ([[] for _ in some], True),
            FUSED_BEST: ([places[:1] for places in order], True),
        }
        for name, (places, fused) in ways.items():
            prompts = tables.prompts_of(
                [
                    tables.prompt(offer.row, [offer.texts[j] for j in facts], fused=fused)
                    for offer, facts in zip(offers, places, strict=True)
                ]
            )
            networks = tables.networks if fused else by_text
            said = greedy(networks, prompts, read.tokens_BLD if fused else None)
            points[name] += (
                held_out.answers[row].get(text, 0.0) for row, text in zip(rows, said, strict=True)
            )
    return {
        "questions": len(held_out.today),
        "scores": {name: sum(some) / max(1, len(some)) for name, some in points.items()},
        "edges": {"open": edges, "allowed": allowed, "pairs": pairs},
    }


def _order(one: ReadToday, mass: Sequence[float]) -> list[int]:
    """As `decode.py` has it, by the reader's attention in place of today's."""
    total = sum(mass) or 1.0
    read = zip(one.scores[: one.kept], mass, strict=False)  # beyond what is kept it is padding
    worth = {j: nu + own / total for j, (nu, own) in enumerate(read) if own > 0}
    return sorted(worth, key=lambda j: (-worth[j], j))


def fusion_ships(compared: Mapping[str, Any]) -> bool:
    """With the best passage as text besides, at least as good as that passage alone and nearly as
    good as two, at no more edges than beta: saving both is what fusion is for. And better than
    reading nothing, or there was nothing to compare."""
    scores, edges = compared["scores"], compared["edges"]
    own = scores[FUSED_BEST]
    as_good = own >= max(scores[BEST], scores[TWO] - WITHIN) and own > scores[NOTHING]
    return bool(compared["questions"] and as_good and edges["open"] <= edges["allowed"])
