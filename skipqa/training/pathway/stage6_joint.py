"""Stage VI: all components are fine-tuned jointly at a low lr, with tau_G fixed at 0.1.

Enters: gathered records and what stages II to IV trained, shipping or not. Leaves: the same
components after a joint fine-tuning with the sum of their losses. A component ships if it is at
least as good as what answered before, trained or training-free. The controller of stage V stays as
it was calibrated: it is trained on held-out questions, so its loss cannot join.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from skipqa.config import Count, NonNegative
from skipqa.nn.verifier import Verifier
from skipqa.stages import verify
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation
from skipqa.training.pathway import saliency_quality, stage2_saliency, stage3_fusion
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.fusion_quality import compare_fusion, fraction_read, fusion_ships
from skipqa.training.pathway.saliency_quality import RECALL, Trial
from skipqa.training.pathway.stage import PathwayPart, PathwaySettings, PathwayStage
from skipqa.training.pathway.stage3_fusion import (
    FINAL,
    FusionInputs,
    Pathways,
    PathwaysPart,
    PathwayTraining,
)
from skipqa.training.pathway.stage4_verifier import (
    VerifierInputs,
    VerifierPart,
    VerifierTraining,
)
from skipqa.training.pathway.verifier_cases import Cases
from skipqa.training.pathway.verifier_quality import compare_verifiers, verifier_metrics
from skipqa.training.stage import Metrics


@dataclass(frozen=True, slots=True)
class JointTraining:
    steps: Count = 100
    lr: LearningRate = 5e-6
    warmup: NonNegative = 20
    weight_decay: Decay = 0.01
    pathways: PathwayTraining = field(default_factory=PathwayTraining)
    verifier: VerifierTraining = field(default_factory=VerifierTraining)


class JointModel(nn.Module):
    def __init__(self, paths: Pathways, verifier: Verifier) -> None:
        super().__init__()
        self.paths, self.verifier = paths, verifier


@dataclass(frozen=True, slots=True)
class JointInputs:
    fusion: FusionInputs
    verifier: VerifierInputs


class JointPart(PathwayPart[JointTraining, JointInputs, JointModel]):
    name = "joint"

    def prepare(self, context: TrainingContext, settings: JointTraining) -> JointInputs:
        verifier = VerifierPart().prepare(context, settings.verifier)
        return JointInputs(PathwaysPart().prepare(context, settings.pathways), verifier)

    def build(self, context: TrainingContext, settings: JointTraining) -> JointModel:
        paths = PathwaysPart().build(context, settings.pathways)
        verifier = context.learned.verifier or VerifierPart().build(context, settings.verifier)
        return JointModel(paths, verifier).requires_grad_(True)

    def loss(
        self,
        context: TrainingContext,
        settings: JointTraining,
        data: JointInputs,
        model: JointModel,
    ) -> Loss:
        paths = stage3_fusion.loss_at(
            context, settings.pathways, data.fusion, model.paths, lambda _: FINAL
        )
        verify = VerifierPart().loss(context, settings.verifier, data.verifier, model.verifier)
        return lambda step: paths(step) + verify(step)

    def optimisation(self, settings: JointTraining) -> Optimisation:
        return Optimisation(settings.steps, settings.lr, settings.warmup, settings.weight_decay)

    def compare(
        self,
        context: TrainingContext,
        settings: JointTraining,
        data: JointInputs,
        model: JointModel,
    ) -> Metrics:
        cases, held_out = data.verifier.cases, context.rows("held-out", gold=True)
        threshold, nu = context.pipeline.config.verify.threshold, _nu(context, cases)
        return {
            "before": _before(context, cases, threshold),
            "held-out": {
                "saliency": stage2_saliency.compare_saliency(context, model.paths.saliency),
                "verifier": compare_verifiers(context, model.verifier, cases, held_out, threshold),
                "fusion": compare_fusion(context, model.paths.fusion, cases, nu),
            },
        }

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        found, before = compared["held-out"], compared["before"]
        tokens = stage2_saliency.kept_tokens(context)
        recall = found["saliency"]["by_tokens"][str(tokens)]["trained"][RECALL]
        return {
            "saliency": stage2_saliency.is_as_good(found["saliency"], tokens)
            and recall >= before["saliency"],
            "verifier": context.pipeline.components.pair_verifier is None
            and found["verifier"]["trained"]["f1"] >= before["verifier"],
            "fusion": fusion_ships(found["fusion"])
            and found["fusion"]["trained"]["read"] >= before["fusion"],
        }

    def components(self, settings: JointTraining, model: JointModel) -> Mapping[str, nn.Module]:
        """The region query is compared in stage III alone, so it does not ship here."""
        paths = PathwaysPart().components(settings.pathways, model.paths)
        return {**paths, "verifier": model.verifier}


STAGE = PathwayStage(
    "stage6",
    PathwaySettings(JointTraining()),
    (JointPart(),),
    needs_pocket="its oracle is pocket's reader",
)


@torch.inference_mode()
def _nu(context: TrainingContext, cases: Cases) -> Tensor:
    """As passages are scored today."""
    today = context.pipeline.components
    if today.pair_verifier is not None:
        return _nu_of_pairs(context, cases)
    verifier = today.verifier
    if verifier is None:
        return cases.untrained
    return cases.logits(verifier, torch.arange(len(context.records))).sigmoid()


def _nu_of_pairs(context: TrainingContext, cases: Cases) -> Tensor:
    """Of the questions that are compared; 0 elsewhere."""
    score, nu = verify.build(context.pipeline.parts).verifier, torch.zeros_like(cases.untrained)
    num_concepts = len(context.pipeline.backbone.concepts)
    for i in context.rows("held-out", gold=True):
        scores = score(context.records.after_retrieve(i, num_concepts)).scores
        nu[i, : len(scores)] = torch.tensor(scores)
    return nu


def _before(context: TrainingContext, cases: Cases, threshold: float) -> dict[str, float]:
    """What answers today, by the same measures."""
    held_out, today = context.rows("held-out", gold=True), context.pipeline.components
    nu = _nu(context, cases)
    fusion = fraction_read(context, context.pipeline, cases, nu)
    f1 = verifier_metrics(nu[held_out], cases, torch.tensor(held_out), threshold)
    tokens = stage2_saliency.kept_tokens(context)
    trial = Trial(tokens, today.saliency, today.region_query)
    [found] = saliency_quality.recall_and_boxes(context, held_out, [trial])
    return {"saliency": found[RECALL], "verifier": f1["f1"], "fusion": fusion["read"]}
