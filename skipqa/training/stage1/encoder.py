"""The vision tower learns to tell things apart: breeds, flowers, products, flags, large and small.

Enters: photos as bytes, where things are in them, what they are called, and the published tower.
Leaves: the tower fine-tuned at its native size, so that what it sees of a view names the thing in
it. What it knew it keeps: on every crop it also has to say what the published tower says. Labels of
COCO photos are left to the tagger, which is cross-fitted; a tower would know its own photos by
heart, and the readers would learn to trust words that are never so right again.
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
from skipqa.training.loop import Phase, batches, fit, steps_for
from skipqa.training.run import Run
from skipqa.training.stage1 import photos
from skipqa.training.stage1.photos import Things
from skipqa.training.stage1.tagger import UNKNOWN, Targets

LIKELY = -5.0  # where a name's logit starts: one in so many is right
SMOOTHED = 0.1  # of the right name, shared among all
FEWEST = 56  # pixels a side that a picture may be enlarged from


@dataclass(frozen=True, slots=True)
class EncoderTraining:
    epochs: Weight = 18.0  # through the photos of things, others beside them
    batch: Count = 256
    lr: Weight = 1e-3  # of the names; the tower moves more slowly
    encoder_lr_scale: Fraction = 0.4
    pasted: Fraction = 0.4  # of the things that fill their photo are made small in another
    enlarged: Fraction = 0.3  # of the views come from few pixels, as what is small and cut out does
    mixed: Fraction = (
        0.5  # the most of another view that a step mixes into each; mostly it is little
    )
    apart: Weight = 1.0  # how much it counts to have the right name before all others
    memory: Weight = 2.0  # how much it counts to say what the published tower says
    kept: Fraction = 0.9  # of the way from the published tower; the rest is given back at the end


class Namer(nn.Module):
    """The tower and, while it learns, names for things."""

    def __init__(self, encoder: EfficientNetLite, names: Tagger) -> None:
        super().__init__()
        self.encoder, self.names = encoder, names

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of names and of the tower's own classes."""
        found = self.encoder(pixels.contiguous(memory_format=torch.channels_last))
        logits = self.names(found.flatten(2).transpose(1, 2).float())
        return logits, self.encoder.classifier(found.mean((2, 3)))


def teach(
    published: EfficientNetLite,
    pixels: Tensor,
    things: Things,
    targets: Targets,
    rows: Sequence[int],
    run: Run,
    training: EncoderTraining,
    device: torch.device,
) -> EfficientNetLite:
    """`pixels` are bytes [P, 3, S, S], `rows` the photos to learn from."""
    wanted, named = _of_things(targets)
    shows_one = (wanted == 1).any(1)
    if not shows_one.any():  # no such photos: nothing to learn
        return published
    namer = _namer(published, named, run.seed).to(device)
    namer = namer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    allowed = torch.tensor(rows)
    with_things, others = allowed[shows_one[allowed]], allowed[~shows_one[allowed]]
    half = max(2, training.batch // 2)
    things_at = batches([with_things], half, run.seed)
    others_at = batches([others], half, run.seed) if len(others) else things_at
    pixels, wanted = pixels.to(device), wanted.to(device)

    def named_wrongly(logits: Tensor, right: Tensor) -> Tensor:
        return _naming(logits, right) + training.apart * _telling_apart(logits, right)

    def loss(step: int) -> Tensor:
        photo = torch.cat((things_at(step), others_at(step)))
        generator = torch.Generator().manual_seed(run.seed * 1_000_003 + step)
        shown = _views(pixels, photo, things, training, generator)
        other = torch.randperm(len(shown), generator=generator).to(device)
        little = training.mixed * float(torch.rand(1, generator=generator)) ** 3
        shown = shown.lerp(shown[other], little)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits, classes = namer(shown)
            with torch.no_grad():
                before = published.classifier(published(shown).mean((2, 3)))
        logits, right = logits.float(), wanted[photo.to(device)]
        learned = (1 - little) * named_wrongly(logits, right) + little * named_wrongly(
            logits, right[other]
        )
        return learned + training.memory * _distillation(classes, before)

    steps = steps_for(training.epochs, [with_things], half)
    slower = [(namer.encoder, training.encoder_lr_scale)]
    phase = Phase(steps, training.lr)
    taught = fit("encoder", namer, loss, phase, run, slower=slower, ema_decay=0.99).encoder
    return _part_of_the_way(published, taught, training.kept).requires_grad_(False)


def _namer(published: EfficientNetLite, named: tuple[str, ...], seed: int) -> Namer:
    torch.manual_seed(seed)
    names = Tagger(TaggerConfig(named, named, width=published.config.features, dropout=0.2))
    nn.init.constant_(names.out.bias, LIKELY)
    return Namer(copy.deepcopy(published), names).requires_grad_(True)


def _views(
    pixels: Tensor,
    photo: Tensor,
    things: Things,
    training: EncoderTraining,
    generator: torch.Generator,
) -> Tensor:
    """A crop of each photo in which its thing is large or small, in another light."""
    shown = photos.as_input(pixels[photo.to(pixels.device)], pixels.device)
    shown, boxes = things.paste(shown, photo, pixels, generator, training.pasted)
    around = photos.zooms(boxes, generator, things.may_mirror[photo], least=0.2)
    shown = _enlarged(photos.crop(shown, around), generator, training.enlarged)
    return _relit(shown, generator)


def _part_of_the_way(
    published: EfficientNetLite, taught: EfficientNetLite, kept: float
) -> EfficientNetLite:
    """Between both towers little that was learned is lost, and some that was forgotten is back
    (Wortsman et al., 2022)."""
    before, after = published.state_dict(), taught.state_dict()
    taught.load_state_dict({name: before[name].lerp(after[name], kept) for name in after})
    return taught


def _of_things(targets: Targets) -> tuple[Tensor, tuple[str, ...]]:
    chosen = [i for i, kind in enumerate(targets.kinds) if kind]
    return targets.wanted[:, chosen], tuple(targets.names[i] for i in chosen)


def _naming(logits: Tensor, wanted: Tensor) -> Tensor:
    """Every name by itself, summed, so that the one right name counts beside all the wrong."""
    each = F.binary_cross_entropy_with_logits(logits, wanted.clamp(min=0), reduction="none")
    return (each * (wanted != UNKNOWN)).sum(1).mean()


def _telling_apart(logits: Tensor, wanted: Tensor) -> Tensor:
    """One name before all others, where a thing is shown."""
    shows_one = (wanted == 1).any(1)
    return F.cross_entropy(logits[shows_one], wanted[shows_one].argmax(1), label_smoothing=SMOOTHED)


def _distillation(classes: Tensor, before: Tensor) -> Tensor:
    """How far what the tower says of its own classes is from what it said."""
    return F.kl_div(
        classes.float().log_softmax(-1),
        before.float().log_softmax(-1),
        reduction="batchmean",
        log_target=True,
    )


def _enlarged(pixels: Tensor, generator: torch.Generator, fraction: float) -> Tensor:
    """That share of the pictures as if they had been enlarged from fewer pixels."""
    size = pixels.shape[-1]
    some = (torch.rand(len(pixels), generator=generator) < fraction).nonzero()[:, 0]
    if len(some) == 0:
        return pixels
    fewest, most = min(FEWEST, size // 2), size * 5 // 8
    fewer = int(torch.randint(fewest, most + 1, (1,), generator=generator))
    small = F.interpolate(pixels[some], (fewer, fewer), mode="bilinear", antialias=True)
    again = F.interpolate(small, (size, size), mode="bicubic").clamp(-1, 1)
    return pixels.index_copy(0, some.to(pixels.device), again)


def _relit(pixels: Tensor, generator: torch.Generator, most: float = 0.25) -> Tensor:
    """Each picture brighter or darker, and of more or less contrast."""

    def factor() -> Tensor:
        draw = torch.rand(len(pixels), 1, 1, 1, generator=generator).to(pixels.device)
        return 1 + most * (2 * draw - 1)

    middle = pixels.mean((1, 2, 3), keepdim=True)
    relit = middle + (pixels - middle) * factor() + (factor() - 1)
    return relit.clamp(-1, 1)
