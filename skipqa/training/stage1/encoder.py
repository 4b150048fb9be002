"""The vision encoder is fine-tuned to tell things apart: breeds, flowers, products, flags.

Enters: photos as bytes, the boxes and names of things in them, and the published encoder. Leaves:
the encoder fine-tuned at its native size, so that its features of a view name the thing in it. A
distillation loss on every crop keeps what the published encoder knows, and the weights are
interpolated with the published ones at the end (WiSE-FT). Labels of COCO photos are left to the
tagger, which is cross-fitted: an encoder would memorise its own photos, and the readers would learn
to trust words that are never as accurate again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.backbones.networks.efficientnet_lite import EfficientNetLite
from skipqa.config import Count, Fraction, Weight
from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.training.loop import Optimisation, batches, fit, steps_for
from skipqa.training.run import Run
from skipqa.training.stage1.photos import Things, as_input, crop
from skipqa.training.stage1.tagger import UNKNOWN, Targets

INITIAL_LOGIT = -5.0  # of a name: few of them are right
LABEL_SMOOTHING = 0.1
MIN_PIXELS = 56  # per side, that an image may be enlarged from


@dataclass(frozen=True, slots=True)
class EncoderTraining:
    epochs: Weight = 18.0  # over the photos of things, as many others with them
    batch: Count = 256
    lr: Weight = 1e-3  # of the new head; the encoder's is scaled
    encoder_lr_scale: Fraction = 0.4
    pasted: Fraction = 0.4  # of the things that fill their photo are pasted small into another
    enlarged: Fraction = 0.3  # of the views are enlarged from few pixels, as small crops are
    mixup: Fraction = 0.5  # the largest mixing coefficient; most draws are far smaller
    cross_entropy_weight: Weight = 1.0  # of the one right name among all, next to each by itself
    distillation_weight: Weight = 2.0
    wise_ft_alpha: Fraction = 0.9  # weight of the fine-tuned encoder in the final interpolation


@dataclass(frozen=True, slots=True)
class LabelledPhotos:
    pixels: Tensor  # [P, 3, S, S] bytes
    things: Things
    targets: Targets
    rows: Sequence[int]  # the photos to train on


class NamingModel(nn.Module):
    """The encoder and, during fine-tuning, a head that names things."""

    def __init__(self, encoder: EfficientNetLite, names: Tagger) -> None:
        super().__init__()
        self.encoder, self.names = encoder, names

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of names and of the encoder's own classes."""
        found = self.encoder(pixels.contiguous(memory_format=torch.channels_last))
        logits = self.names(found.flatten(2).transpose(1, 2).float())
        return logits, self.encoder.classifier(found.mean((2, 3)))


def finetune(
    published: EfficientNetLite, photos: LabelledPhotos, run: Run, training: EncoderTraining
) -> EfficientNetLite:
    """On the device of `published`, which stays as it is."""
    device = next(published.parameters()).device
    targets = _of_things(photos.targets)
    shows_one = (targets.labels == 1).any(1)
    if not shows_one.any():  # no such photos: nothing to train on
        return published
    model = _naming_model(published, targets.names, run.seed).to(device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    allowed = torch.tensor(photos.rows)
    with_things, others = allowed[shows_one[allowed]], allowed[~shows_one[allowed]]
    half = max(2, training.batch // 2)
    things_at = batches([with_things], half, run.seed)
    others_at = batches([others], half, run.seed) if len(others) else things_at
    pixels, targets = photos.pixels.to(device), targets.to(device)

    def naming_loss(logits: Tensor, right: Tensor) -> Tensor:
        weight = training.cross_entropy_weight
        return _binary_loss(logits, right) + weight * _cross_entropy(logits, right)

    def loss(step: int) -> Tensor:
        photo = torch.cat((things_at(step), others_at(step)))
        generator = torch.Generator().manual_seed(run.seed * 1_000_003 + step)
        shown, shows = _views(pixels, photo, photos.things, training, generator)
        other = torch.randperm(len(shown), generator=generator).to(device)
        mixing = training.mixup * float(torch.rand(1, generator=generator)) ** 3
        shown = shown.lerp(shown[other], mixing)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits, classes = model(shown)
            with torch.no_grad():
                before = published.classifier(published(shown).mean((2, 3)))
        logits = logits.float()
        right = targets.of_crops(photo.to(device), shows.to(device))
        named = (1 - mixing) * naming_loss(logits, right) + mixing * naming_loss(
            logits, right[other]
        )
        return named + training.distillation_weight * _distillation(classes, before)

    steps = steps_for(training.epochs, [with_things], half)
    lr_scales = [(model.encoder, training.encoder_lr_scale)]
    optimisation = Optimisation(steps, training.lr, ema_decay=0.99)
    tuned = fit("encoder", model, loss, optimisation, run, lr_scales).encoder
    return _wise_ft(published, tuned, training.wise_ft_alpha).requires_grad_(False)


def _naming_model(published: EfficientNetLite, names: tuple[str, ...], seed: int) -> NamingModel:
    torch.manual_seed(seed)
    head = Tagger(TaggerConfig(names, names, width=published.config.features, dropout=0.2))
    nn.init.constant_(head.out.bias, INITIAL_LOGIT)
    return NamingModel(copy.deepcopy(published), head).requires_grad_(True)


def _views(
    pixels: Tensor,
    photo: Tensor,
    things: Things,
    training: EncoderTraining,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """A crop of each photo in which its thing is large or small, with other brightness; of a
    crowded one around any of its things. And what each crop shows, [B, M]."""
    shown = as_input(pixels[photo.to(pixels.device)], pixels.device)
    shown, boxes = things.paste(shown, photo, pixels, generator, training.pasted)
    which = (torch.rand(len(photo), generator=generator) * things.count[photo]).long()
    around, shows = things.crops(boxes, photo, which, generator, least=0.2)
    shown = _enlarged(crop(shown, around), generator, training.enlarged)
    return _relit(shown, generator), shows


def _wise_ft(
    published: EfficientNetLite, tuned: EfficientNetLite, alpha: float
) -> EfficientNetLite:
    """Interpolated weights lose little of what was learned and restore some of what was forgotten
    (Wortsman et al., 2022)."""
    before, after = published.state_dict(), tuned.state_dict()
    tuned.load_state_dict({name: before[name].lerp(after[name], alpha) for name in after})
    return tuned


def _of_things(targets: Targets) -> Targets:
    """Those of the names that are of things."""
    chosen = [i for i, kind in enumerate(targets.kinds) if kind]
    place = torch.full((len(targets.names) + 1,), -1)  # the last is that of no name
    place[chosen] = torch.arange(len(chosen))
    return Targets(
        tuple(targets.names[i] for i in chosen),
        tuple(targets.kinds[i] for i in chosen),
        targets.labels[:, chosen],
        place[targets.columns],
    )


def _binary_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy per name, summed, so that the right name counts among all the others."""
    each = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0), reduction="none")
    return (each * (labels != UNKNOWN)).sum(1).mean()


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of the right name among all names, where a thing is shown; of each where a crop shows two."""
    shows_one = (labels == 1).any(1)
    right = (labels[shows_one] == 1).float()
    right /= right.sum(1, keepdim=True)
    return F.cross_entropy(logits[shows_one], right, label_smoothing=LABEL_SMOOTHING)


def _distillation(classes: Tensor, before: Tensor) -> Tensor:
    """KL divergence of the encoder's own classes from the published encoder's."""
    return F.kl_div(
        classes.float().log_softmax(-1),
        before.float().log_softmax(-1),
        reduction="batchmean",
        log_target=True,
    )


def _enlarged(pixels: Tensor, generator: torch.Generator, fraction: float) -> Tensor:
    """That fraction of the images as if enlarged from fewer pixels."""
    size = pixels.shape[-1]
    some = (torch.rand(len(pixels), generator=generator) < fraction).nonzero()[:, 0]
    if len(some) == 0:
        return pixels
    fewest, most = min(MIN_PIXELS, size // 2), size * 5 // 8
    fewer = int(torch.randint(fewest, most + 1, (1,), generator=generator))
    small = F.interpolate(pixels[some], (fewer, fewer), mode="bilinear", antialias=True)
    again = F.interpolate(small, (size, size), mode="bicubic").clamp(-1, 1)
    return pixels.index_copy(0, some.to(pixels.device), again)


def _relit(pixels: Tensor, generator: torch.Generator, most: float = 0.25) -> Tensor:
    """Random brightness and contrast per image."""

    def factor() -> Tensor:
        draw = torch.rand(len(pixels), 1, 1, 1, generator=generator).to(pixels.device)
        return 1 + most * (2 * draw - 1)

    middle = pixels.mean((1, 2, 3), keepdim=True)
    relit = middle + (pixels - middle) * factor() + (factor() - 1)
    return relit.clamp(-1, 1)
