"""Stage II: the saliency (QVS) learns which tokens tell the right passage from the others.

Enters: gathered records. Leaves: a saliency, and how it compares with the training-free one on
held-out questions at the same V': gold passages found, and how much of the object's box is kept.
Also a baseline's keep head, trained and compared in the same way but blind to the question.

A pocket decoder reads words and passes no gradient to tokens, so a proxy task replaces the
cross-entropy of the answer: which of the candidate passages, the gold one among them, does a
question ask for? A passage's logit is how well it fits the question and the best of the tokens
that the gates let through,

    z_j = scale (cos(q, e_j) + log(sum_i g_i exp(beta cos(v_i, e_j)) / sum_i g_i) / beta),

a soft maximum over tokens, because each region sends its own query: tokens that speak for other
passages dilute it, and the gates learn to shut them out. Where the object's box is known, as in
composed scenes, there is a second task: which token shows the object?

Shape letters: B questions, V visual tokens, K candidates, d text width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from skipqa.config import Between, Count, NonNegative
from skipqa.nn.keep_head import KeepHead, KeepHeadConfig
from skipqa.nn.relaxation import gumbel_sigmoid, logistic_noise
from skipqa.nn.saliency import (
    Saliency,
    SaliencyConfig,
    absolute_budget_loss,
    build_saliency,
    squared_budget_loss,
)
from skipqa.stages.regions import in_box
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation
from skipqa.training.pathway.collapse import openness
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records
from skipqa.training.pathway.saliency_quality import Trial, recall_and_boxes
from skipqa.training.pathway.stage import PathwayPart, PathwaySettings, PathwayStage
from skipqa.training.sampling import inverse_frequency
from skipqa.training.stage import Metrics

SCALE, BETA = 20.0, 10.0
PAPER_RHO = 0.11  # of the tokens
SPLITS = ("held-out", "val")  # the first decides, the other is reported


@dataclass(frozen=True, slots=True)
class SaliencyTraining:
    steps: Count = 600
    lr: LearningRate = 1e-3  # the paper's 5e-5 is for 5,000 steps at d = 4096
    warmup: NonNegative = 50
    batch: Count = 32
    weight_decay: Decay = 0.05
    variant: Literal["A", "B"] = "A"
    hidden: Count = 64
    temperature: Annotated[float, Between(0.01, 10.0)] = 1.0  # tau_G
    regulariser: Literal["squared", "absolute"] = "squared"  # the appendix's, the main text's


@dataclass(frozen=True, slots=True)
class Candidates:
    """For each question its gold passages and those retrieved, as rows of the table."""

    rows: Tensor  # [N, K]
    there: Tensor  # [N, K] bool
    gold: Tensor  # [N, K] bool


def candidates(records: Records, most: int = 20) -> Candidates:
    rows = torch.zeros(len(records), most, dtype=torch.long)
    there, gold = torch.zeros_like(rows, dtype=torch.bool), torch.zeros_like(rows, dtype=torch.bool)
    for i, about in enumerate(records.about):
        right = [records.table.place[row] for row in about["gold_rows"]]
        all_of_them = list(dict.fromkeys(right + records.places(i)))[:most]
        here = slice(len(all_of_them))
        rows[i, here] = torch.tensor(all_of_them, dtype=torch.long)
        there[i, here] = True
        gold[i, here] = torch.isin(rows[i, here], torch.tensor(right, dtype=torch.long))
    return Candidates(rows, there, gold)


def passage_logits(
    question_Bd: Tensor, tokens_BVd: Tensor, gates_BV: Tensor, passages_BKd: Tensor
) -> Tensor:
    """z_j of the module docstring, [B, K]."""
    fit_BVK = BETA * tokens_BVd @ passages_BKd.transpose(1, 2)
    log_gates_BV1 = gates_BV.clamp_min(1e-6).log()[..., None]
    log_total_B1 = gates_BV.sum(1).clamp_min(1e-6).log()[:, None]
    best_BK = (fit_BVK + log_gates_BV1).logsumexp(1) - log_total_B1
    topic_BK = (passages_BKd @ question_Bd[..., None])[..., 0]
    return SCALE * (topic_BK + best_BK / BETA)


def gold_loss(logits_BK: Tensor, gold_BK: Tensor, there_BK: Tensor) -> Tensor:
    """Cross-entropy where several may be right: minus the log of their probability."""
    logits = logits_BK.masked_fill(~there_BK, -torch.inf)
    right = logits.masked_fill(~gold_BK, -torch.inf)
    return (logits.logsumexp(1) - right.logsumexp(1)).mean()


def object_tokens(records: Records) -> Tensor:
    """[N, V] bool: the tokens that show what is asked about; none where its box is unknown."""
    found = torch.zeros(records["meaning"].shape[:2], dtype=torch.bool)
    for i, about in enumerate(records.about):
        if about["box"] is not None:
            found[i] = in_box(about["box"], records.grid)
    return found


def object_loss(logits_BV: Tensor, inside_BV: Tensor) -> Tensor:
    """Cross-entropy of the token that shows the object, where its box is known."""
    placed = inside_BV.any(1)
    if not bool(placed.any()):
        return logits_BV.new_zeros(())
    return gold_loss(logits_BV[placed], inside_BV[placed], torch.ones_like(inside_BV[placed]))


def open_gates(logits: Tensor, temperature: float, seed: int, step: int) -> Tensor:
    """A relaxed Bernoulli gate per token: only the regulariser limits how many open, so that all
    may open or shut. Answering takes the V' best instead."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return gumbel_sigmoid(logits, temperature, logistic_noise(logits, generator))


def budget_loss(settings: SaliencyTraining, logits: Tensor, rho: float) -> Tensor:
    kind = squared_budget_loss if settings.regulariser == "squared" else absolute_budget_loss
    return kind(logits, rho)


class BlindSaliency(Saliency):
    """A keep head in QVS's place: it is given the question and ignores it."""

    def __init__(self, head: KeepHead) -> None:
        super().__init__(SaliencyConfig(head.config.width, hidden=head.config.hidden))
        self.head = head

    def forward(self, visual: Tensor, question: Tensor) -> Tensor:
        return self.head(visual)


@dataclass(frozen=True, slots=True)
class SaliencyInputs:
    """What the loss reads besides the records."""

    candidates: Candidates
    inside: Tensor  # [N, V] bool: the tokens that show what is asked about


class SaliencyPart(PathwayPart[SaliencyTraining, SaliencyInputs, Saliency]):
    name = "saliency"

    def prepare(self, context: TrainingContext, settings: SaliencyTraining) -> SaliencyInputs:
        return SaliencyInputs(candidates(context.records), object_tokens(context.records))

    def build(self, context: TrainingContext, settings: SaliencyTraining) -> Saliency:
        width = context.records["question"].shape[1]
        torch.manual_seed(context.run.seed)
        return build_saliency(SaliencyConfig(width, settings.variant, settings.hidden))

    def loss(
        self,
        context: TrainingContext,
        settings: SaliencyTraining,
        data: SaliencyInputs,
        model: Saliency,
    ) -> Loss:
        records, run, known = context.records, context.run, data.candidates
        rows = context.rows("train", gold=True)
        draw = inverse_frequency(rows, context.categories(rows), settings.batch, run.seed)
        rho = kept_tokens(context) / records["meaning"].shape[1]

        def loss(step: int) -> Tensor:
            batch = draw(step)
            tokens, question = records["meaning"][batch].float(), records["question"][batch].float()
            logits = model(tokens, question)
            gates = open_gates(logits, settings.temperature, run.seed, step)
            passages = records.table.encoded.embeddings[known.rows[batch]]
            z = passage_logits(question, tokens, gates, passages)
            chosen = gold_loss(z, known.gold[batch], known.there[batch])
            placed = object_loss(logits, data.inside[batch])
            return chosen + placed + budget_loss(settings, logits, rho)

        return loss

    def optimisation(self, settings: SaliencyTraining) -> Optimisation:
        return Optimisation(settings.steps, settings.lr, settings.warmup, settings.weight_decay)

    def compare(
        self,
        context: TrainingContext,
        settings: SaliencyTraining,
        data: SaliencyInputs,
        model: Saliency,
    ) -> Metrics:
        return {
            split: compare_saliency(context, model, split)
            for split in SPLITS
            if context.rows(split, gold=True)
        }

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        return {"saliency": is_as_good(compared["held-out"], kept_tokens(context))}

    def components(self, settings: SaliencyTraining, model: Saliency) -> Mapping[str, nn.Module]:
        return {"saliency": model}


class KeepHeadPart(SaliencyPart):
    """A baseline's, as wide as QVS, so that scoring a token costs about as much."""

    name = "keep_head"

    def build(self, context: TrainingContext, settings: SaliencyTraining) -> BlindSaliency:
        torch.manual_seed(context.run.seed)
        config = KeepHeadConfig(context.records["meaning"].shape[2], settings.hidden)
        return BlindSaliency(KeepHead(config))

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        return {"keep_head": True}  # answers nothing, so it need not win

    def components(self, settings: SaliencyTraining, model: Saliency) -> Mapping[str, nn.Module]:
        assert isinstance(model, BlindSaliency)
        return {"keep_head": model.head}


STAGE = PathwayStage(
    "stage2", PathwaySettings(SaliencyTraining()), (SaliencyPart(), KeepHeadPart())
)


def kept_tokens(context: TrainingContext) -> int:
    """V' of the V tokens at high resolution."""
    return context.pipeline.config.budget.kept_tokens(context.records["meaning"].shape[1])


@torch.inference_mode()
def gates_open(context: TrainingContext, saliency: Saliency, rows: Sequence[int]) -> Tensor:
    """sigmoid(s_i) of all tokens of these questions, [n, V]."""
    records = context.records
    parts = torch.tensor(rows).split(64)
    return torch.cat(
        [saliency(records["meaning"][p].float(), records["question"][p].float()) for p in parts]
    ).sigmoid()


def compare_saliency(
    context: TrainingContext, saliency: Saliency, split: str = "held-out"
) -> dict[str, Any]:
    """Trained and training-free through the real stages, at the budget of answering and at the
    paper's 11 % of the tokens."""
    rows = context.rows(split, gold=True)
    num_tokens = context.records["meaning"].shape[1]
    counts = sorted({kept_tokens(context), math.ceil(PAPER_RHO * num_tokens)})
    query = context.pipeline.components.region_query
    return {
        "questions": len(rows),
        "gates": openness(gates_open(context, saliency, rows)).as_dict(),
        "by_tokens": {
            str(count): dict(
                zip(
                    ("trained", "training_free"),
                    recall_and_boxes(
                        context, rows, [Trial(count, saliency, query), Trial(count, None, query)]
                    ),
                    strict=True,
                )
            )
            for count in counts
        },
    }


def is_as_good(compared: dict[str, Any], num_tokens: int) -> bool:
    """Ships if at the budget of answering it finds at least as many passages and keeps at least
    as much of the object."""
    here = compared["by_tokens"][str(num_tokens)]
    return not compared["gates"]["collapsed"] and all(
        here["trained"][name] >= here["training_free"][name] for name in here["trained"]
    )
