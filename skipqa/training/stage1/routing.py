"""The drafter and the reader together: whose answer counts how much, and when drafts are enough.

Enters: the drafter's log-probabilities and the reader. Leaves: accuracies of joint answers by the
weight of the drafter, and the confidence above which the drafter answers alone. The weight is the
best one on held-out questions, and the same for every other set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)  # of the drafter next to the reader


@dataclass(frozen=True, slots=True)
class Drafted:
    answers: Sequence[str]  # the vocabulary; the first answer is to abstain
    log_probs: Tensor  # [rows, answers], calibrated


@dataclass(frozen=True, slots=True)
class Candidates:
    """Answers to Q questions by C candidates each, the drafter's best first, the reader's last."""

    drafted_QC: Tensor  # the drafter's log-probability
    read_QC: Tensor  # the reader's
    score_QC: Tensor  # how right it is
    abstain_prob_Q: Tensor  # the drafter's
    confidence_Q: Tensor  # of the drafter in its best answer

    def chosen(self, weight: float) -> Tensor:
        """The scores [Q] of the answers with the best joint log-probability."""
        weight_Q1 = weight * (1 - self.abstain_prob_Q)[:, None]
        best = (self.read_QC + weight_Q1 * self.drafted_QC).argmax(1, keepdim=True)
        return self.score_QC.gather(1, best)[:, 0]

    def alone(self) -> tuple[Tensor, Tensor]:
        """The drafter's confidence in its best answer, and that answer's score, [Q]."""
        return self.confidence_Q, self.score_QC[:, 0]


def gather(
    decoder: Llama,
    prompts: Prompts,
    examples: Sequence[TrainExample],
    rows: Sequence[int],
    drafter: Drafted,
    counted: Counted = lambda *_: None,
) -> Candidates:
    """The drafter's best answers to the questions `rows`, and the reader's own."""
    answers, log_probs = drafter.answers, drafter.log_probs
    best = log_probs[:, 1:].cpu().topk(min(DRAFTED, len(answers) - 1))
    own = reader.generate(decoder, prompts, rows)
    given = [
        [*(answers[i + 1] for i in indices), text]
        for indices, text in zip(best.indices.tolist(), own, strict=True)
    ]
    vocabulary = frozenset(answers)
    # As in answering: an answer of the vocabulary that was not drafted has the support of the last
    # draft, any other that of the best.
    support = [
        values[texts.index(texts[-1]) if texts[-1] in texts[:-1] else -1]
        if texts[-1] in vocabulary
        else values[0]
        for values, texts in zip(best.values.tolist(), given, strict=True)
    ]
    drafted = torch.cat((best.values, torch.tensor(support)[:, None]), dim=1)
    pairs = [(row, text) for row, texts in zip(rows, given, strict=True) for text in texts]
    read = reader.log_probs(decoder, prompts, pairs, counted).view(len(rows), -1)
    silent = torch.tensor([[not text for text in texts] for texts in given])
    read = read.masked_fill(silent, float("-inf"))  # an empty completion is no answer
    scores = [examples[row].answers.get(text, 0.0) for row, text in pairs]
    score = torch.tensor(scores).view(len(rows), -1)
    probs = best.values[:, 0].exp().tolist()
    sure = [above_chance(texts[0], prob) for texts, prob in zip(given, probs, strict=True)]
    abstain_prob = log_probs[:, 0].exp().cpu()
    return Candidates(drafted, read, score, abstain_prob, torch.tensor(sure))


def choose_weight(sets: Mapping[str, Candidates], held_out: str) -> tuple[float, dict[str, Any]]:
    """The weight, and the accuracy of each weight on every set of questions."""
    by_weight = {
        name: {weight: float(candidates.chosen(weight).mean()) for weight in WEIGHTS}
        for name, candidates in sets.items()
    }
    best = max(WEIGHTS, key=by_weight[held_out].__getitem__)
    found = {
        name: {"by_weight": {str(w): a for w, a in some.items()}, "accuracy": some[best]}
        for name, some in by_weight.items()
    }
    return best, found


def open_fast_path(
    sets: Mapping[str, Candidates], held_out: Sequence[str], weight: float
) -> tuple[float, dict[str, Any]]:
    """The threshold that drafts most on all of `held_out` together while losing at most a point,
    and no more than `MOST_DRAFTED`; and for every set the fraction drafted and the accuracy."""

    def both(names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        alone = [sets[name].alone() for name in names]
        full = torch.cat([sets[name].chosen(weight) for name in names])
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
