"""The drafter and the reader together: how their answers are ranked, and when drafts are enough.

Enters: the drafter's log-probabilities and the reader. Leaves: the weights by which candidates are
ranked, and the confidence above which the drafter answers alone. Both are chosen on held-out
questions, and are the same for every other set. How answers are ranked when a question is answered
is in `stages/readers.py`; the ranking here is the same, of many questions at once.

Shape letters: Q questions, C candidates, F features besides the reader's log-probability.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skipqa.backbones.networks.llama import Llama
from skipqa.config import DraftConfig
from skipqa.nn.drafter import above_chance, calibrate_threshold
from skipqa.training.example import TrainExample
from skipqa.training.run import Counted
from skipqa.training.stage1 import reader
from skipqa.training.stage1.reader import Prompts

DRAFTED = DraftConfig().candidates  # that the reader scores
# Of the held-out questions. A thousand of them cannot tell a loss of one point from none: where the
# drafter is less confident it may lose more on others.
MOST_DRAFTED = 0.4
GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)  # weights of the drafter, where nothing else counts
FOLDS = 5
STEPS = 300
# On the weights and on the log of the inverse temperature. The objective lies in [0, 1], so no
# weight can exceed 1 / sqrt(L2) by much, however few the questions.
L2 = 1e-3


@dataclass(frozen=True, slots=True)
class RankingWeights:
    """As in `DecodeConfig`; the reader's log-probability has weight 1."""

    drafter_weight: float
    frequency_weight: float = 0.0
    own_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Drafted:
    vocabulary: Mapping[str, float]  # the log-frequency of each answer; the first is to abstain
    log_probs: Tensor  # [rows, answers], calibrated


@dataclass(frozen=True, slots=True)
class Candidates:
    """Answers to Q questions by C candidates each, the drafter's best first, the reader's last.

    An empty answer of the reader, and one that the drafter also gave, has a log-probability of
    minus infinity: the first is no answer, the second already stands among the drafter's.
    """

    drafted_QC: Tensor  # the drafter's log-probability
    read_QC: Tensor  # the reader's
    log_frequency_QC: Tensor  # among training answers
    own_QC: Tensor  # whether it is what the reader says, drafted or not
    score_QC: Tensor  # how right it is
    abstain_prob_Q: Tensor  # the drafter's
    confidence_Q: Tensor  # of the drafter in its best answer
    photo_Q: Tensor

    def __len__(self) -> int:
        return len(self.score_QC)

    def only(self, questions: Tensor) -> Candidates:
        """Those of a mask [Q] or of rows."""
        every = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return Candidates(**{name: value[questions] for name, value in every})

    def features(self) -> Tensor:
        """[Q, C, F] in the order of `RankingWeights`."""
        drafted_QC = (1 - self.abstain_prob_Q)[:, None] * self.drafted_QC
        features = (drafted_QC, self.log_frequency_QC, self.own_QC)
        return torch.stack([some.double() for some in features], dim=-1)

    def chosen(self, weights: RankingWeights) -> Tensor:
        """The scores [Q] of the answers that rank first."""
        weights_F = torch.tensor(dataclasses.astuple(weights), dtype=torch.float64)
        best = (self.read_QC.double() + self.features() @ weights_F).argmax(1, keepdim=True)
        return self.score_QC.gather(1, best)[:, 0]

    def accuracy(self, weights: RankingWeights) -> float:
        return float(self.chosen(weights).mean())

    def alone(self) -> tuple[Tensor, Tensor]:
        """The drafter's confidence in its best answer, and that answer's score, [Q]."""
        return self.confidence_Q, self.score_QC[:, 0]


def concatenated(parts: Sequence[Candidates]) -> Candidates:
    names = [field.name for field in dataclasses.fields(Candidates)]
    return Candidates(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})


def gather(
    decoder: Llama,
    prompts: Prompts,
    examples: Sequence[TrainExample],
    rows: Sequence[int],
    drafter: Drafted,
    counted: Counted = lambda *_: None,
) -> Candidates:
    """The drafter's best answers to the questions `rows`, and the reader's own."""
    vocabulary, log_probs = drafter.vocabulary, drafter.log_probs
    answers, rarest = list(vocabulary), min(vocabulary.values())
    best = log_probs[:, 1:].cpu().topk(min(DRAFTED, len(answers) - 1))
    own = reader.generate(decoder, prompts, rows)
    given = [
        [*(answers[i + 1] for i in indices), text]
        for indices, text in zip(best.indices.tolist(), own, strict=True)
    ]
    # As in answering: an answer of the vocabulary that was not drafted has the support of the last
    # draft, any other that of the best.
    support = [
        values[texts.index(texts[-1]) if texts[-1] in texts[:-1] else -1]
        if texts[-1] in vocabulary
        else values[0]
        for values, texts in zip(best.values.tolist(), given, strict=True)
    ]
    drafted = torch.cat((best.values, torch.tensor(support)[:, None]), dim=1)
    frequency = torch.tensor([[vocabulary.get(t, rarest) for t in texts] for texts in given])
    pairs = [(row, text) for row, texts in zip(rows, given, strict=True) for text in texts]
    read = reader.log_probs(decoder, prompts, pairs, counted).view(len(rows), -1)
    left_out = torch.zeros_like(read, dtype=torch.bool)
    left_out[:, -1] = torch.tensor([not t[-1] or t[-1] in t[:-1] for t in given])
    scores = [examples[row].answers.get(text, 0.0) for row, text in pairs]
    probs = best.values[:, 0].exp().tolist()
    sure = [above_chance(texts[0], prob) for texts, prob in zip(given, probs, strict=True)]
    return Candidates(
        drafted,
        read.masked_fill(left_out, float("-inf")),
        frequency,
        torch.tensor([[text == texts[-1] for text in texts] for texts in given]),
        torch.tensor(scores).view(len(rows), -1),
        log_probs[:, 0].exp().cpu(),
        torch.tensor(sure),
        torch.tensor([examples[row].photo for row in rows]),
    )


def choose_weights(held_out: Candidates) -> tuple[RankingWeights, dict[str, Any]]:
    """All weights fitted, or that of the drafter alone, the best on a grid: the fitted ones if they
    are at least as good on photos that they were not fitted on."""
    ways = {"grid": best_on_grid, "fitted": fit}
    found = {name: choose(held_out) for name, choose in ways.items()}
    accuracies = {name: cross_validated(held_out, choose) for name, choose in ways.items()}
    several = len(held_out.photo_Q.unique()) > 1  # of one photo nothing follows for others
    way = "fitted" if several and accuracies["fitted"] >= accuracies["grid"] else "grid"
    return found[way], {
        "chosen": way,
        "cross_validated": accuracies,
        "weights": {name: dataclasses.asdict(weights) for name, weights in found.items()},
        "by_drafter_weight": {str(w): held_out.accuracy(RankingWeights(w)) for w in GRID},
    }


def best_on_grid(candidates: Candidates) -> RankingWeights:
    return max(map(RankingWeights, GRID), key=candidates.accuracy)


def fit(candidates: Candidates) -> RankingWeights:
    """The weights with the largest expected score, where an answer is drawn from the softmax of the
    ranking at a temperature that is fitted as well."""
    absent_QC = candidates.read_QC.isinf()
    read_QC = candidates.read_QC.double().masked_fill(absent_QC, 0.0)
    features_QCF, score_QC = candidates.features(), candidates.score_QC.double()
    start = dataclasses.astuple(best_on_grid(candidates))
    weights_F = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    log_scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights_F, log_scale], max_iter=STEPS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        ranking_QC = log_scale.exp() * (read_QC + features_QCF @ weights_F)
        prob_QC = ranking_QC.masked_fill(absent_QC, float("-inf")).softmax(1)
        penalty = L2 * (weights_F.square().sum() + log_scale.square())
        value: Tensor = penalty - (prob_QC * score_QC).sum(1).mean()
        value.backward()
        return value

    optimiser.step(loss)
    return RankingWeights(*(round(weight, 3) for weight in weights_F.tolist()))


def cross_validated(
    candidates: Candidates, choose: Callable[[Candidates], RankingWeights]
) -> float:
    """The accuracy on photos that the weights were not chosen on; questions whose photo is the only
    one count as wrong."""
    _, place_Q = candidates.photo_Q.unique(return_inverse=True)
    fold_Q, total = place_Q % FOLDS, 0.0
    for fold in fold_Q.unique().tolist():
        others = candidates.only(fold_Q != fold)
        if len(others):
            total += float(candidates.only(fold_Q == fold).chosen(choose(others)).sum())
    return total / len(candidates)


def accuracy_by_type(
    candidates: Candidates, weights: RankingWeights, types: Sequence[str | None]
) -> dict[str, float]:
    """Of the questions that have one."""
    score_Q = candidates.chosen(weights)
    return {
        type: float(score_Q[torch.tensor([one == type for one in types])].mean())
        for type in sorted({one for one in types if one is not None})
    }


def open_fast_path(
    sets: Mapping[str, Candidates], held_out: Sequence[str], weights: RankingWeights
) -> tuple[float, dict[str, Any]]:
    """The threshold that drafts most on all of `held_out` together while losing at most a point,
    and no more than `MOST_DRAFTED`; and for every set the fraction drafted and the accuracy."""

    def both(names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        alone = [sets[name].alone() for name in names]
        full = torch.cat([sets[name].chosen(weights) for name in names])
        return torch.cat([c for c, _ in alone]), torch.cat([s for _, s in alone]), full

    confidence, score, full = both(held_out)
    enough = float(confidence.quantile(1 - MOST_DRAFTED))
    allowed = score.masked_fill(confidence <= enough, float("-inf"))
    threshold = max(enough, calibrate_threshold(confidence, allowed, full).threshold)
    found = {}
    for name in sets:
        confidence, score, full = both([name])
        fast = confidence > threshold
        found[name] = {
            "rate": float(fast.float().mean()),
            "accuracy": float(torch.where(fast, score, full).mean()),
            "full": float(full.mean()),
            "drafter": float(score.mean()),
        }
    return threshold, found
