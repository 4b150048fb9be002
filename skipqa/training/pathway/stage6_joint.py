"""Stage VI: all components together, gently, with tau_G frozen at 0.1.

Enters: gathered records and what stages II to IV trained, shipping or not. Leaves: the same
components after a joint fine-tuning of their losses. One ships if it is at least as good as what
answered before, trained or training-free. The controller of stage V stays as it was calibrated:
its split is held out, so its loss has no place among theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from skipqa.config import Count, CountOrNone
from skipqa.nn.verifier import Verifier
from skipqa.training.loop import Decay, LearningRate, Phase, fit
from skipqa.training.pathway import stage2_saliency as pruning
from skipqa.training.pathway import stage3_fusion as pathways
from skipqa.training.pathway import stage4_verifier as verifying
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.stage3_fusion import TAU_E, TAU_G, Pathways, PathwayTraining
from skipqa.training.pathway.stage4_verifier import Cases, VerifierTraining


@dataclass(frozen=True, slots=True)
class JointTraining:
    steps: Count = 100
    lr: LearningRate = 5e-6
    warmup: CountOrNone = 20
    weight_decay: Decay = 0.01
    pathways: PathwayTraining = field(default_factory=PathwayTraining)
    verifier: VerifierTraining = field(default_factory=VerifierTraining)


class Everything(nn.Module):
    def __init__(self, paths: Pathways, verifier: Verifier) -> None:
        super().__init__()
        self.paths, self.verifier = paths, verifier


def run(context: TrainingContext, settings: JointTraining) -> dict[str, Any]:
    """The stage: train, compare each part with what answers now, leave."""
    if "together" in context.run.metrics():
        return context.run.metrics()
    held_out = context.rows("held-out", gold=True)
    found = verifying.cases(context, compared=held_out)
    parts = train(context, found, settings)
    threshold = context.pipeline.config.verify.threshold
    compared = {
        "saliency": pruning.compare(context, parts.paths.saliency),
        "verifier": verifying.compare(parts.verifier, found, held_out, threshold),
        "fusion": pathways.compare_fusion(context, parts.paths.fusion, found, _nu(context, found)),
    }
    before = _before(context, found, threshold)
    ships = {
        "saliency": pruning.is_as_good(compared["saliency"], pruning.kept_tokens(context))
        and _finds(compared["saliency"], context) >= before["saliency"],
        "verifier": compared["verifier"]["trained"]["f1"] >= before["verifier"],
        "fusion": pathways.fusion_ships(compared["fusion"])
        and compared["fusion"]["trained"]["read"] >= before["fusion"],
    }
    modules = {
        "saliency": parts.paths.saliency,
        "verifier": parts.verifier,
        "fusion": parts.paths.fusion,
    }
    for name, module in modules.items():
        context.leave(module, name, ships=ships[name])
    context.leave(parts.paths.region_query, "region_query", ships=False)
    context.run.finish("together", {"ships": ships, "before": before, "held-out": compared})
    return context.run.metrics()


def build(context: TrainingContext, settings: JointTraining) -> Everything:
    paths = pathways.build(context, settings.pathways)
    verifier = context.learned.verifier or verifying.build(context, settings.verifier)
    return Everything(paths, verifier).requires_grad_(True)


def train(context: TrainingContext, found: Cases, settings: JointTraining) -> Everything:
    parts = build(context, settings)
    loss = loss_of(context, parts, found, settings, TAU_G[1], TAU_E[1])
    phase = Phase(settings.steps, settings.lr, settings.warmup)
    return fit("together", parts, loss, phase, context.run, weight_decay=settings.weight_decay)


def loss_of(
    context: TrainingContext,
    parts: Everything,
    found: Cases,
    settings: JointTraining,
    tau: float,
    edge: float,
) -> pathways.Loss:
    lesson = pathways.prepare(context)
    along = pathways.loss_of(
        context, parts.paths, settings.pathways, lesson, lambda _: tau, lambda _: edge
    )
    verify = verifying.loss_of(context, parts.verifier, found, settings.verifier)
    return lambda step: along(step) + verify(step)


@torch.inference_mode()
def _nu(context: TrainingContext, found: Cases) -> Tensor:
    """As answering scores passages now."""
    verifier = context.pipeline.components.verifier
    if verifier is None:
        return found.untrained
    return found.logits(verifier, torch.arange(len(context.records))).sigmoid()


def _before(context: TrainingContext, found: Cases, threshold: float) -> dict[str, float]:
    """What answers now, by the measures of `run`."""
    held_out, now = context.rows("held-out", gold=True), context.pipeline.components
    rule = context.pipeline.config.fuse
    fusion = pathways.fraction_read(context, now.fusion, found, _nu(context, found), rule)
    f1 = verifying.quality(_nu(context, found)[held_out], found, torch.tensor(held_out), threshold)
    trial = pruning.Trial(pruning.kept_tokens(context), now.saliency, now.region_query)
    [finds] = pruning.quality(context, held_out, [trial])
    return {
        "saliency": finds[f"recall@{pruning.AT}"],
        "verifier": f1["f1"],
        "fusion": fusion["read"],
    }


def _finds(compared: dict[str, Any], context: TrainingContext) -> float:
    here = compared["by_tokens"][str(pruning.kept_tokens(context))]["trained"]
    return float(here[f"recall@{pruning.AT}"])
