"""Stage VI: all components are fine-tuned jointly at a low lr, with tau_G fixed at 0.1.

Enters: gathered records and what stages II to IV trained, shipping or not. Leaves: the same
components after a joint fine-tuning with the sum of their losses. A component ships if it is at
least as good as what answered before, trained or training-free. The controller of stage V stays as
it was calibrated: it is trained on held-out questions, so its loss cannot join. Region queries stay
as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from skipqa.config import Count, NonNegative
from skipqa.nn.saliency import Saliency
from skipqa.nn.verifier import Verifier
from skipqa.stages import verify
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation, fit
from skipqa.training.pathway import saliency_quality, stage2_saliency, stage3_fusion
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.fusion_quality import FUSED_BEST, compare_reading, fusion_ships
from skipqa.training.pathway.saliency_quality import RECALL, Trial
from skipqa.training.pathway.stage import PathwayPart, PathwaySettings, PathwayStage
from skipqa.training.pathway.stage2_saliency import (
    SaliencyInputs,
    SaliencyPart,
    SaliencyTraining,
)
from skipqa.training.pathway.stage3_fusion import (
    TAU_G,
    FusionInputs,
    FusionPart,
    FusionTraining,
    held_out_of,
    reader_of,
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
    saliency: SaliencyTraining = field(
        default_factory=lambda: SaliencyTraining(batch=12, temperature=TAU_G[1])
    )
    fusion: FusionTraining = field(default_factory=lambda: FusionTraining(batch=48))
    verifier: VerifierTraining = field(default_factory=VerifierTraining)


class JointModel(nn.Module):
    def __init__(self, saliency: Saliency, fusion: nn.ModuleDict, verifier: Verifier) -> None:
        super().__init__()
        self.saliency, self.fusion, self.verifier = saliency, fusion, verifier


@dataclass(frozen=True, slots=True)
class JointInputs:
    saliency: SaliencyInputs
    fusion: FusionInputs
    verifier: VerifierInputs


class JointPart(PathwayPart[JointTraining, JointInputs, JointModel]):
    name = "joint"

    def __init__(self, fusion: FusionPart | None = None) -> None:
        self.fusion = fusion or FusionPart()

    def prepare(self, context: TrainingContext, settings: JointTraining) -> JointInputs:
        return JointInputs(
            SaliencyPart().prepare(context, settings.saliency),
            self.fusion.prepare(context, settings.fusion),
            VerifierPart().prepare(context, settings.verifier),
        )

    def build(self, context: TrainingContext, settings: JointTraining) -> JointModel:
        learned = context.learned
        saliency = learned.saliency or SaliencyPart().build(context, settings.saliency)
        verifier = learned.verifier or VerifierPart().build(context, settings.verifier)
        fusion = self.fusion.build(context, settings.fusion)
        return JointModel(saliency, fusion, verifier).requires_grad_(True)

    def train(
        self, context: TrainingContext, settings: JointTraining, data: JointInputs
    ) -> JointModel:
        """The fusion reader is where its decoder is; the others are small."""
        model = self.build(context, settings)
        model.fusion.to(data.fusion.networks.device)
        loss = self.loss(context, settings, data, model)
        return fit(self.name, model, loss, self.optimisation(settings), context.run)

    def loss(
        self,
        context: TrainingContext,
        settings: JointTraining,
        data: JointInputs,
        model: JointModel,
    ) -> Loss:
        salient = SaliencyPart().loss(context, settings.saliency, data.saliency, model.saliency)
        fused = stage3_fusion.loss_at(
            context, settings.fusion, data.fusion, reader_of(model.fusion), stage3_fusion.sharp
        )
        verify = VerifierPart().loss(context, settings.verifier, data.verifier, model.verifier)
        return lambda step: salient(step) + fused(step).cpu() + verify(step)

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
        threshold, read = (
            context.pipeline.config.verify.threshold,
            held_out_of(context, data.fusion),
        )
        before = _before(context, cases, threshold)
        if (today := context.pipeline.components.fusion_reader) is not None:
            today = copy.deepcopy(today).to(data.fusion.networks.device)
            before["fusion"] = compare_reading(today, read)["scores"][FUSED_BEST]
        return {
            "before": before,
            "held-out": {
                "saliency": stage2_saliency.compare_saliency(context, model.saliency),
                "verifier": compare_verifiers(context, model.verifier, cases, held_out, threshold),
                "fusion": compare_reading(reader_of(model.fusion), read),
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
            "fusion_reader": fusion_ships(found["fusion"])
            and found["fusion"]["scores"][FUSED_BEST] >= before.get("fusion", 0.0),
        }

    def components(self, settings: JointTraining, model: JointModel) -> Mapping[str, nn.Module]:
        fusion = self.fusion.components(settings.fusion, model.fusion)
        return {"saliency": model.saliency, **fusion, "verifier": model.verifier}

    def chosen_settings(
        self, context: TrainingContext, compared: Metrics, ships: Mapping[str, bool]
    ) -> dict[str, dict[str, Any]]:
        return self.fusion.chosen_settings(context, compared, ships)


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
    f1 = verifier_metrics(nu[held_out], cases, torch.tensor(held_out), threshold)
    tokens = stage2_saliency.kept_tokens(context)
    trial = Trial(tokens, today.saliency, today.region_query)
    [found] = saliency_quality.recall_and_boxes(context, held_out, [trial])
    return {"saliency": found[RECALL], "verifier": f1["f1"]}
