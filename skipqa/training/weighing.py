"""The drafter and the reader together: whose answer counts how much, and who is asked at all.

Enters: the drafter's log-probabilities and the reader. Leaves: accuracies of joint answers by the
weight of the drafter's opinion, and the confidence above which the drafter may answer alone. The
weight is the one that does best on held-out questions, for every other set alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skipqa.backbones.llama import Llama
from skipqa.config import DraftConfig
from skipqa.nn.drafter import calibrate_threshold
from skipqa.training import reader
from skipqa.training.mixture import Example
from skipqa.training.reader import Prompts
from skipqa.training.run import Counted

DRAFTED = DraftConfig().candidates  # that the reader weighs
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)  # of the drafter's opinion beside the reader's


@dataclass(frozen=True, slots=True)
class Candidates:
    """Answers to Q questions by C candidates each, the drafter's best first, the reader's last."""

    drafted_QC: Tensor  # the drafter's log-probability
    read_QC: Tensor  # the reader's
    score_QC: Tensor  # how right it is

    def chosen(self, weight: float) -> Tensor:
        """The scores [Q] of the answers that both together prefer."""
        best = (self.read_QC + weight * self.drafted_QC).argmax(1, keepdim=True)
        return self.score_QC.gather(1, best)[:, 0]


def gather(
    decoder: Llama,
    prompts: Prompts,
    examples: Sequence[Example],
    rows: Sequence[int],
    log_probabilities: Tensor,
    answers: Sequence[str],
    counted: Counted = lambda *_: None,
) -> Candidates:
    """`log_probabilities` [rows, answers] are the drafter's, calibrated."""
    best = log_probabilities.cpu().topk(min(DRAFTED, len(answers)))
    # The reader's own answer stands too, with as little support as the least of the others.
    drafted = torch.cat((best.values, best.values[:, -1:]), dim=1)
    own = reader.generate(decoder, prompts, rows)
    given = [
        [*(answers[i] for i in indices), text]
        for indices, text in zip(best.indices.tolist(), own, strict=True)
    ]
    pairs = [(row, text) for row, texts in zip(rows, given, strict=True) for text in texts]
    read = reader.log_probabilities(decoder, prompts, pairs, counted).view(len(rows), -1)
    scores = [examples[row].answers.get(text, 0.0) for row, text in pairs]
    return Candidates(drafted, read, torch.tensor(scores).view(len(rows), -1))


def weigh(sets: Mapping[str, Candidates], held_out: str) -> dict[str, Any]:
    """For every set of questions what each weight gives, and what the chosen one does."""

    def accuracies(candidates: Candidates) -> list[float]:
        return [float(candidates.chosen(weight).mean()) for weight in WEIGHTS]

    on_held_out = accuracies(sets[held_out])
    place = max(range(len(WEIGHTS)), key=on_held_out.__getitem__)
    found: dict[str, Any] = {}
    for name, candidates in sets.items():
        by_weight = accuracies(candidates)
        confidence, alone = candidates.drafted_QC[:, 0].exp(), candidates.score_QC[:, 0]
        routed = calibrate_threshold(confidence, alone, candidates.chosen(WEIGHTS[place]))
        found[name] = {
            "by_weight": {str(w): a for w, a in zip(WEIGHTS, by_weight, strict=True)},
            "weight": WEIGHTS[place],
            "accuracy": by_weight[place],
            "route": dataclasses.asdict(routed),
        }
    return found
