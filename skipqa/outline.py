"""The pathway of one answer as plain data: what a page, a notebook or a client draws.

Enters: a finished state, its trace and the parts it was run with. Leaves: numbers, texts and lists
only, ready for JSON: kept tokens, regions, passages with their verdicts, the attention between
them, and the cost of each stage next to that of the dense system. It knows nothing of how any of
this is drawn or sent.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import cache
from typing import Any

from skipqa.backbones.concepts import Concepts
from skipqa.config import PRESETS
from skipqa.costs.presets import architecture
from skipqa.costs.systems import parts as counted_parts
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import Trace
from skipqa.types import RetrievedPassage

NUM_CANDIDATES = 5  # of the draft
# The stage that pays for each part of the dense system in `skipqa costs`
STAGE_OF = {
    "vision encoder": "encode",
    "question encoder": "encode",
    "high-resolution encoder": "look",
    "RCSR queries": "retrieve",
    "passage encoder": "verify",
    "BSCA fusion": "fuse",
}


def outline(state: State, trace: Trace, parts: Parts) -> dict[str, Any]:
    return {
        "image": _image(state),
        "indexes": _searched(state, parts),
        "asked_as": asked_as(state, parts.backbone.concepts),
        "draft": _draft(state, parts),
        "budget": _budget(state),
        "tokens": _tokens(state),
        "regions": _regions(state, parts),
        "text": _text(state),
        "passages": _passages(state, parts),
        "hops": _hops(state),
        "edges": _edges(state),
        "stages": [
            {
                "name": s.name,
                "ms": round(s.ms, 2),
                "flops": s.flops,
                "kept": s.kept,
                "dropped": s.dropped,
                "why": s.why,
            }
            for s in trace.stages
        ],
        "flops": trace.flops,
        "latency_ms": round(trace.latency_ms, 2),
        "dense": dense_cost(parts.config.preset),
    }


def asked_as(state: State, concepts: Concepts) -> str:
    """The question of the last further round, else the question with the name of what the first
    passage was found for in place of the words that stand for it, where these are known."""
    if "hops" in state:
        return state.hops[-1].asked
    if "retrieved" not in state or not state.question.thing or not state.retrieved.passages:
        return ""
    shown = state.regions[state.retrieved.passages[0].region].concepts
    if not shown:
        return ""
    prior = state.question.concept_prior
    weights = {c: prob * (float(prior.weights[c]) if prior else 1.0) for c, prob in shown}
    return state.question.about(concepts[max(weights, key=weights.__getitem__)].name)


@cache
def dense_cost(preset: str) -> dict[str, Any]:
    """What the dense system pays for a question of the usual length, counted from the shapes of its
    networks (`skipqa costs`), by the stage that pays it."""
    if preset not in PRESETS:
        return {"flops": 0, "stages": []}
    shapes = architecture(preset)
    by_stage: dict[str, int] = {}
    for part in counted_parts(shapes, shapes.load, "dense"):
        name = STAGE_OF.get(part.name, "decode")
        by_stage[name] = by_stage.get(name, 0) + round(part.flops)
    stages = [{"name": name, "flops": flops} for name, flops in by_stage.items()]
    return {"flops": sum(by_stage.values()), "stages": stages}


def _image(state: State) -> dict[str, int] | None:
    if "image" not in state:
        return None
    return {"width": state.image.width, "height": state.image.height}


def _searched(state: State, parts: Parts) -> list[str]:
    if "retrieved" not in state or not state.budget.passages:
        return []
    return [name for name in parts.library.names if name not in state.budget.skipped_indexes]


def _draft(state: State, parts: Parts) -> dict[str, Any] | None:
    if "draft" not in state:
        return None
    draft = state.draft
    return {
        "answer": draft.answer,
        "confidence": round(draft.confidence, 4),
        "threshold": parts.config.draft.threshold,
        "accepted": draft.accepted,
        "candidates": [
            {"answer": answer, "prob": round(math.exp(log_prob), 4)}
            for answer, log_prob in draft.candidates[:NUM_CANDIDATES]
        ],
    }


def _budget(state: State) -> dict[str, Any] | None:
    if "budget" not in state:
        return None
    budget = state.budget
    return {
        "tokens": budget.tokens,
        "passages": budget.passages,
        "high_res": budget.high_res,
        "difficulty": budget.difficulty,
        "expected_gain": budget.expected_gain,
        "rounds": budget.rounds,
    }


def _hops(state: State) -> list[dict[str, Any]]:
    """Further rounds of retrieval: what was asked about, and the passage that names it."""
    if "hops" not in state:
        return []
    return [
        {
            "round": number,
            "bridge": hop.bridge.name,
            "prob": round(hop.bridge.prob, 4),
            "passage": hop.bridge.passage + 1,
            "asked": hop.asked,
        }
        for number, hop in enumerate(state.hops, 2)
    ]


def _tokens(state: State) -> dict[str, Any]:
    if "kept" not in state:
        seen = state.low_res
        return {"grid": seen.grid, "total": len(seen), "kept": [], "saliency": []}
    kept, tokens = state.kept, state.kept.tokens
    saliency = kept.saliency
    if len(saliency):
        low, high = saliency.min(), saliency.max()
        saliency = (saliency - low) / (high - low).clamp(min=1e-12)
    return {
        "grid": tokens.grid,
        "total": len(tokens),
        "kept": kept.positions.tolist(),
        "saliency": [round(score, 3) for score in saliency.tolist()],
    }


def _regions(state: State, parts: Parts) -> list[dict[str, Any]]:
    if "regions" not in state:
        return []
    concepts = parts.backbone.concepts
    return [
        {
            "box": [round(side, 4) for side in region.box],
            "tokens": list(region.members),
            "saliency": round(region.saliency, 4),
            "concepts": [
                {"name": concepts[concept].name, "prob": round(prob, 4)}
                for concept, prob in region.concepts
            ],
        }
        for region in state.regions
    ]


def _text(state: State) -> list[dict[str, Any]]:
    """The lines that were read in the image."""
    return [
        {
            "text": line.text,
            "box": [round(side, 4) for side in line.box],
            "score": round(line.score, 4),
            "region": line.region,
        }
        for line in state.text_read.lines
    ]


def _passages(state: State, parts: Parts) -> list[dict[str, Any]]:
    """Kept ones first, in the order of their scores; numbered from 1, as they are cited."""
    if "verified" not in state:
        return []
    verified, threshold = state.verified, parts.config.verify.threshold
    mass = state.fused.mass
    total = sum(mass) or 1.0
    read = state.answer.read if "answer" in state else ()
    rows: list[dict[str, Any]] = []

    def add(found: RetrievedPassage, score: float, verdict: str, reason: str) -> None:
        place = len(rows)  # among the kept ones, as `mass` and `read` count
        kept = verdict == "kept"
        rows.append(
            {
                "number": place + 1,
                "id": found.passage.id,
                "title": found.passage.title,
                "text": found.passage.text,
                "read": found.text,
                "source": found.passage.source,
                "index": _index(found, parts),
                **({} if found.origin is None else {"origin": asdict(found.origin)}),
                "region": found.region,
                "round": found.round,
                "score": round(found.score, 4),
                "relative": round(found.relative, 4),
                "verification": round(score, 4),
                "verdict": verdict,
                "reason": reason,
                "attention": round(mass[place] / total, 4) if kept else 0.0,
                "cited": kept and place in read,
            }
        )

    for found, score in zip(verified.passages, verified.scores, strict=True):
        verdict = f"verified: at or above {threshold:.2f}"
        add(found, score, "kept", verdict if score >= threshold else "the best of those rejected")
    for found, score in verified.rejected:
        spare = score >= threshold
        reason = "more than the budget allows" if spare else f"below {threshold:.2f}"
        add(found, score, "rejected", reason)
    return rows


def _index(found: RetrievedPassage, parts: Parts) -> str:
    """The index of the library that holds the passage, or the source that told it."""
    return parts.library.name_of(found.row) if found.origin is None else found.origin.source


def _edges(state: State) -> list[dict[str, Any]]:
    """The attention between each region and each kept passage, as a fraction of all of it."""
    if "fused" not in state or state.fused.attention is None:
        return []
    attention_VK = state.fused.attention
    total = float(attention_VK.sum())
    if total <= 0:
        return []
    row_of = {position: row for row, position in enumerate(state.kept.positions.tolist())}
    edges = []
    for number, region in enumerate(state.regions):
        rows = [row_of[position] for position in region.members if position in row_of]
        for place, mass in enumerate(attention_VK[rows].sum(0).tolist()):
            if mass > 0:
                edge = {"region": number, "passage": place + 1}
                edges.append({**edge, "attention": round(mass / total, 4)})
    return edges
