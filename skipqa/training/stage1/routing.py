"""The drafter and the reader together: whose answer counts how much, and who is asked at all.

Enters: the drafter's log-probabilities and the reader. Leaves: accuracies of joint answers by the
weight of the drafter's opinion, and the confidence above which the drafter may answer alone. The
weight is the one that does best on held-out questions, for every other set alike.
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
from skipqa.training.run import Counted
from skipqa.training.stage1 import reader
from skipqa.training.stage1.mixture import Example
from skipqa.training.stage1.reader import Prompts

DRAFTED = DraftConfig().candidates  # that the reader weighs
# Of the held-out questions. A thousand of them cannot tell a point from none: where the drafter
# is less sure than here it may lose more on others.
MOST_DRAFTED = 0.4
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)  # of the drafter's opinion beside the reader's


@dataclass(frozen=True, slots=True)
class Candidates:
    """Answers to Q questions by C candidates each, the drafter's best first, the reader's last."""

    drafted_QC: Tensor  # the drafter's log-probability
    read_QC: Tensor  # the reader's
    score_QC: Tensor  # how right it is
    abstain_prob_Q: Tensor  # how sure the drafter is that the answer has to be looked up
    confidence_Q: Tensor  # of the drafter in its best answer

    def chosen(self, weight: float) -> Tensor:
        """The scores [Q] of the answers that both together prefer."""
        say_Q1 = weight * (1 - self.abstain_prob_Q)[:, None]
        best = (self.read_QC + say_Q1 * self.drafted_QC).argmax(1, keepdim=True)
        return self.score_QC.gather(1, best)[:, 0]

    def alone(self) -> tuple[Tensor, Tensor]:
        """The drafter's confidence in its best answer, and that answer's score, [Q]."""
        return self.confidence_Q, self.score_QC[:, 0]


def gather(
    decoder: Llama,
    prompts: Prompts,
    examples: Sequence[Example],
    rows: Sequence[int],
    log_probs: Tensor,
    answers: Sequence[str],
    counted: Counted = lambda *_: None,
) -> Candidates:
    """`log_probabilities` [rows, answers] are the drafter's, calibrated; the first answer, to look
    it up, is none."""
    best = log_probs[:, 1:].cpu().topk(min(DRAFTED, len(answers) - 1))
    own = reader.generate(decoder, prompts, rows)
    given = [
        [*(answers[i + 1] for i in indices), text]
        for indices, text in zip(best.indices.tolist(), own, strict=True)
    ]
    vocabulary = frozenset(answers)
    # As in answering: what the drafter knows and did not draft has the support of the last, what
    # it does not know that of the best.
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
    read = read.masked_fill(silent, float("-inf"))  # no reply is no answer
    scores = [examples[row].answers.get(text, 0.0) for row, text in pairs]
    score = torch.tensor(scores).view(len(rows), -1)
    probs = best.values[:, 0].exp().tolist()
    sure = [above_chance(texts[0], prob) for texts, prob in zip(given, probs, strict=True)]
    abstain_prob = log_probs[:, 0].exp().cpu()
    return Candidates(drafted, read, score, abstain_prob, torch.tensor(sure))


def loglikelihood(sets: Mapping[str, Candidates], held_out: str) -> tuple[float, dict[str, Any]]:
    """The weight, and for every set of questions what each weight gives."""
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
    """The threshold that drafts most on all of `held_out` together for at most a point lost, but
    no more than `MOST_DRAFTED`; and for every set how many questions it answers and what the
    whole then is."""

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
