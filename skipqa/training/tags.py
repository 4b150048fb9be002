"""The tagger: which names a picture deserves, from labels of whole photos.

Enters: frozen features, labels of COCO photos (all that they show, of 80 classes) and of entity
photos (the one breed, flower or product that they show). Leaves: a `Tagger`, and for every photo
the probabilities that later parts read. Those of a photo that it was trained on come from a
tagger that was not: else the readers would learn to trust words that are never so right again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.config import Count, Weight
from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.training.loop import Phase, batches, fit, steps_for
from skipqa.training.mixture import Mixture
from skipqa.training.photos import Seen
from skipqa.training.run import Run

FOLDS = 5
UNKNOWN = -1.0  # a label that nobody gave: neither right nor wrong


@dataclass(frozen=True, slots=True)
class TagTraining:
    rounds: Weight = 12.0
    batch: Count = 256
    rate: Weight = 1e-3


@dataclass(frozen=True, slots=True)
class Targets:
    names: tuple[str, ...]
    kinds: tuple[str, ...]  # "dog" of a breed, "flag" of a country; empty where the name says it
    wanted: Tensor  # [P, names] of 1, 0 or unknown


def targets(mixture: Mixture) -> Targets:
    """A COCO photo says nothing of breeds; an entity photo shows its entity and, as far as that
    can be told apart, no other."""
    common = sorted({name for names in mixture.labels.values() for name in names})
    entities = sorted(set(mixture.entities.values()))
    place = {name: i for i, name in enumerate(common)}
    entity_place = {entity: len(common) + i for i, entity in enumerate(entities)}
    wanted = torch.full((len(mixture.photos), len(common) + len(entities)), UNKNOWN)
    for photo, shown in mixture.labels.items():
        wanted[photo, : len(common)] = 0
        for name in shown:
            wanted[photo, place[name]] = 1
    for photo, entity in mixture.entities.items():
        wanted[photo, len(common) :] = 0
        wanted[photo, entity_place[entity]] = 1
    return Targets(
        names=(*common, *(name for _, name in entities)),
        kinds=(*("" for _ in common), *(kind for kind, _ in entities)),
        wanted=wanted,
    )


def train(
    seen: Seen, wanted: Tensor, config: TaggerConfig, run: Run, training: TagTraining
) -> tuple[Tagger, Tensor]:
    """The tagger over all labelled photos, and cross-fitted probabilities [P, names]."""
    device = seen.features.device
    wanted = wanted.to(device)
    labelled = (wanted != UNKNOWN).any(1)
    generator = torch.Generator().manual_seed(run.seed)
    fold = torch.randint(0, FOLDS, (len(wanted),), generator=generator).to(device)
    shares = torch.empty_like(wanted)
    for held_out in range(FOLDS):
        chosen = labelled & (fold == held_out)
        if chosen.any():
            name, rest = f"tagger-{held_out}", labelled & ~chosen
            part = _fit(name, seen, config, wanted, rest, run, training)
            shares[chosen] = probabilities(part, seen.features[0, chosen])
    tagger = _fit("tagger", seen, config, wanted, labelled, run, training)
    shares[~labelled] = probabilities(tagger, seen.features[0, ~labelled])
    return tagger, shares


def _fit(
    name: str,
    seen: Seen,
    config: TaggerConfig,
    wanted: Tensor,
    chosen: Tensor,
    run: Run,
    training: TagTraining,
) -> Tagger:
    device = seen.features.device
    torch.manual_seed(run.seed)
    tagger = Tagger(config).to(device)
    photos = chosen.nonzero()[:, 0].cpu()
    batch_at = batches([photos], training.batch, run.seed)

    def loss(step: int) -> Tensor:
        photo = batch_at(step).to(device)
        view = torch.randint(len(seen.features), (len(photo),), device=device)
        return loss_of_known(tagger(seen.features[view, photo].float()), wanted[photo])

    phase = Phase(steps_for(training.rounds, [photos], training.batch), training.rate)
    return fit(name, tagger, loss, phase, run, average=0.99)


def loss_of_known(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy of every name by itself; what is unknown teaches nothing."""
    known = wanted != UNKNOWN
    each = F.binary_cross_entropy_with_logits(logits, wanted.clamp(min=0), reduction="none")
    return (each * known).sum() / known.sum()


@torch.inference_mode()
def probabilities(tagger: Tagger, features_PNF: Tensor) -> Tensor:
    parts = features_PNF.split(1_024)
    return torch.cat([tagger(part.float()).sigmoid() for part in parts])


def mean_average_precision(shares: Tensor, wanted: Tensor) -> float:
    """Over the names that some photo has; unknown labels are left out."""
    found = []
    for share, label in zip(shares.T, wanted.T, strict=True):
        known = label != UNKNOWN
        right = label[known][share[known].argsort(descending=True)]
        if right.sum() > 0:
            ranks = torch.arange(1, len(right) + 1, device=right.device)
            found.append(float((right.cumsum(0) / ranks * right).sum() / right.sum()))
    return sum(found) / max(1, len(found))
