"""The tagger: which names a picture deserves, from labels of whole photos.

Enters: frozen features, labels of COCO photos (all that they show, of 80 classes) and of entity
photos (the one breed, flower, product or flag that they show). Leaves: a `Tagger`, and for every
photo the probabilities that later parts read, at a glance and after a closer look. Those of a photo
that it was trained on come from a tagger that was not: else the readers would learn to trust words
that are never so right again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.config import Count, Weight
from skipqa.nn.tagger import Tagger, TaggerConfig, pooled
from skipqa.training.loop import Phase, batches, fit, steps_for
from skipqa.training.run import Run
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.photos import Seen

FOLDS = 5
UNKNOWN = -1.0  # a label that nobody gave: neither right nor wrong
# Which of COCO's classes may hide a thing of each kind: without them, a photo shows none
HIDDEN: Mapping[str, frozenset[str]] = {
    "dog": frozenset({"dog"}),
    "cat": frozenset({"cat"}),
    "flag": frozenset(),
    "flower": frozenset({"potted plant", "vase"}),
    "food": frozenset(
        "apple banana orange broccoli carrot sandwich pizza donut cake bowl bottle cup".split()
    )
    | {"hot dog", "dining table", "refrigerator", "wine glass"},
}


@dataclass(frozen=True, slots=True)
class TagTraining:
    epochs: Weight = 10.0
    batch: Count = 256
    lr: Weight = 1e-3
    things_times: Count = 2  # how often a photo of an entity comes for each other one


@dataclass(frozen=True, slots=True)
class Targets:
    names: tuple[str, ...]
    kinds: tuple[str, ...]  # "dog" of a breed, "flag" of a country; empty where the name says it
    wanted: Tensor  # [P, names] of 1, 0 or unknown


def targets(mixture: Mixture) -> Targets:
    """An entity photo shows its entity and, as far as that can be told apart, no other. A COCO
    photo without a dog shows no breed of dog; with one, nobody knows which."""
    common = sorted({name for names in mixture.labels.values() for name in names})
    entities = sorted(set(mixture.entities.values()))
    place = {name: i for i, name in enumerate(common)}
    entity_place = {entity: len(common) + i for i, entity in enumerate(entities)}
    columns = {
        kind: [entity_place[entity] for entity in entities if entity[0] == kind] for kind in HIDDEN
    }
    wanted = torch.full((len(mixture.photos), len(common) + len(entities)), UNKNOWN)
    for photo, shown in mixture.labels.items():
        wanted[photo, : len(common)] = 0
        for name in shown:
            wanted[photo, place[name]] = 1
        for kind, hiding in HIDDEN.items():
            if hiding.isdisjoint(shown):
                wanted[photo, columns[kind]] = 0
    for photo, entity in mixture.entities.items():
        wanted[photo, len(common) :] = 0
        wanted[photo, entity_place[entity]] = 1
    return Targets(
        names=(*common, *(name for _, name in entities)),
        kinds=(*("" for _ in common), *(kind for kind, _ in entities)),
        wanted=wanted,
    )


@dataclass(frozen=True, slots=True)
class TagProbs:
    """Of every photo, how surely it deserves each name, [P, names]."""

    low_res: Tensor
    high_res: (
        Tensor  # as far as the surest of the glance and of the windows of a closer look has it
    )


def train(
    seen: Seen, targets: Targets, config: TaggerConfig, run: Run, training: TagTraining
) -> tuple[Tagger, TagProbs]:
    """The tagger over all labelled photos, and cross-fitted shares."""
    device = seen.features.device
    views = Views.of(seen, targets)
    labelled = (views.wanted != UNKNOWN).any(1)
    generator = torch.Generator().manual_seed(run.seed)
    fold = torch.randint(0, FOLDS, (len(views.wanted),), generator=generator).to(device)
    probs = TagProbs(torch.empty_like(views.wanted), torch.empty_like(views.wanted))

    def judge(tagger: Tagger, chosen: Tensor) -> None:
        probs.low_res[chosen] = probabilities(tagger, views.pooled[0, chosen])
        windows = probabilities(tagger, seen.windows[chosen]).amax(1)
        probs.high_res[chosen] = torch.maximum(probs.low_res[chosen], windows)

    for held_out in range(FOLDS):
        chosen = labelled & (fold == held_out)
        if chosen.any():
            name, rest = f"tagger-{held_out}", labelled & ~chosen
            judge(_fit(name, views, config, rest, run, training), chosen)
    tagger = _fit("tagger", views, config, labelled, run, training)
    judge(tagger, ~labelled)
    return tagger, probs


@dataclass(frozen=True, slots=True)
class Views:
    """Everything that the tagger learns from, pooled."""

    pooled: Tensor  # [views, P, 2 F]: whole pictures, then crops
    whole: int  # how many of them are whole
    wanted: Tensor  # [P, names]
    of_things: Tensor  # [names], true of what a crop must show, too

    @staticmethod
    def of(seen: Seen, targets: Targets) -> Views:
        device = seen.features.device
        whole = torch.stack([pooled(view) for view in seen.features])
        of_things = torch.tensor([bool(kind) for kind in targets.kinds], device=device)
        return Views(
            torch.cat((whole, seen.zoomed)), len(whole), targets.wanted.to(device), of_things
        )

    def draw(self, photo: Tensor) -> tuple[Tensor, Tensor]:
        """A view of each, and what is known of it: a crop may have lost what a photo shows."""
        view = torch.randint(len(self.pooled), (len(photo),), device=photo.device)
        cut = (view >= self.whole)[:, None] & ~self.of_things
        return self.pooled[view, photo].float(), self.wanted[photo].masked_fill(cut, UNKNOWN)


def _fit(
    name: str, views: Views, config: TaggerConfig, chosen: Tensor, run: Run, training: TagTraining
) -> Tagger:
    device = views.wanted.device
    torch.manual_seed(run.seed)
    tagger = Tagger(config).to(device)
    shows_a_thing = ((views.wanted == 1) & views.of_things).any(1)
    groups = [(chosen & ~shows_a_thing).nonzero()[:, 0].cpu()]
    groups += [(chosen & shows_a_thing).nonzero()[:, 0].cpu()] * training.things_times
    batch_at = batches(groups, training.batch, run.seed)

    def loss(step: int) -> Tensor:
        features, wanted = views.draw(batch_at(step).to(device))
        return loss_of_known(tagger.judge(features), wanted)

    phase = Phase(steps_for(training.epochs, groups, training.batch), training.lr)
    return fit(name, tagger, loss, phase, run, ema_decay=0.99)


def loss_of_known(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy of every name by itself; what is unknown teaches nothing."""
    known = wanted != UNKNOWN
    each = F.binary_cross_entropy_with_logits(logits, wanted.clamp(min=0), reduction="none")
    return (each * known).sum() / known.sum().clamp(min=1)


@torch.inference_mode()
def probabilities(tagger: Tagger, pooled: Tensor) -> Tensor:
    """Of views [P, ..., 2 F]."""
    return torch.cat([tagger.judge(part.float()).sigmoid() for part in pooled.split(1_024)])


def recognised(probs_PN: Tensor, targets: Targets, checks: Mapping[int, tuple[str, str]]) -> float:
    """The share of photos whose thing is the surest of all things."""
    entities = list(zip(targets.kinds, targets.names, strict=True))
    things = [i for i, kind in enumerate(targets.kinds) if kind]
    if not things:
        return 0.0
    best = probs_PN[:, things].argmax(1).tolist()
    right = [entities[things[best[photo]]] == entity for photo, entity in checks.items()]
    return sum(right) / max(1, len(right))


def mean_average_precision(probs: Tensor, wanted: Tensor) -> float:
    """Over the names that some photo has; unknown labels are left out."""
    found = []
    for prob, label in zip(probs.T, wanted.T, strict=True):
        known = label != UNKNOWN
        right = label[known][prob[known].argsort(descending=True)]
        if right.sum() > 0:
            ranks = torch.arange(1, len(right) + 1, device=right.device)
            found.append(float((right.cumsum(0) / ranks * right).sum() / right.sum()))
    return sum(found) / max(1, len(found))
