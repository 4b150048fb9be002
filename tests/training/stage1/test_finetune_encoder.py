"""The encoder learns names of things, keeps what it knew, and sees no held-out photo."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import networks
from torch import Tensor

from skipqa.backbones.networks.efficientnet_lite import EfficientNetLite
from skipqa.training.run import Run
from skipqa.training.stage1 import encoder, photos
from skipqa.training.stage1.encoder import EncoderTraining, LabelledPhotos
from skipqa.training.stage1.photos import Things
from skipqa.training.stage1.tagger import UNKNOWN, Targets

CPU = torch.device("cpu")
PHOTOS, SIZE = 24, 64
TRAINING = EncoderTraining(epochs=3.0, batch=8)
ROWS = range(PHOTOS - 6)  # the others are held out


class Killed(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class World:
    """Noise with a patch whose colour is the thing; every third photo is of no thing."""

    pixels: Tensor
    things: Things
    targets: Targets


@pytest.fixture
def world() -> World:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 80, (PHOTOS, 3, SIZE, SIZE), generator=generator)
    labels = torch.full((PHOTOS, 4), UNKNOWN)
    labels[::3, :2] = torch.tensor([1.0, 0.0])
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(PHOTOS, 1)
    columns = torch.full((PHOTOS, 1), -1)
    for photo in (photo for photo in range(PHOTOS) if photo % 3):
        thing = photo % 2
        pixels[photo, 2 * thing, 16:48, 16:48] = 255
        labels[photo, 2:] = torch.eye(2)[thing]
        columns[photo] = 2 + thing
        boxes[photo] = torch.tensor([0.25, 0.25, 0.75, 0.75])
    return World(
        pixels.to(torch.uint8),
        Things(
            boxes[:, None],
            count=torch.ones(PHOTOS, dtype=torch.long),
            may_mirror=torch.ones(PHOTOS, dtype=torch.bool),
            whole=torch.zeros(PHOTOS, dtype=torch.bool),
            grounds=torch.arange(0, PHOTOS, 3),
        ),
        Targets(("cup", "dog", "mali", "pug"), ("", "", "flag", "dog"), labels, columns),
    )


def finetune(
    world: World,
    run: Run,
    training: EncoderTraining = TRAINING,
    rows: Sequence[int] = ROWS,
    published: EfficientNetLite | None = None,
) -> EfficientNetLite:
    start = published or networks().vision
    labelled = LabelledPhotos(world.pixels, world.things, world.targets, rows)
    return encoder.finetune(start, labelled, run, training)


def weights(network: EfficientNetLite) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def same(first: EfficientNetLite, second: EfficientNetLite) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").open()]


def test_the_published_encoder_is_left_alone(world: World, tmp_path: Path) -> None:
    published = networks().vision
    before = weights(published)
    tuned = finetune(world, Run(tmp_path), published=published)
    assert tuned is not published
    assert all(torch.equal(before[name], value) for name, value in published.state_dict().items())
    assert not any(parameter.requires_grad for parameter in published.parameters())
    assert not any(parameter.requires_grad for parameter in tuned.parameters())
    assert not tuned.training
    assert tuned.state_dict().keys() == before.keys()
    after = tuned.state_dict()
    changed = {name.partition(".")[0] for name in before if not after[name].equal(before[name])}
    assert changed == {"stem", "blocks", "head", "classifier"}


def test_it_learns(world: World, tmp_path: Path) -> None:
    """Without distillation, mixup or label smoothing, so that the loss can vanish."""
    alone = dataclasses.replace(
        TRAINING, distillation_weight=0.0, mixup=0.0, cross_entropy_weight=0.0
    )
    training = dataclasses.replace(alone, epochs=30.0, lr=4e-2, encoder_lr_scale=0.3)
    finetune(world, Run(tmp_path), training)
    first, *_, last = losses(tmp_path)
    assert last < 0.2 * first


def test_distillation_keeps_what_the_published_encoder_says(world: World, tmp_path: Path) -> None:
    published = networks().vision
    shown = photos.as_input(world.pixels[ROWS], CPU)

    def says(network: EfficientNetLite) -> Tensor:
        with torch.inference_mode():
            return network.classifier(network(shown).mean((2, 3))).log_softmax(-1)

    def forgot(weight: float) -> float:
        training = dataclasses.replace(
            TRAINING, epochs=5.0, lr=1e-2, encoder_lr_scale=0.5, distillation_weight=weight
        )
        tuned = finetune(world, Run(tmp_path / str(weight)), training)
        before = says(published)
        return float((before.exp() * (before - says(tuned))).sum(1).mean())

    assert forgot(50.0) < 0.5 * forgot(0.0)


def test_other_photos_are_never_looked_at(world: World, tmp_path: Path) -> None:
    """Neither their pixels nor what is known of them."""
    first = finetune(world, Run(tmp_path / "a"))
    held_out = torch.ones(PHOTOS, dtype=torch.bool)
    held_out[torch.tensor(ROWS)] = False
    world.pixels[held_out] = 255 - world.pixels[held_out]
    world.things.boxes[held_out] = torch.tensor([0.15, 0.15, 0.25, 0.25])
    world.targets.labels[held_out] = 1 - world.targets.labels[held_out]
    world.targets.columns[held_out] = 3
    assert same(first, finetune(world, Run(tmp_path / "b")))
    world.pixels[ROWS[1]] = 255 - world.pixels[ROWS[1]]
    assert not same(first, finetune(world, Run(tmp_path / "c")))


def test_what_else_a_photo_shows_is_left_to_the_tagger(world: World, tmp_path: Path) -> None:
    first = finetune(world, Run(tmp_path / "a"))
    world.targets.labels[::3, :2] = torch.tensor([0.0, 1.0])
    assert same(first, finetune(world, Run(tmp_path / "b")))


def test_without_things_there_is_nothing_to_learn(world: World, tmp_path: Path) -> None:
    published, targets = networks().vision, world.targets
    nothing = dataclasses.replace(
        world,
        targets=Targets(
            targets.names[:2], ("", ""), targets.labels[:, :2], torch.full((PHOTOS, 1), -1)
        ),
    )
    assert finetune(nothing, Run(tmp_path), published=published) is published
    assert not list(tmp_path.iterdir())


def test_things_alone_will_do(world: World, tmp_path: Path) -> None:
    rows = [photo for photo in ROWS if photo % 3]
    published = networks().vision
    assert not same(finetune(world, Run(tmp_path), rows=rows), published)


def test_each_thing_of_a_crowded_image_is_named_by_itself() -> None:
    """Crops are around any of its things, and are labelled with what they show."""
    boxes = torch.tensor([[[0.0, 0.0, 0.4, 0.4], [0.6, 0.6, 1.0, 1.0]]], dtype=torch.float64)
    things = Things(
        boxes,
        count=torch.tensor([2]),
        may_mirror=torch.tensor([True]),
        whole=torch.tensor([False]),
        grounds=torch.zeros(0, dtype=torch.long),
    )
    pixels = torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8)
    pixels[0, 0, : SIZE * 4 // 10, : SIZE * 4 // 10] = 255  # red
    pixels[0, 2, SIZE * 6 // 10 :, SIZE * 6 // 10 :] = 255  # blue
    targets = Targets(
        ("cup", "red", "blue", "pug"),
        ("", "dog", "dog", "dog"),
        torch.tensor([[UNKNOWN, 1.0, 1.0, 0.0]]),
        torch.tensor([[1, 2]]),
    )
    of_things = encoder._of_things(targets)
    assert of_things.names == ("red", "blue", "pug")
    photo = torch.zeros(40, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    shown, shows = encoder._views(pixels, photo, things, TRAINING, generator)
    labels = of_things.of_crops(photo, shows)
    assert {tuple(label) for label in labels.tolist()} == {(1, 0, 0), (0, 1, 0)}
    red, _, blue = shown.mean((2, 3)).T
    assert torch.equal(red > blue, labels[:, 0] == 1)


def test_two_things_in_a_crop_are_both_right() -> None:
    labels = torch.tensor([[1.0, 1.0, 0.0], [UNKNOWN] * 3])
    logits = torch.zeros(2, 3, requires_grad=True)
    encoder._cross_entropy(logits, labels).backward()
    assert logits.grad is not None
    first, second, third = logits.grad[0].tolist()
    assert first == pytest.approx(second)
    assert first < 0 < third
    assert logits.grad[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kill_at", [1, 4])
def test_a_killed_run_ends_with_the_same_bits(
    world: World, tmp_path: Path, kill_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finetune(world, Run(tmp_path / "whole"))
    crop, left = photos.crop, [kill_at]

    def killed(*arguments: object, **named: object) -> Tensor:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return crop(*arguments, **named)  # type: ignore[arg-type]

    run = Run(tmp_path / "killed", save_every_s=0)
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "crop", killed)
        with pytest.raises(Killed):
            finetune(world, run)
    assert torch.load(run.state("encoder"), weights_only=True)["step"] == kill_at
    assert same(whole, finetune(world, run))
    assert same(whole, finetune(world, run))  # and of a finished one, its result


def test_a_seed_decides(world: World, tmp_path: Path) -> None:
    first = finetune(world, Run(tmp_path / "a", seed=1))
    assert not same(first, finetune(world, Run(tmp_path / "b", seed=2)))


def test_every_name_counts_and_unknown_ones_do_not() -> None:
    labels = torch.tensor([[1.0, 0.0, UNKNOWN], [UNKNOWN, UNKNOWN, UNKNOWN]])
    logits = torch.zeros(2, 3, requires_grad=True)
    loss = encoder._binary_loss(logits, labels)
    assert float(loss.detach()) == pytest.approx(2 * 0.6931 / 2, abs=1e-3)  # summed, then a mean
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[-0.25, 0.25, 0.0], [0.0, 0.0, 0.0]]


@given(st.integers(0, 1_000), st.floats(0.0, 0.9))
def test_another_light_is_still_a_picture(seed: int, most: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    pixels = 2 * torch.rand(4, 3, 8, 8, generator=generator) - 1
    found = encoder._relit(pixels, generator, most)
    assert found.shape == pixels.shape
    assert float(found.abs().max()) <= 1
    if most == 0:
        torch.testing.assert_close(found, pixels)
    one = found[0].flatten()[pixels[0].flatten().argsort()]
    assert (one.diff() >= -1e-6).all()  # what was brighter still is


def test_each_picture_has_a_light_of_its_own() -> None:
    pixels = torch.linspace(-0.5, 0.5, 192).view(1, 3, 8, 8).expand(4, 3, 8, 8)
    found = encoder._relit(pixels, torch.Generator().manual_seed(0))
    assert len({round(float(picture.mean()), 5) for picture in found}) == 4
    assert len({round(float(picture.std()), 5) for picture in found}) == 4


@given(st.integers(0, 2**31), st.floats(0, 1))
def test_some_are_enlarged_from_fewer_pixels(seed: int, fraction: float) -> None:
    pixels = torch.rand(6, 3, 64, 64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    seen = encoder._enlarged(pixels, torch.Generator().manual_seed(seed), fraction)
    assert seen.shape == pixels.shape
    assert float(seen.abs().max()) <= 1
    same_as_before = [bool(torch.equal(a, b)) for a, b in zip(seen, pixels, strict=True)]
    drawn = torch.rand(6, generator=torch.Generator().manual_seed(seed)) < fraction
    assert same_as_before == (~drawn).tolist()
