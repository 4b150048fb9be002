"""The tagger: which names an image deserves, from labels of whole photos.

Enters: frozen features, labels of COCO photos (everything they show, of 80 classes), words that
people use of photos (`mentioned.py`) and labels of entity photos (the one breed, flower, product or
flag they show, or all that a crowded image shows).
Leaves: a `Tagger`, and for every photo the probabilities that later parts read, at low and at high
resolution. They are cross-fitted: those of a training photo come from a tagger that was not trained
on it, or the readers would learn to trust words that are never as accurate again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.config import Count, Weight
from skipqa.nn.tagger import Tagger, TaggerConfig, pooled
from skipqa.training.loop import Optimisation, batches, fit, steps_for
from skipqa.training.run import Run
from skipqa.training.stage1.mentioned import NOT_MENTIONED, Mentioned
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.photos import CUT, PhotoFeatures
from skipqa.training.stage1.pocket_kb import Thing

FOLDS = 5
UNKNOWN = float(CUT)  # no label: neither positive nor negative
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
class TaggerTraining:
    epochs: Weight = 10.0
    batch: Count = 256
    lr: Weight = 1e-3
    things_times: Count = 2  # how often an entity photo is repeated per epoch


@dataclass(frozen=True, slots=True)
class Targets:
    names: tuple[str, ...]
    kinds: tuple[str, ...]  # "dog" of a breed, "flag" of a country; empty where the name says it
    labels: Tensor  # [P, names]: 1, 0 or UNKNOWN
    columns: Tensor  # [P, M]: the names of a photo's things, -1 where there is none

    def of_crops(self, photos: Tensor, shows_BM: Tensor) -> Tensor:
        """Labels [B, names] of crops of `photos`, by what they show of their things."""
        columns_BM, labels = self.columns[photos], self.labels[photos]
        nothing = torch.where(columns_BM < 0, labels.shape[1], columns_BM)
        padded = F.pad(labels, (0, 1)).scatter(1, nothing, shows_BM.to(labels))
        return padded[:, :-1]

    def to(self, device: torch.device) -> Targets:
        return Targets(self.names, self.kinds, self.labels.to(device), self.columns.to(device))


def targets(mixture: Mixture, mentioned: Mentioned = NOT_MENTIONED) -> Targets:
    """An entity photo shows its entities and, as far as that can be told apart, no other. A COCO
    photo without a dog shows no breed of dog; with one, nobody knows which."""
    labelled = sorted({name for names in mixture.labels.values() for name in names})
    common = [*labelled, *mentioned.photos]
    entities = sorted({(one.kind, one.name) for some in mixture.things.values() for one in some})
    place = {name: i for i, name in enumerate(common)}
    entity_place = {entity: len(common) + i for i, entity in enumerate(entities)}
    of_kind = {
        kind: [entity_place[entity] for entity in entities if entity[0] == kind] for kind in HIDDEN
    }
    labels = torch.full((len(mixture.photos), len(common) + len(entities)), UNKNOWN)
    for photo, shown in mixture.labels.items():
        labels[photo, : len(labelled)] = 0
        for name in shown:
            labels[photo, place[name]] = 1
        for kind, hiding in HIDDEN.items():
            if hiding.isdisjoint(shown):
                labels[photo, of_kind[kind]] = 0
    labels[sorted(mentioned.asked_about), len(labelled) : len(common)] = 0
    for word, photos in mentioned.photos.items():
        labels[sorted(photos), place[word]] = 1
    places = {
        photo: [entity_place.get((one.kind, one.name), -1) for one in some]
        for photo, some in mixture.shown().items()
    }
    columns = torch.full((len(mixture.photos), max(map(len, places.values()), default=1)), -1)
    for photo, some in places.items():
        columns[photo, : len(some)] = torch.tensor(some)
    for photo in mixture.things:
        labels[photo, len(common) :] = 0
        labels[photo, places[photo]] = 1
    return Targets(
        names=(*common, *(name for _, name in entities)),
        kinds=(*("" for _ in common), *(kind for kind, _ in entities)),
        labels=labels,
        columns=columns,
    )


@dataclass(frozen=True, slots=True)
class TagProbs:
    """Of every photo and name, [P, names]."""

    low_res: Tensor
    high_res: Tensor  # the largest over the low-resolution image and the high-resolution windows


def train(
    features: PhotoFeatures,
    targets: Targets,
    config: TaggerConfig,
    run: Run,
    training: TaggerTraining,
) -> tuple[Tagger, TagProbs]:
    """The tagger over all labelled photos, and cross-fitted probabilities."""
    views = Views.of(features, targets)
    probs = cross_fit(views, features, config, run, training)
    labelled = views.labelled
    tagger = _fit("tagger", views, config, labelled, run, training)
    _judge(tagger, views, features, ~labelled, probs)
    return tagger, probs


def cross_fit(
    views: Views,
    features: PhotoFeatures,
    config: TaggerConfig,
    run: Run,
    training: TaggerTraining,
) -> TagProbs:
    """Of labelled photos, by taggers that were not trained on them; nothing of others."""
    device, labelled = features.views.device, views.labelled
    generator = torch.Generator().manual_seed(run.seed)
    fold = torch.randint(0, FOLDS, (len(views.labels),), generator=generator).to(device)
    probs = TagProbs(torch.empty_like(views.labels), torch.empty_like(views.labels))
    for held_out in range(FOLDS):
        chosen = labelled & (fold == held_out)
        if chosen.any():
            name, rest = f"tagger/{held_out}", labelled & ~chosen
            fitted = _fit(name, views, config, rest, run, training)
            _judge(fitted, views, features, chosen, probs)
    return probs


def _judge(
    tagger: Tagger, views: Views, features: PhotoFeatures, chosen: Tensor, probs: TagProbs
) -> None:
    """Writes down what it says of the chosen photos."""
    found = tag(tagger, views.pooled[0, chosen], features.windows[chosen])
    probs.low_res[chosen], probs.high_res[chosen] = found.low_res, found.high_res


def tag(tagger: Tagger, pooled_P2F: Tensor, windows_PW2F: Tensor) -> TagProbs:
    """Of photos by their whole views and by their windows at high resolution."""
    low_res = probabilities(tagger, pooled_P2F)
    return TagProbs(low_res, torch.maximum(low_res, probabilities(tagger, windows_PW2F).amax(1)))


@dataclass(frozen=True, slots=True)
class Views:
    """Everything the tagger is trained on, pooled."""

    pooled: Tensor  # [views, P, 2 F]: whole images, then crops
    whole: int  # how many of them are whole
    crop_shows: Tensor  # [crops, P, M]
    targets: Targets  # of whole images
    of_things: Tensor  # [names], true of what is known of a crop, too

    @staticmethod
    def of(features: PhotoFeatures, targets: Targets) -> Views:
        device = features.views.device
        whole = torch.stack([pooled(view) for view in features.views])
        of_things = torch.tensor([bool(kind) for kind in targets.kinds], device=device)
        views = torch.cat((whole, features.crops))
        return Views(views, len(whole), features.crop_shows, targets.to(device), of_things)

    @property
    def labels(self) -> Tensor:
        """[P, names]"""
        return self.targets.labels

    @property
    def labelled(self) -> Tensor:
        """[P]: whether anything is known of a photo."""
        return (self.labels != UNKNOWN).any(1)

    def draw(self, photo: Tensor) -> tuple[Tensor, Tensor]:
        """A view of each, and its labels: a crop may have lost what the photo shows, and of a
        crowded one it shows a thing or two."""
        view = torch.randint(len(self.pooled), (len(photo),), device=photo.device)
        if len(self.pooled) == self.whole:
            return self.pooled[view, photo].float(), self.labels[photo]
        shows = self.crop_shows[(view - self.whole).clamp(min=0), photo]
        of_crop = self.targets.of_crops(photo, shows).masked_fill(~self.of_things, UNKNOWN)
        cropped = (view >= self.whole)[:, None]
        labels = torch.where(cropped, of_crop, self.labels[photo])
        return self.pooled[view, photo].float(), labels


def _fit(
    name: str,
    views: Views,
    config: TaggerConfig,
    chosen: Tensor,
    run: Run,
    training: TaggerTraining,
) -> Tagger:
    device = views.labels.device
    torch.manual_seed(run.seed)
    tagger = Tagger(config).to(device)
    shows_a_thing = ((views.labels == 1) & views.of_things).any(1)
    groups = [(chosen & ~shows_a_thing).nonzero()[:, 0].cpu()]
    groups += [(chosen & shows_a_thing).nonzero()[:, 0].cpu()] * training.things_times
    batch_at = batches(groups, training.batch, run.seed)

    def loss(step: int) -> Tensor:
        pooled_views, labels = views.draw(batch_at(step).to(device))
        return loss_of_known(tagger.judge(pooled_views), labels)

    steps = steps_for(training.epochs, groups, training.batch)
    return fit(name, tagger, loss, Optimisation(steps, training.lr, ema_decay=0.99), run)


def loss_of_known(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean binary cross-entropy over the known labels."""
    known = labels != UNKNOWN
    each = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0), reduction="none")
    return (each * known).sum() / known.sum().clamp(min=1)


@torch.inference_mode()
def probabilities(tagger: Tagger, pooled: Tensor) -> Tensor:
    """Of views [P, ..., 2 F]."""
    return torch.cat([tagger.judge(part.float()).sigmoid() for part in pooled.split(1_024)])


def recognised(probs_PN: Tensor, targets: Targets, checks: Mapping[int, Thing]) -> float:
    """The fraction of images whose thing is the most probable of all things; by row."""
    entities = list(zip(targets.kinds, targets.names, strict=True))
    things = [i for i, kind in enumerate(targets.kinds) if kind]
    if not things:
        return 0.0
    best = probs_PN[:, things].argmax(1).tolist()
    right = [
        entities[things[best[row]]] == (thing.kind, thing.name) for row, thing in checks.items()
    ]
    return sum(right) / max(1, len(right))


def recognised_in_crowds(
    tagger: Tagger,
    features: PhotoFeatures,
    targets: Targets,
    checks: Mapping[int, tuple[Thing, ...]],
) -> float:
    """The same of things in crowded images, each by a crop around it; of those with a name."""
    names = set(zip(targets.kinds, targets.names, strict=True))
    found = [
        (photo, number, thing)
        for photo, things in checks.items()
        for number, thing in enumerate(things[: len(features.crops)])
        if len(things) > 1 and (thing.kind, thing.name) in names
    ]
    if not found:
        return 0.0
    photos, numbers, shown = zip(*found, strict=True)
    crops = features.crops[torch.tensor(numbers), torch.tensor(photos)]
    return recognised(probabilities(tagger, crops), targets, dict(enumerate(shown)))


def mean_average_precision(probs: Tensor, labels: Tensor) -> float:
    """Over the names that some photo has; unknown labels are left out."""
    found = []
    for prob, label in zip(probs.T, labels.T, strict=True):
        known = label != UNKNOWN
        right = label[known][prob[known].argsort(descending=True)]
        if right.sum() > 0:
            ranks = torch.arange(1, len(right) + 1, device=right.device)
            found.append(float((right.cumsum(0) / ranks * right).sum() / right.sum()))
    return sum(found) / max(1, len(found))
