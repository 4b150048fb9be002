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
from skipqa.training import pathways, pruning, verifying
from skipqa.training.loop import Decay, Phase, Rate, fit
from skipqa.training.pathways import TAU_E, TAU_G, Pathways, PathwayTraining
from skipqa.training.study import Study
from skipqa.training.verifying import Cases, VerifierTraining


@dataclass(frozen=True, slots=True)
class JointTraining:
    steps: Count = 100
    rate: Rate = 5e-6
    warmup: CountOrNone = 20
    weight_decay: Decay = 0.01
    pathways: PathwayTraining = field(default_factory=PathwayTraining)
    verifier: VerifierTraining = field(default_factory=VerifierTraining)


class Everything(nn.Module):
    def __init__(self, paths: Pathways, verifier: Verifier) -> None:
        super().__init__()
        self.paths, self.verifier = paths, verifier


def run(study: Study, settings: JointTraining) -> dict[str, Any]:
    """The stage: train, compare each part with what answers now, leave."""
    if "together" in study.run.metrics():
        return study.run.metrics()
    held_out = study.rows("held-out", gold=True)
    found = verifying.cases(study, compared=held_out)
    parts = train(study, found, settings)
    threshold = study.pipeline.config.verify.threshold
    compared = {
        "saliency": pruning.compare(study, parts.paths.saliency),
        "verifier": verifying.compare(parts.verifier, found, held_out, threshold),
        "fusion": pathways.compare_fusion(study, parts.paths.fusion, found, _nu(study, found)),
    }
    before = _before(study, found, threshold)
    ships = {
        "saliency": pruning.is_as_good(compared["saliency"], pruning.kept_tokens(study))
        and _finds(compared["saliency"], study) >= before["saliency"],
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
        study.leave(module, name, ships=ships[name])
    study.leave(parts.paths.region_query, "region_query", ships=False)
    study.run.finish("together", {"ships": ships, "before": before, "held-out": compared})
    return study.run.metrics()


def build(study: Study, settings: JointTraining) -> Everything:
    paths = pathways.build(study, settings.pathways)
    verifier = study.learned.verifier or verifying.build(study, settings.verifier)
    return Everything(paths, verifier).requires_grad_(True)


def train(study: Study, found: Cases, settings: JointTraining) -> Everything:
    parts = build(study, settings)
    loss = loss_of(study, parts, found, settings, TAU_G[1], TAU_E[1])
    phase = Phase(settings.steps, settings.rate, settings.warmup)
    return fit("together", parts, loss, phase, study.run, weight_decay=settings.weight_decay)


def loss_of(
    study: Study, parts: Everything, found: Cases, settings: JointTraining, tau: float, edge: float
) -> pathways.Loss:
    lesson = pathways.prepare(study)
    along = pathways.loss_of(
        study, parts.paths, settings.pathways, lesson, lambda _: tau, lambda _: edge
    )
    verify = verifying.loss_of(study, parts.verifier, found, settings.verifier)
    return lambda step: along(step) + verify(step)


@torch.inference_mode()
def _nu(study: Study, found: Cases) -> Tensor:
    """As answering scores passages now."""
    verifier = study.pipeline.components.verifier
    if verifier is None:
        return found.untrained
    return found.logits(verifier, torch.arange(len(study.records))).sigmoid()


def _before(study: Study, found: Cases, threshold: float) -> dict[str, float]:
    """What answers now, by the measures of `run`."""
    held_out, now = study.rows("held-out", gold=True), study.pipeline.components
    rule = study.pipeline.config.fuse
    fusion = pathways.read_share(study, now.fusion, found, _nu(study, found), rule)
    f1 = verifying.quality(_nu(study, found)[held_out], found, torch.tensor(held_out), threshold)
    trial = pruning.Trial(pruning.kept_tokens(study), now.saliency, now.region_query)
    [finds] = pruning.quality(study, held_out, [trial])
    return {
        "saliency": finds[f"recall@{pruning.AT}"],
        "verifier": f1["f1"],
        "fusion": fusion["read"],
    }


def _finds(compared: dict[str, Any], study: Study) -> float:
    here = compared["by_tokens"][str(pruning.kept_tokens(study))]["trained"]
    return float(here[f"recall@{pruning.AT}"])
