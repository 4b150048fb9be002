"""Stage III: what regions ask (RCSR) and what tokens read (BSCA) are learned behind open gates.

Enters: gathered records, the saliency of stage II. Leaves: a saliency, a region query and a fusion
layer, and how the fusion compares with its training-free stage on held-out questions. tau_G falls
along a cosine from 1.0 to 0.1 and tau_e rises from 0.3 to 0.6; the loss is eq. D.3.

Its cross-entropy, at pocket size where the decoder reads words, has three parts that pass through
the relaxed components: the gold passage by what gated tokens speak for (as in stage II), the gold
passage by the score of the regions' queries (`asking.py`), and the answer by the fused tokens:
their gated mean against the embeddings of all known answers, so that a token must read the passage
in which the answer stands.

Shape letters: B questions, V' tokens, K candidates, A answers, d text width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.config import Between, Count, CountOrNone, FuseConfig
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.region_query import RegionQueryConfig, SparseRegionQuery
from skipqa.nn.relaxation import cosine_schedule, linear_schedule
from skipqa.nn.saliency import Saliency, squared_budget_loss
from skipqa.nn.soft_edges import degree_loss, relaxed_fusion
from skipqa.nn.verifier import judge
from skipqa.stages.decode import read_order
from skipqa.stages.fuse import fuse
from skipqa.trace import StageRecord
from skipqa.training.loop import Decay, LearningRate, Phase, fit
from skipqa.training.pathway import stage2_saliency as pruning
from skipqa.training.pathway.collapse import openness
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.region_query import Asking
from skipqa.training.pathway.stage2_saliency import (
    Candidates,
    gold_loss,
    open_gates,
    passage_logits,
    thing_loss,
)
from skipqa.training.pathway.stage4_verifier import Cases, cases
from skipqa.training.sampling import inverse_frequency
from skipqa.types import KeptTokens, Verified

Loss = Callable[[int], Tensor]
ANSWER_SCALE = 20.0
TAU_G, TAU_E = (1.0, 0.1), (0.3, 0.6)
MOST_EDGES = 0.5  # that a fusion layer may keep open and still be called sparse


@dataclass(frozen=True, slots=True)
class PathwayTraining:
    steps: Count = 200
    lr: LearningRate = 5e-4  # the paper's 2e-5 is for 15,000 steps
    warmup: CountOrNone = 30
    batch: Count = 12
    weight_decay: Decay = 0.05
    heads: Count = 4
    read: Count = 6  # candidates that fusion may attend to, the gold ones among them
    query_hidden: Count = 64
    like_untrained: Annotated[float, Between(0.0, 100.0)] = 0.1


def run(context: TrainingContext, settings: PathwayTraining) -> dict[str, Any]:
    """The stage: train, compare each part, leave."""
    if "pathways" in context.run.metrics():
        return context.run.metrics()
    parts = train(context, settings)
    held_out = context.rows("held-out", gold=True)
    found = cases(context, compared=held_out)
    compared = {
        "saliency": pruning.compare(context, parts.saliency),
        "region_query": compare_query(context, parts.region_query),
        "fusion": compare_fusion(context, parts.fusion, found, found.untrained),
    }
    ships = {
        "saliency": pruning.is_as_good(compared["saliency"], pruning.kept_tokens(context)),
        "region_query": _at_least(compared["region_query"], "recall@4"),
        "fusion": fusion_ships(compared["fusion"]),
    }
    for name, good in ships.items():
        context.leave(getattr(parts, name), name, ships=good)
    if not ships["fusion"] and edges_help(compared["fusion"]):
        context.set(fuse={"edges": "degree"})
    context.run.finish("pathways", {"ships": ships, "held-out": compared})
    return context.run.metrics()


def _at_least(compared: Mapping[str, Any], name: str) -> bool:
    return bool(compared["trained"][name] >= compared["training_free"][name])


def fusion_ships(compared: Mapping[str, Any]) -> bool:
    """Better than the stage without it, with the stage's own number of edges and with its own; and
    not by keeping most of them, which fusion is there to save."""
    others = (compared[name]["read"] for name in ("training_free", "training_free_alike"))
    trained = compared["trained"]
    return bool(trained["read"] > max(others) and trained["edges"]["open"] <= MOST_EDGES)


def edges_help(compared: Mapping[str, Any]) -> bool:
    """As many edges as the layer has do the stage good without the layer."""
    return bool(compared["training_free_alike"]["read"] > compared["training_free"]["read"])


class Pathways(nn.Module):
    """The three that learn together."""

    def __init__(
        self, saliency: Saliency, region_query: SparseRegionQuery, fusion: BipartiteFusion
    ) -> None:
        super().__init__()
        self.saliency, self.region_query, self.fusion = saliency, region_query, fusion


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the losses read beside the records."""

    found: Candidates
    inside: Tensor  # [N, V] bool, as in stage II
    asking: Asking
    answers: Tensor  # [A, d]
    answer_of: Tensor  # [N], -1 where no passage is known to hold it
    count: int  # V'


def prepare(context: TrainingContext) -> Lesson:
    best = [_surest(one["answers"]) if one["gold_rows"] else None for one in context.records.about]
    number = {text: n for n, text in enumerate(sorted({text for text in best if text}))}
    found = pruning.candidates(context.records)
    return Lesson(
        found,
        pruning.things(context.records),
        Asking(context, found.rows, found.there),
        context.embed(list(number)),
        torch.tensor([number.get(text, -1) if text else -1 for text in best]),
        pruning.kept_tokens(context),
    )


def _surest(answers: Mapping[str, float]) -> str:
    return max(answers, key=lambda text: answers[text])


def build(context: TrainingContext, settings: PathwayTraining) -> Pathways:
    """What earlier stages trained, and fresh ones where they did not."""
    width, learned = context.records["question"].shape[1], context.learned
    torch.manual_seed(context.run.seed)
    saliency = learned.saliency or pruning.build(context, pruning.SaliencyTraining())
    query = learned.region_query
    if not isinstance(query, SparseRegionQuery):
        query = SparseRegionQuery(RegionQueryConfig(width, width, hidden=settings.query_hidden))
        nn.init.constant_(query.to_terms.bias, -0.5)  # most terms are not asked for
    layer = FusionConfig(width, width, settings.heads, variant="B")
    fusion = learned.fusion or BipartiteFusion(layer)
    return Pathways(saliency, query, fusion).requires_grad_(True)


def loss_of(
    context: TrainingContext,
    parts: Pathways,
    settings: PathwayTraining,
    lesson: Lesson,
    tau_g: Callable[[int], float],
    tau_e: Callable[[int], float],
) -> Loss:
    """Eq. D.3 of the batch of a step."""
    records, run = context.records, context.run
    rows = context.rows("train", gold=True)
    draw = inverse_frequency(rows, context.categories(rows), settings.batch, run.seed)
    rho = lesson.count / records["meaning"].shape[1]

    def loss(step: int) -> Tensor:
        some = draw(step)
        tokens, question = records["meaning"][some].float(), records["question"][some].float()
        logits = parts.saliency(tokens, question)
        gates = open_gates(logits, tau_g(step), run.seed, step)
        right, there = lesson.found.gold[some], lesson.found.there[some]
        passages = records.table.embeddings[lesson.found.rows[some]]
        seen = gold_loss(passage_logits(question, tokens, gates, passages), right, there)
        scores, apart = lesson.asking.scores(parts.region_query, some, tokens, question, gates)
        asked = gold_loss(scores, right, there) + settings.like_untrained * apart
        said, edges = read(
            context, parts.fusion, settings, lesson, some, gates, tau_g(step), tau_e(step)
        )
        answered = F.cross_entropy(said, lesson.answer_of[some])
        degree = torch.stack([degree_loss(one) for one in edges]).mean()
        placed = thing_loss(logits, lesson.inside[some])
        budget = squared_budget_loss(logits, rho)
        return seen + placed + asked + answered + budget + degree

    return loss


def read(
    context: TrainingContext,
    layer: BipartiteFusion,
    settings: PathwayTraining,
    lesson: Lesson,
    some: Tensor,
    gates_BV: Tensor,
    tau: float,
    tau_e: float,
) -> tuple[Tensor, list[Tensor]]:
    """The logit of every answer by what fused tokens say [B, A], and the edges' gates."""
    table, pooled, edges = context.records.table, [], []
    for b, i in enumerate(some.tolist()):
        open_V = gates_BV[b].topk(lesson.count).indices
        chosen = lesson.found.rows[i][lesson.found.there[i]][: settings.read]
        states = [table.states[j].float() for j in chosen.tolist()]
        fused, gates = relaxed_fusion(
            layer,
            context.records["meaning"][i, open_V].float(),
            torch.cat(states),
            table.embeddings[chosen],
            [len(one) for one in states],
            temperature=tau,
            threshold=tau_e,
        )
        weight_V = gates_BV[b, open_V]
        # All may be shut, at low temperatures to the last bit
        total = weight_V.sum().clamp_min(1e-6)
        pooled.append((weight_V[:, None] * fused).sum(0) / total)
        edges.append(gates)
    question = context.records["question"][some].float()
    said_Bd = F.normalize(torch.stack(pooled) + question, dim=-1)
    return ANSWER_SCALE * said_Bd @ lesson.answers.T, edges


def train(context: TrainingContext, settings: PathwayTraining) -> Pathways:
    parts, lesson, steps = build(context, settings), prepare(context), settings.steps
    tau_g = partial(_annealed, cosine_schedule, TAU_G, steps)
    tau_e = partial(_annealed, linear_schedule, TAU_E, steps)
    loss = loss_of(context, parts, settings, lesson, tau_g, tau_e)
    phase = Phase(steps, settings.lr, settings.warmup)
    return fit("pathways", parts, loss, phase, context.run, weight_decay=settings.weight_decay)


def _annealed(
    schedule: Callable[..., float], ends: tuple[float, float], steps: int, step: int
) -> float:
    return schedule(*ends, step, steps)


def compare_query(context: TrainingContext, query: SparseRegionQuery) -> dict[str, Any]:
    """Gold passages found by the regions' queries, trained and as answering asks now."""
    rows, tokens = context.rows("held-out", gold=True), pruning.kept_tokens(context)
    now = context.pipeline.components.region_query
    trials = [pruning.Trial(tokens, None, asking) for asking in (query, now)]
    trained, free = pruning.quality(context, rows, trials)
    return {"questions": len(rows), "trained": trained, "training_free": free}


def compare_fusion(
    context: TrainingContext, layer: BipartiteFusion, found: Cases, nu_NK: Tensor
) -> dict[str, Any]:
    """The layer, the stage without one as it is set, and the same with as many edges as the layer
    has: else it might win by reading more."""
    now = context.pipeline.config.fuse
    alike = replace(now, edges="degree", degree=layer.config.degree or now.degree)
    return {
        "trained": fraction_read(context, layer, found, nu_NK, now),
        "training_free": fraction_read(context, None, found, nu_NK, now),
        "training_free_alike": fraction_read(context, None, found, nu_NK, alike),
    }


@torch.inference_mode()
def fraction_read(
    context: TrainingContext,
    layer: BipartiteFusion | None,
    found: Cases,
    nu_NK: Tensor,
    rule: FuseConfig,
) -> dict[str, Any]:
    """Of the held-out questions with an answering passage among the candidates, the share that has
    one among what the decoder reads: verification and fusion share in the order. And the edges."""
    rows = [i for i in context.rows("held-out", gold=True) if bool((found.label[i] > 0.5).any())]
    config, right, edges = context.pipeline.config, [], [torch.zeros(0)]
    for i in rows:
        verified, answers = _verified(context, found, nu_NK[i], i)
        question, record = context.records.question(i), StageRecord("fuse")
        fused = fuse(_kept(context, i), question, verified, rule, record, layer)
        used = read_order(verified, fused)[: config.decode.max_passages]
        right.append(any(answers[j] for j in used))
        edges.append(fused.edges.float().flatten())
    return {
        "questions": len(rows),
        "read": sum(right) / max(1, len(right)),
        "edges": openness(torch.cat(edges)).as_dict(),
    }


def _kept(context: TrainingContext, i: int) -> KeptTokens:
    records, num_concepts = context.records, len(context.pipeline.backbone.concepts)
    positions = records["kept"][i].nonzero()[:, 0]
    return KeptTokens(positions, records["saliency"][i].float(), records.tokens(i, num_concepts))


def _verified(
    context: TrainingContext, found: Cases, nu_K: Tensor, i: int
) -> tuple[Verified, Sequence[bool]]:
    """As the stage would leave it with these scores, and which of its passages answer."""
    records, config = context.records, context.pipeline.config
    candidates, places = records.candidates(i), records.places(i)
    budget = config.budget
    nu = nu_K[: min(len(candidates), budget.passages)]
    verdict = judge(
        nu.double(), budget.passages, config.verify.threshold, config.verify.min_passages
    )
    kept = verdict.kept.tolist()
    verified = Verified(
        passages=tuple(candidates[j] for j in kept),
        scores=tuple(float(nu[j]) for j in kept),
        token_states=tuple(records.table.states[places[j]].float() for j in kept),
        embeddings=records.table.embeddings[[places[j] for j in kept]],
        rejected=(),
    )
    return verified, [bool(found.label[i, j] > 0.5) for j in kept]
