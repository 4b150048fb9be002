"""Stage II: the saliency (QVS) learns which tokens tell the right passage from the others.

Enters: gathered records. Leaves: a saliency, and how it compares with the training-free one on
held-out questions at the same V': gold passages found, and how much of the thing's box is kept.
Beside it a rival's keep head, taught and compared in the same way but blind to the question.

The task that stands in for the answer's cross-entropy, since a pocket decoder reads words and
passes no gradient to tokens: which of the candidate passages, the gold one among them, does a
question ask for? A passage's logit is how well it fits the question and the best of the tokens
that the gates let through,

    z_j = scale (cos(q, e_j) + log(sum_i g_i exp(beta cos(v_i, e_j)) / sum_i g_i) / beta),

a soft maximum over tokens, because a region asks for itself: tokens that speak for other passages
dilute it, and the gates learn to shut them out. Where it is known where the thing is, as in scenes
that were composed, there is a second one: which token shows it?

Shape letters: B questions, V visual tokens, K candidates, d text width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import Tensor

from skipqa.config import Between, Count, CountOrNone
from skipqa.nn.keep_head import KeepHead, KeepHeadConfig
from skipqa.nn.region_query import DenseRegionQuery, SparseRegionQuery
from skipqa.nn.relaxation import gumbel_sigmoid, logistic_noise
from skipqa.nn.saliency import (
    Saliency,
    SaliencyConfig,
    absolute_budget_loss,
    build_saliency,
    squared_budget_loss,
)
from skipqa.pipeline import Pipeline
from skipqa.training.loop import Decay, LearningRate, Phase, fit
from skipqa.training.pathway.collapse import openness
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records, replay
from skipqa.training.sampling import inverse_frequency
from skipqa.types import Budget

S = TypeVar("S", bound=Saliency)
SCALE, BETA = 20.0, 10.0
PAPER_RHO = 0.11  # of the tokens
AT = 4  # recall is counted among so many passages
SPLITS = ("held-out", "val")  # the first decides, the other is reported


@dataclass(frozen=True, slots=True)
class SaliencyTraining:
    steps: Count = 600
    lr: LearningRate = 1e-3  # the paper's 5e-5 is for 5,000 steps at d = 4096
    warmup: CountOrNone = 50
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
    """z_j of the head of this file, [B, K]."""
    fit_BVK = BETA * tokens_BVd @ passages_BKd.transpose(1, 2)
    let_BV1 = gates_BV.clamp_min(1e-6).log()[..., None]
    best_BK = (fit_BVK + let_BV1).logsumexp(1) - gates_BV.sum(1).clamp_min(1e-6).log()[:, None]
    topic_BK = (passages_BKd @ question_Bd[..., None])[..., 0]
    return SCALE * (topic_BK + best_BK / BETA)


def gold_loss(logits_BK: Tensor, gold_BK: Tensor, there_BK: Tensor) -> Tensor:
    """Cross-entropy where several may be right: minus the logarithm of their share."""
    logits = logits_BK.masked_fill(~there_BK, -torch.inf)
    right = logits.masked_fill(~gold_BK, -torch.inf)
    return (logits.logsumexp(1) - right.logsumexp(1)).mean()


def things(records: Records) -> Tensor:
    """[N, V] bool: the tokens that show what is asked about; none where its place is not known."""
    found = torch.zeros(records["meaning"].shape[:2], dtype=torch.bool)
    for i, about in enumerate(records.about):
        if about["box"] is not None:
            found[i] = in_box(about["box"], records.grid)
    return found


def thing_loss(logits_BV: Tensor, inside_BV: Tensor) -> Tensor:
    """Cross-entropy of the token that shows the thing, where it is known which tokens do."""
    placed = inside_BV.any(1)
    if not bool(placed.any()):
        return logits_BV.new_zeros(())
    return gold_loss(logits_BV[placed], inside_BV[placed], torch.ones_like(inside_BV[placed]))


def open_gates(logits: Tensor, temperature: float, seed: int, step: int) -> Tensor:
    """Each token's own yes or no, relaxed: nothing but the regulariser says how many there are, so
    that all may open or shut. Answering takes the V' best instead."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return gumbel_sigmoid(logits, temperature, logistic_noise(logits, generator))


def budget_loss(settings: SaliencyTraining, logits: Tensor, rho: float) -> Tensor:
    kind = squared_budget_loss if settings.regulariser == "squared" else absolute_budget_loss
    return kind(logits, rho)


class Blind(Saliency):
    """The keep head in QVS's place: it is handed the question and does not look."""

    def __init__(self, head: KeepHead) -> None:
        super().__init__(SaliencyConfig(head.config.width, hidden=head.config.hidden))
        self.head = head

    def forward(self, visual: Tensor, question: Tensor) -> Tensor:
        return self.head(visual)


def run(context: TrainingContext, settings: SaliencyTraining) -> dict[str, Any]:
    """The stage: train, compare, leave; then the same for the rival."""
    if "saliency" not in context.run.metrics():
        saliency = train(context, settings)
        compared = _compared(context, saliency)
        ships = is_as_good(compared["held-out"], kept_tokens(context))
        context.leave(saliency, "saliency", ships=ships)
        context.run.finish("saliency", {"ships": ships, **compared})
    if "keep_head" not in context.run.metrics():
        blind = train_blind(context, settings)
        compared = _compared(context, blind)
        context.leave(blind.head, "keep_head", ships=True)  # answers nothing: it need not win
        context.run.finish("keep_head", compared)
    return context.run.metrics()


def build(context: TrainingContext, settings: SaliencyTraining) -> Saliency:
    width = context.records["question"].shape[1]
    torch.manual_seed(context.run.seed)
    return build_saliency(SaliencyConfig(width, settings.variant, settings.hidden))


def loss_of(
    context: TrainingContext, saliency: Saliency, settings: SaliencyTraining, found: Candidates
) -> Callable[[int], Tensor]:
    records, run = context.records, context.run
    rows = context.rows("train", gold=True)
    draw = inverse_frequency(rows, context.categories(rows), settings.batch, run.seed)
    rho = kept_tokens(context) / records["meaning"].shape[1]
    inside = things(records)

    def loss(step: int) -> Tensor:
        some = draw(step)
        tokens, question = records["meaning"][some].float(), records["question"][some].float()
        logits = saliency(tokens, question)
        gates = open_gates(logits, settings.temperature, run.seed, step)
        passages = records.table.embeddings[found.rows[some]]
        z = passage_logits(question, tokens, gates, passages)
        chosen = gold_loss(z, found.gold[some], found.there[some])
        return chosen + thing_loss(logits, inside[some]) + budget_loss(settings, logits, rho)

    return loss


def kept_tokens(context: TrainingContext) -> int:
    """V' of the V that a closer look gives."""
    return context.pipeline.config.budget.most_tokens(context.records["meaning"].shape[1])


def train(context: TrainingContext, settings: SaliencyTraining) -> Saliency:
    return _fit("saliency", build(context, settings), context, settings)


def train_blind(context: TrainingContext, settings: SaliencyTraining) -> Blind:
    """As wide as QVS, so that to score a token costs about as much."""
    torch.manual_seed(context.run.seed)
    head = KeepHead(KeepHeadConfig(context.records["meaning"].shape[2], settings.hidden))
    return _fit("keep_head", Blind(head), context, settings)


def _fit(name: str, saliency: S, context: TrainingContext, settings: SaliencyTraining) -> S:
    loss = loss_of(context, saliency, settings, candidates(context.records))
    phase = Phase(settings.steps, settings.lr, settings.warmup)
    return fit(name, saliency, loss, phase, context.run, weight_decay=settings.weight_decay)


@torch.inference_mode()
def gates_open(context: TrainingContext, saliency: Saliency, rows: Sequence[int]) -> Tensor:
    """sigmoid(s_i) of all tokens of these questions, [n, V]."""
    records = context.records
    parts = torch.tensor(rows).split(64)
    return torch.cat(
        [saliency(records["meaning"][p].float(), records["question"][p].float()) for p in parts]
    ).sigmoid()


def _compared(context: TrainingContext, saliency: Saliency) -> dict[str, Any]:
    return {
        split: compare(context, saliency, split)
        for split in SPLITS
        if context.rows(split, gold=True)
    }


def compare(
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
                    quality(
                        context, rows, [Trial(count, saliency, query), Trial(count, None, query)]
                    ),
                    strict=True,
                )
            )
            for count in counts
        },
    }


@dataclass(frozen=True, slots=True)
class Trial:
    """How questions are sent through the stages again."""

    tokens: int
    saliency: Saliency | None
    query: SparseRegionQuery | DenseRegionQuery | None


def quality(
    context: TrainingContext, rows: Sequence[int], trials: Sequence[Trial]
) -> list[dict[str, float]]:
    """Of each trial, on the same questions."""
    found = context.spread(_try, rows, "pruning questions", trials)
    return [
        {
            f"recall@{AT}": _mean([one[n][0] for one in found]),
            "box_kept": _mean([kept for one in found if (kept := one[n][1]) is not None]),
        }
        for n in range(len(trials))
    ]


def _try(
    pipeline: Pipeline, records: Records, trials: Sequence[Trial]
) -> list[list[tuple[bool, float | None]]]:
    """For each question and trial: is a gold passage found, how much of the thing's box is kept?"""
    return [[_find(pipeline, records, i, trial) for trial in trials] for i in range(len(records))]


def _find(pipeline: Pipeline, records: Records, i: int, trial: Trial) -> tuple[bool, float | None]:
    allowed, about = Budget(trial.tokens, pipeline.config.budget.passages), records.about[i]
    again = replay(records, i, pipeline, allowed, trial.saliency, trial.query)
    ids = {one.passage.id for one in again.retrieved.passages[:AT]}
    fraction = None
    if about["box"] is not None:
        inside = in_box(about["box"], records.grid)
        fraction = float(inside[again.kept.positions].sum() / inside.sum().clamp(min=1))
    return not ids.isdisjoint(about["gold"]), fraction


def in_box(box: Sequence[float], grid: int) -> Tensor:
    """[V] bool: the tokens whose middle lies in the box; at least the one nearest to its own."""
    left, top, right, bottom = box
    middles = (torch.arange(grid) + 0.5) / grid
    across, down = (middles >= left) & (middles <= right), (middles >= top) & (middles <= bottom)
    if not bool(across.any()):
        across[min(grid - 1, int((left + right) / 2 * grid))] = True
    if not bool(down.any()):
        down[min(grid - 1, int((top + bottom) / 2 * grid))] = True
    return (down[:, None] & across[None, :]).flatten()


def is_as_good(compared: dict[str, Any], most_tokens: int) -> bool:
    """Ships if at the budget of answering it finds at least as many passages and keeps at least
    as much of the thing."""
    here = compared["by_tokens"][str(most_tokens)]
    return not compared["gates"]["collapsed"] and all(
        here["trained"][name] >= here["training_free"][name] for name in here["trained"]
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
