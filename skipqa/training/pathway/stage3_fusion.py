"""Stage III: fusion (BSCA) is trained behind open gates; region queries are a part of their own.

Enters: gathered records, the saliency of stage II. Leaves: a saliency and a fusion layer, and how
they compare with their training-free stages on held-out questions. tau_G falls along a cosine from
1.0 to 0.1 and tau_e rises from 0.3 to 0.6; the loss is eq. D.3.

At pocket size the decoder reads words, so the cross-entropy is replaced by two proxies that pass
through the relaxed components: the gold passage by what gated tokens speak for (as in stage II),
and the answer by the fused tokens: their gated mean against the embeddings of all known answers, so
that a token must attend to the passage that states the answer.

Shape letters: B questions, V' tokens, K candidates, A answers, d text width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.config import Count, NonNegative
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.relaxation import cosine_schedule, linear_schedule
from skipqa.nn.saliency import Saliency, squared_budget_loss
from skipqa.nn.soft_edges import degree_loss, relaxed_fusion
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation
from skipqa.training.pathway import stage2_saliency
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.fusion_quality import compare_fusion, edges_help, fusion_ships
from skipqa.training.pathway.records import Records
from skipqa.training.pathway.stage import PathwayPart, PathwaySettings, PathwayStage
from skipqa.training.pathway.stage2_saliency import (
    Candidates,
    SaliencyPart,
    SaliencyTraining,
    gold_loss,
    object_loss,
    open_gates,
    passage_logits,
)
from skipqa.training.pathway.stage3_region_query import RegionQueryPart, RegionQueryTraining
from skipqa.training.pathway.verifier_cases import collect_cases
from skipqa.training.sampling import inverse_frequency
from skipqa.training.stage import Metrics

ANSWER_SCALE = 20.0
TAU_G, TAU_E = (1.0, 0.1), (0.3, 0.6)


@dataclass(frozen=True, slots=True)
class PathwayTraining:
    steps: Count = 200
    lr: LearningRate = 5e-4  # the paper's 2e-5 is for 15,000 steps
    warmup: NonNegative = 30
    batch: Count = 12
    weight_decay: Decay = 0.05
    heads: Count = 4
    read: Count = 6  # candidates that fusion may attend to, the gold ones among them
    region_query: RegionQueryTraining = field(default_factory=RegionQueryTraining)


class Pathways(nn.Module):
    """The modules that are trained together."""

    def __init__(self, saliency: Saliency, fusion: BipartiteFusion) -> None:
        super().__init__()
        self.saliency, self.fusion = saliency, fusion


@dataclass(frozen=True, slots=True)
class Temperatures:
    """Of the gates of tokens (tau_G), and where edges open (tau_e)."""

    gates: float
    edges: float


Schedule = Callable[[int], Temperatures]  # of a step
FINAL = Temperatures(TAU_G[1], TAU_E[1])


@dataclass(frozen=True, slots=True)
class FusionInputs:
    """What the losses read besides the batch."""

    records: Records
    candidates: Candidates
    inside: Tensor  # [N, V] bool, as in stage II
    answers: Tensor  # [A, d]
    answer_of: Tensor  # [N], -1 where no passage is known to hold it
    num_tokens: int  # V'
    num_passages: int  # that fusion may attend to, the gold ones first

    def answer_logits(
        self, layer: BipartiteFusion, batch: Tensor, gates_BV: Tensor, temperatures: Temperatures
    ) -> tuple[Tensor, list[Tensor]]:
        """The logit of every answer by the fused tokens [B, A], and the gates of the edges."""
        table, pooled, edges = self.records.table.encoded, [], []
        for b, i in enumerate(batch.tolist()):
            open_V = gates_BV[b].topk(self.num_tokens).indices
            chosen = self.candidates.rows[i][self.candidates.there[i]][: self.num_passages]
            states = [table.states[j].float() for j in chosen.tolist()]
            fused, gates = relaxed_fusion(
                layer,
                self.records["meaning"][i, open_V].float(),
                torch.cat(states),
                table.embeddings[chosen],
                [len(one) for one in states],
                temperature=temperatures.gates,
                threshold=temperatures.edges,
            )
            weight_V = gates_BV[b, open_V]
            # All gates may be shut, at low temperatures to the last bit
            total = weight_V.sum().clamp_min(1e-6)
            pooled.append((weight_V[:, None] * fused).sum(0) / total)
            edges.append(gates)
        question = self.records["question"][batch].float()
        answer_Bd = F.normalize(torch.stack(pooled) + question, dim=-1)
        return ANSWER_SCALE * answer_Bd @ self.answers.T, edges


class PathwaysPart(PathwayPart[PathwayTraining, FusionInputs, Pathways]):
    name = "pathways"

    def prepare(self, context: TrainingContext, settings: PathwayTraining) -> FusionInputs:
        about = context.records.about
        best = [_best_answer(one["answers"]) if one["gold_rows"] else None for one in about]
        number = {text: n for n, text in enumerate(sorted({text for text in best if text}))}
        found = stage2_saliency.candidates(context.records)
        return FusionInputs(
            context.records,
            found,
            stage2_saliency.object_tokens(context.records),
            context.embed(list(number)),
            torch.tensor([number.get(text, -1) if text else -1 for text in best]),
            stage2_saliency.kept_tokens(context),
            settings.read,
        )

    def build(self, context: TrainingContext, settings: PathwayTraining) -> Pathways:
        """What earlier stages trained, and new modules where they did not."""
        width, learned = context.records["question"].shape[1], context.learned
        torch.manual_seed(context.run.seed)
        saliency = learned.saliency or SaliencyPart().build(context, SaliencyTraining())
        layer = FusionConfig(width, width, settings.heads, variant="B")
        fusion = learned.fusion or BipartiteFusion(layer)
        return Pathways(saliency, fusion).requires_grad_(True)

    def loss(
        self,
        context: TrainingContext,
        settings: PathwayTraining,
        data: FusionInputs,
        model: Pathways,
    ) -> Loss:
        return loss_at(context, settings, data, model, annealed(settings.steps))

    def optimisation(self, settings: PathwayTraining) -> Optimisation:
        return Optimisation(settings.steps, settings.lr, settings.warmup, settings.weight_decay)

    def compare(
        self,
        context: TrainingContext,
        settings: PathwayTraining,
        data: FusionInputs,
        model: Pathways,
    ) -> Metrics:
        cases = collect_cases(context, compared=context.rows("held-out", gold=True))
        return {
            "held-out": {
                "saliency": stage2_saliency.compare_saliency(context, model.saliency),
                "fusion": compare_fusion(context, model.fusion, cases, cases.untrained),
            }
        }

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        found, tokens = compared["held-out"], stage2_saliency.kept_tokens(context)
        return {
            "saliency": stage2_saliency.is_as_good(found["saliency"], tokens),
            "fusion": fusion_ships(found["fusion"]),
        }

    def chosen_settings(
        self, context: TrainingContext, compared: Metrics, ships: Mapping[str, bool]
    ) -> dict[str, dict[str, Any]]:
        if ships["fusion"] or not edges_help(compared["held-out"]["fusion"]):
            return {}
        return {"fuse": {"edges": "degree"}}

    def components(self, settings: PathwayTraining, model: Pathways) -> Mapping[str, nn.Module]:
        return {name: getattr(model, name) for name in ("saliency", "fusion")}


STAGE = PathwayStage(
    "stage3", PathwaySettings(PathwayTraining()), (RegionQueryPart(), PathwaysPart())
)


def _best_answer(answers: Mapping[str, float]) -> str:
    return max(answers, key=lambda text: answers[text])


def annealed(steps: int) -> Schedule:
    return lambda step: Temperatures(
        cosine_schedule(*TAU_G, step, steps), linear_schedule(*TAU_E, step, steps)
    )


def loss_at(
    context: TrainingContext,
    settings: PathwayTraining,
    data: FusionInputs,
    model: Pathways,
    schedule: Schedule,
) -> Loss:
    """Eq. D.3 of the batch of a step."""
    records, run, known = context.records, context.run, data.candidates
    rows = context.rows("train", gold=True)
    draw = inverse_frequency(rows, context.categories(rows), settings.batch, run.seed)
    rho = data.num_tokens / records["meaning"].shape[1]

    def loss(step: int) -> Tensor:
        batch, temperatures = draw(step), schedule(step)
        tokens, question = records["meaning"][batch].float(), records["question"][batch].float()
        logits = model.saliency(tokens, question)
        gates = open_gates(logits, temperatures.gates, run.seed, step)
        gold, there = known.gold[batch], known.there[batch]
        passages = records.table.encoded.embeddings[known.rows[batch]]
        by_tokens = gold_loss(passage_logits(question, tokens, gates, passages), gold, there)
        answers, edges = data.answer_logits(model.fusion, batch, gates, temperatures)
        answered = F.cross_entropy(answers, data.answer_of[batch])
        degree = torch.stack([degree_loss(one) for one in edges]).mean()
        placed = object_loss(logits, data.inside[batch])
        budget = squared_budget_loss(logits, rho)
        return by_tokens + placed + answered + budget + degree

    return loss
