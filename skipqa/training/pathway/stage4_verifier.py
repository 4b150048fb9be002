"""Stage IV: the verifier (SKV) learns which retrieved passages help the reader to the answer.

Enters: gathered records of all data sets. Leaves: a verifier, the threshold and the least number
of passages that go with it, and how it compares with the training-free verdict on held-out
questions. The paper's label is the dense oracle's: how often the answer is right with passage j
alone, relative to all passages (eq. D.4). Here a passage that is known to be gold has label 1;
where gold passages are not named, the label is how much likelier the passage makes the right
answers (`verifier_cases.labelled` has the rule, `gains.py` the measure). Data sets count alike,
whatever their size, and in each of them categories, and photos that stage I never saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skipqa.nn.verifier import Verifier, VerifierConfig, distillation_loss
from skipqa.stages.signals import SIGNALS
from skipqa.training.loop import Loss, Optimisation
from skipqa.training.pathway import gains
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.gains import Gains
from skipqa.training.pathway.pair_verifier import PAIR_FILES, PairPart
from skipqa.training.pathway.stage import PathwayPart, PathwaySettings, PathwayStage
from skipqa.training.pathway.verifier_cases import Cases, cases_with_gains
from skipqa.training.pathway.verifier_quality import (
    best_threshold,
    by_source,
    compare_min_passages,
    compare_verifiers,
)
from skipqa.training.pathway.verifier_settings import VerifierTraining
from skipqa.training.sampling import nested_inverse_frequency
from skipqa.training.stage import Metrics

SPLITS = ("held-out", "val")  # the first decides, the other is reported


@dataclass(frozen=True, slots=True)
class VerifierInputs:
    cases: Cases
    gains: Gains


class VerifierPart(PathwayPart[VerifierTraining, VerifierInputs, Verifier]):
    name = "verifier"

    def prepare(self, context: TrainingContext, settings: VerifierTraining) -> VerifierInputs:
        measured = gains.load_or_measure(context, settings.oracle_questions)
        compared = [i for split in SPLITS for i in context.records.select(split)]
        return VerifierInputs(cases_with_gains(context, measured, compared), measured)

    def build(self, context: TrainingContext, settings: VerifierTraining) -> Verifier:
        width = context.records["question"].shape[1]
        torch.manual_seed(context.run.seed)
        config = VerifierConfig(
            width, width, settings.hidden, SIGNALS, settings.dropout, settings.rivals
        )
        return Verifier(config)

    def loss(
        self,
        context: TrainingContext,
        settings: VerifierTraining,
        data: VerifierInputs,
        model: Verifier,
    ) -> Loss:
        cases, about = data.cases, context.records.about
        rows = [i for i in context.records.select("train") if bool(cases.known[i].any())]
        # Stage I is overconfident about the photos it was trained on: the others count as much
        kinds = [
            (one["source"], one["category"], str(one["fresh"])) for one in (about[i] for i in rows)
        ]
        draw = nested_inverse_frequency(rows, kinds, settings.batch, context.run.seed)

        def loss(step: int) -> Tensor:
            batch = draw(step)
            known = cases.known[batch]
            return distillation_loss(cases.logits(model, batch)[known], cases.labels[batch][known])

        return loss

    def optimisation(self, settings: VerifierTraining) -> Optimisation:
        return Optimisation(settings.steps, settings.lr, settings.warmup, settings.weight_decay)

    def compare(
        self,
        context: TrainingContext,
        settings: VerifierTraining,
        data: VerifierInputs,
        model: Verifier,
    ) -> Metrics:
        cases = data.cases
        held_out, val = (_labelled(context, cases, split) for split in SPLITS)
        threshold = best_threshold(model, cases, held_out)
        with torch.inference_mode():
            nu = cases.logits(model, torch.arange(len(context.records))).sigmoid()
        return {
            "threshold": threshold,
            "gains": summary(context, data.gains),
            "min_passages": compare_min_passages(context, nu, data.gains, held_out, threshold),
            "held-out": compare_verifiers(context, model, cases, held_out, threshold),
            "val": compare_verifiers(context, model, cases, val, threshold) if val else None,
        }

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        trained, free = (compared["held-out"][how] for how in ("trained", "training_free"))
        return {"verifier": all(trained[name] >= free[name] for name in ("f1", "read"))}

    def chosen_settings(
        self, context: TrainingContext, compared: Metrics, ships: Mapping[str, bool]
    ) -> dict[str, dict[str, Any]]:
        if not ships["verifier"]:
            return {}
        chosen, least = {"threshold": compared["threshold"]}, compared["min_passages"]["chosen"]
        return {"verify": chosen if least is None else {**chosen, "min_passages": least}}

    def export(
        self,
        context: TrainingContext,
        settings: VerifierTraining,
        model: Verifier,
        ships: Mapping[str, bool],
    ) -> None:
        """Its threshold is not that of a pair verifier which the stage began with."""
        super().export(context, settings, model, ships)
        if ships["verifier"]:
            for name in PAIR_FILES:
                (context.run.folder / name).unlink(missing_ok=True)

    def components(self, settings: VerifierTraining, model: Verifier) -> Mapping[str, nn.Module]:
        return {"verifier": model}


STAGE = PathwayStage(
    "stage4",
    PathwaySettings(VerifierTraining()),
    (VerifierPart(), PairPart()),
    needs_pocket="its oracle is pocket's reader",
)


def _labelled(context: TrainingContext, cases: Cases, split: str) -> list[int]:
    """Questions with a passage whose label is known."""
    return [i for i in context.records.select(split) if bool(cases.known[i].any())]


def summary(context: TrainingContext, measured: Gains) -> Metrics:
    """How much gold passages and others gain, by source."""
    gold, found = context.records["gold"], {}
    for name, rows in by_source(context, measured.known.nonzero()[:, 0].tolist()).items():
        gain, right = measured.passage[rows], gold[rows]
        found[name] = {
            "questions": len(rows),
            "unread": float(measured.unread[rows].mean()),
            "gold": _mean(gain[right]),
            "other": _mean(gain[~right & ~gain.isnan()]),
        }
    return {"questions": int(measured.known.sum()), "by_source": found}


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None
