"""What fusion is good for: does the decoder read a passage that answers?

Enters: a fusion layer, the cases of the verifier, scores nu_j. Leaves: the fraction of held-out
questions whose answering passage is read, with the layer and without, and whether the layer ships.
Nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skipqa.backbones.backbone import EncodedTexts
from skipqa.nn.fusion import BipartiteFusion
from skipqa.pipeline import Pipeline
from skipqa.stages.decode import read_order
from skipqa.stages.verify import Scored, Verify, already
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.training.pathway.collapse import openness
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.verifier_cases import Cases
from skipqa.types import Budget, Retrieved

MOST_EDGES = 0.5  # that a fusion layer may keep open and still be called sparse


def compare_fusion(
    context: TrainingContext, layer: BipartiteFusion, cases: Cases, nu_NK: Tensor
) -> dict[str, Any]:
    """The layer, the training-free stage as configured, and the same with as many edges as the
    layer has: otherwise the layer might win by reading more."""
    today, degree = context.pipeline, layer.config.degree or context.pipeline.config.fuse.degree
    untrained = today.with_components(fusion=None)
    same_degree = untrained.with_config(fuse={"edges": "degree", "degree": degree})
    return {
        "trained": fraction_read(context, today.with_components(fusion=layer), cases, nu_NK),
        "training_free": fraction_read(context, untrained, cases, nu_NK),
        "training_free_same_degree": fraction_read(context, same_degree, cases, nu_NK),
    }


@dataclass(frozen=True, slots=True)
class GivenScores:
    """A `PassageVerifier` whose nu_j are known, with passages that are encoded already."""

    nu_K: Tensor
    encoded: EncodedTexts

    def __call__(self, state: State) -> Scored:
        return Scored(self.nu_K.tolist(), already(self.encoded), 0)


@torch.inference_mode()
def fraction_read(
    context: TrainingContext, pipeline: Pipeline, cases: Cases, nu_NK: Tensor
) -> dict[str, Any]:
    """Of the held-out questions with an answering passage among the candidates, the fraction that
    has one among what the decoder reads, ordered by verification and fusion. And the edges."""
    rows = [i for i in context.rows("held-out", gold=True) if bool((cases.labels[i] > 0.5).any())]
    most, right, edges = pipeline.config.decode.max_passages, [], [torch.zeros(0)]
    for i in rows:
        state = _verified(context, nu_NK[i], i)
        state = pipeline.run(state, start="fuse", stop="fuse")
        used = read_order(state.verified, state.fused)[:most]
        pairs = zip(context.records.candidates(i), cases.labels[i].tolist(), strict=False)
        answering = {passage.row for passage, label in pairs if label > 0.5}
        right.append(any(state.verified.passages[j].row in answering for j in used))
        edges.append(state.fused.edges.float().flatten())
    return {
        "questions": len(rows),
        "read": sum(right) / max(1, len(right)),
        "edges": openness(torch.cat(edges)).as_dict(),
    }


def _verified(context: TrainingContext, nu_K: Tensor, i: int) -> State:
    """Record `i` after verify with these scores."""
    records, config = context.records, context.pipeline.config
    state = records.after_retrieve(i, len(context.pipeline.backbone.concepts))
    passages = state.retrieved.passages[: config.budget.passages]
    encoded = context.pipeline.backbone.encode_texts([passage.text for passage in passages])
    verify = Verify(config.verify, GivenScores(nu_K[: len(passages)], encoded))
    budget = Budget(len(state.kept.positions), config.budget.passages)
    state = state.add(budget=budget, retrieved=Retrieved(passages, 0, 0))
    return verify(state, StageRecord("verify"))


def fusion_ships(compared: Mapping[str, Any]) -> bool:
    """Better than the training-free stage, with that stage's number of edges and with the layer's,
    without keeping most of them open: saving edges is what fusion is for."""
    others = (compared[name]["read"] for name in ("training_free", "training_free_same_degree"))
    trained = compared["trained"]
    return bool(trained["read"] > max(others) and trained["edges"]["open"] <= MOST_EDGES)


def edges_help(compared: Mapping[str, Any]) -> bool:
    """The training-free stage gains from as many edges as the layer has."""
    return bool(compared["training_free_same_degree"]["read"] > compared["training_free"]["read"])
