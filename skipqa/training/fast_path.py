"""The threshold of the fast path, chosen through the whole pipeline on held-out questions.

Enters: components, OK-VQA's questions on held-out photos and, a quarter as many, perceptual ones
of COCO. Each goes the full path whatever the drafter says; then every threshold is known: how many
questions the drafter would answer alone, and what that loses. Leaves: the components with
`draft.threshold` in their `settings.toml`. Four questions in ten are drafted, or fewer where that
would lose more than a point. Counting questions have a threshold of their own, the lowest that
loses nothing on those of COCO, and never a lower one than others: some count what no photo shows.
With few of them it is the same. `benchmarks/fast_path.py` measures the first on validation
questions, on which nothing is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from skipqa.config import Config, Count, Fraction, NonNegative
from skipqa.data.held_out import Split
from skipqa.evaluation.statistics import paired_bootstrap
from skipqa.nn.drafter import calibrate_threshold
from skipqa.stages.draft import is_counting
from skipqa.training.answered import Answered, Asked, by_source, sample
from skipqa.training.held_out_stage import Fitted, HeldOutStage
from skipqa.training.pipelines import Source
from skipqa.training.stage import Inputs, Metrics
from skipqa.training.stage1.mixture import Mixture

PERCEPTUAL: dict[Split, str] = {"held-out": "coco", "val": "vqav2"}


@dataclass(frozen=True, slots=True)
class FastPathSettings:
    questions: Count = 900  # of OK-VQA: all that are held out
    perceptual_ratio: Count = 4  # one perceptual question for so many of these
    drafted: Fraction = 0.4  # of the questions, at most
    max_loss: Fraction = 0.01  # of accuracy
    counting: NonNegative = 240  # more questions of COCO that ask how many
    least_counting: Count = 100  # with fewer, counting has no threshold of its own
    workers: NonNegative = 0  # processes; 0: as many as there are cores

    def counts(self, split: Split) -> dict[str, int]:
        """Questions of each source: OK-VQA's, then perceptual ones."""
        return {
            "okvqa": self.questions,
            PERCEPTUAL[split]: self.questions // self.perceptual_ratio,
        }


@dataclass(frozen=True, slots=True)
class FastPathStage(HeldOutStage[FastPathSettings]):
    def source(self, inputs: Inputs) -> Source:
        # The default index, as people ask with it: neither kind of question needs Pocket-KB's
        return Source(inputs.preset, inputs.components)

    def fit(
        self,
        asked: Sequence[Asked],
        answered: Answered,
        config: Config,
        settings: FastPathSettings,
    ) -> Fitted:
        rows = range(len(asked))
        counting = [row for row in rows if is_counting(asked[row][1].question)]
        if len(counting) < settings.least_counting:
            threshold = choose(answered, settings)
            chosen = {"threshold": threshold, "counting_threshold": threshold}
            return Fitted({"draft": chosen}, {"chosen": summary(answered, asked, threshold)})
        others = [row for row in rows if row not in set(counting)]
        of_others, of_counting = answered.select(others), answered.select(counting)
        threshold = choose(of_others, settings)
        own = max(threshold, choose_counting(of_counting))  # as in the paper, at least as sure
        chosen = {"threshold": threshold, "counting_threshold": own}
        metrics = {
            "chosen": summary(of_others, [asked[row] for row in others], threshold),
            "counting": {"own": routed(of_counting, own), "same": routed(of_counting, threshold)},
        }
        return Fitted({"draft": chosen}, metrics)

    def draw(self, mixed: Mixture, settings: FastPathSettings, seed: int) -> list[Asked]:
        """Also questions of COCO that ask how many, of which chance draws few."""
        asked = sample(mixed, "held-out", settings.counts("held-out"), seed)
        known = {(photo, example.question) for photo, example in asked}
        every = sample(mixed, "held-out", {PERCEPTUAL["held-out"]: len(mixed.examples)}, seed)
        more = [
            (photo, example)
            for photo, example in every
            if is_counting(example.question) and (photo, example.question) not in known
        ]
        return asked + more[: settings.counting]


STAGE = FastPathStage("fast_path", FastPathSettings(), of_decoder=True)


def choose(answered: Answered, settings: FastPathSettings) -> float:
    """The lowest threshold that drafts no more than allowed and loses no more than allowed."""
    confidence = answered.confidence
    affordable = calibrate_threshold(
        confidence, answered.drafted, answered.full, settings.max_loss
    ).threshold
    return max(affordable, float(confidence.quantile(1 - settings.drafted)))


def choose_counting(answered: Answered) -> float:
    """The lowest threshold at which drafts of counting questions lose nothing."""
    return calibrate_threshold(
        answered.confidence, answered.drafted, answered.full, max_loss=0.0
    ).threshold


def routed(answered: Answered, threshold: float) -> Metrics:
    """The fraction drafted at a threshold, and the accuracy next to the full path's."""
    fast = answered.confidence > threshold
    scores = torch.where(fast, answered.drafted, answered.full)
    return {
        "threshold": threshold,
        "questions": len(answered),
        "rate": float(fast.float().mean()),
        "full": float(answered.full.mean()),
        "accuracy": float(scores.mean()),
        "gain": asdict(paired_bootstrap(scores.tolist(), answered.full.tolist())),
    }


def summary(answered: Answered, asked: Sequence[Asked], threshold: float) -> Metrics:
    """At one threshold, for all questions and by source."""
    groups = by_source(asked)
    return {name: routed(answered.select(rows), threshold) for name, rows in groups.items()}
