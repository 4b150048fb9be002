"""The tagger learns from what is known, and no photo is named by a tagger that saw it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.training.run import Run
from skipqa.training.stage1 import tagger
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.photos import PhotoFeatures, pooled
from skipqa.training.stage1.pocket_kb import KINDS, Thing
from skipqa.training.stage1.tagger import (
    HIDDEN,
    UNKNOWN,
    TaggerTraining,
    TagProbs,
    Targets,
    Views,
    loss_of_known,
    mean_average_precision,
    recognised,
    recognised_in_crowds,
)

PHOTOS, WIDTH = 40, 6
NO_THINGS = torch.full((PHOTOS, 1), -1)
CONFIG = TaggerConfig(("a", "b"), ("", "dog"), width=WIDTH, hidden=8, text_width=4, dropout=0.1)


@pytest.fixture
def shown() -> Tensor:
    """Which of the two things each photo shows."""
    return torch.randint(0, 2, (PHOTOS, 2), generator=torch.Generator().manual_seed(0)).float()


@pytest.fixture
def seen(shown: Tensor) -> PhotoFeatures:
    """A feature for each thing, the others are noise."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, PHOTOS, 4, WIDTH, generator=generator)
    features[..., :2] += 4 * shown[:, None]
    views = torch.stack([pooled(view) for view in features.bfloat16()])
    return PhotoFeatures(
        features[:2].bfloat16(),
        torch.zeros(PHOTOS, 3),
        views[1:].transpose(0, 1),
        views[2:],
        torch.ones(1, PHOTOS, 1, dtype=torch.int8),
    )


@pytest.fixture
def labels(shown: Tensor) -> Tensor:
    """Some photos have no label, some have one."""
    found = shown.clone()
    found[::7] = UNKNOWN
    found[1::7, 1] = UNKNOWN
    return found


@pytest.fixture
def targets(labels: Tensor) -> Targets:
    return Targets(CONFIG.names, CONFIG.kinds, labels, NO_THINGS)


def targets_named(names: tuple[str, ...], kinds: tuple[str, ...]) -> Targets:
    return Targets(names, kinds, torch.empty(0), torch.empty(0))


def test_targets() -> None:
    mixture = Mixture(
        photos={(Path("z"), str(n)): n for n in range(6)},
        labels={0: ("cup", "cat"), 2: (), 4: ("dog",)},
        things={1: (Thing("flag", "mali"),), 3: (Thing("dog", "pug"),)},
    )
    found = tagger.targets(mixture)
    assert found.names == ("cat", "cup", "dog", "pug", "mali")
    assert found.kinds == ("", "", "", "dog", "flag")
    u = UNKNOWN
    assert found.labels.tolist() == [
        [1, 1, 0, 0, 0],  # no dog: no pug
        [u, u, u, 0, 1],
        [0, 0, 0, 0, 0],
        [u, u, u, 1, 0],
        [0, 0, 1, u, 0],  # a dog: nobody knows which
        [u, u, u, u, u],
    ]


def test_of_every_kind_it_is_known_what_may_hide_it() -> None:
    assert HIDDEN.keys() == set(KINDS.values())


CLASSES = sorted({"cup", "car", "zebra"}.union(*HIDDEN.values()))


@given(st.sets(st.sampled_from(CLASSES)))
def test_a_label_is_never_of_a_thing(shown: set[str]) -> None:
    """It says of every kind either that there is none, or nothing."""
    entities = {1 + place: (Thing(kind, "x"),) for place, kind in enumerate(HIDDEN)}
    photos = {(Path("z"), str(n)): n for n in range(1 + len(entities))}
    mixture = Mixture(photos=photos, labels={0: tuple(sorted(shown))}, things=entities)
    found = tagger.targets(mixture)
    for kind, value in zip(found.kinds, found.labels[0].tolist(), strict=True):
        if kind:
            assert value == (0 if HIDDEN[kind].isdisjoint(shown) else UNKNOWN)
    assert set(found.labels[0, [not kind for kind in found.kinds]].tolist()) <= {0, 1}
    things = found.labels[1:, [bool(kind) for kind in found.kinds]]
    assert things.sum(1).tolist() == [1] * len(entities)
    assert (things != UNKNOWN).all()


def test_what_is_unknown_gives_no_gradient(labels: Tensor) -> None:
    logits = torch.randn(labels.shape, requires_grad=True)
    loss_of_known(logits, labels).backward()
    assert logits.grad is not None
    assert (logits.grad[labels == UNKNOWN] == 0).all()
    assert (logits.grad[labels != UNKNOWN] != 0).all()


def test_a_batch_without_labels_has_no_gradient() -> None:
    logits = torch.randn(3, 2, requires_grad=True)
    loss = loss_of_known(logits, torch.full((3, 2), UNKNOWN))
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_a_crop_may_have_lost_what_a_photo_shows_but_not_the_thing(
    seen: PhotoFeatures, targets: Targets
) -> None:
    views = Views.of(seen, targets)
    assert views.whole == 2
    assert len(views.pooled) == 3
    torch.manual_seed(0)
    photo = torch.arange(PHOTOS).repeat(20)
    features, known = views.draw(photo)
    cut = (features == views.pooled[2, photo].float()).all(1)
    assert 0.2 < float(cut.float().mean()) < 0.5
    assert (known[cut, 0] == UNKNOWN).all()  # "a", of no kind
    assert torch.equal(known[~cut], targets.labels[photo[~cut]])
    assert torch.equal(known[:, 1], targets.labels[photo, 1])  # "b", a dog
    whole = (features == views.pooled[0, photo].float()).all(1)
    whole |= (features == views.pooled[1, photo].float()).all(1)
    assert (whole | cut).all()


def test_probs_come_from_taggers_that_did_not_see_the_photo(
    seen: PhotoFeatures, targets: Targets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saw: list[Tensor] = []

    def fit(*arguments: object) -> int:
        chosen = arguments[3]
        assert isinstance(chosen, Tensor)
        saw.append(chosen)
        return len(saw) - 1

    def probabilities(number: int, features: Tensor) -> Tensor:
        return torch.full((*features.shape[:-1], 2), float(number))

    monkeypatch.setattr(tagger, "_fit", fit)
    monkeypatch.setattr(tagger, "probabilities", probabilities)
    whole, probs = tagger.train(seen, targets, CONFIG, Run(tmp_path), TaggerTraining())
    labelled = (targets.labels != UNKNOWN).any(1)
    assert torch.equal(saw[int(whole)], labelled)  # type: ignore[call-overload]
    for fraction in (probs.low_res, probs.high_res):
        for photo in range(PHOTOS):
            assert not saw[int(fraction[photo, 0])][photo]
    assert sum(int(chosen.sum()) for chosen in saw[:-1]) == (tagger.FOLDS - 1) * int(labelled.sum())


def test_it_learns(seen: PhotoFeatures, targets: Targets, tmp_path: Path) -> None:
    training = TaggerTraining(epochs=60.0, batch=16, lr=1e-2)
    trained, probs = tagger.train(seen, targets, CONFIG, Run(tmp_path), training)
    assert isinstance(trained, Tagger)
    assert isinstance(probs, TagProbs)
    assert probs.low_res.shape == probs.high_res.shape == targets.labels.shape
    assert (probs.high_res >= probs.low_res).all()  # the maximum over all views
    for fraction in (probs.low_res, probs.high_res):
        # about half of the labels are 1
        assert mean_average_precision(fraction, targets.labels) > 0.8


def test_the_most_probable_window_is_the_high_resolution_prob(
    seen: PhotoFeatures, targets: Targets, tmp_path: Path
) -> None:
    """Of photos without labels, which the tagger itself is asked about."""
    training = TaggerTraining(epochs=4.0, batch=16)
    trained, probs = tagger.train(seen, targets, CONFIG, Run(tmp_path), training)
    photo = 7
    views = torch.cat((pooled(seen.views[0, photo])[None], seen.windows[photo])).float()
    expected = trained.judge(views).sigmoid()
    torch.testing.assert_close(probs.low_res[photo], expected[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(probs.high_res[photo], expected.amax(0), rtol=1e-3, atol=1e-4)


def test_recognised() -> None:
    known = targets_named(("cup", "pug", "corgi", "mali"), ("", "dog", "dog", "flag"))
    probs = torch.tensor([[0.9, 0.5, 0.4, 0.1], [0.0, 0.1, 0.2, 0.3], [0.0, 0.9, 0.0, 0.0]])
    checks = {
        0: Thing("dog", "pug"),
        1: Thing("dog", "corgi"),
    }  # the cup is no thing; the flag is surer
    assert recognised(probs, known, checks) == 0.5
    assert recognised(probs, known, checks | {2: Thing("flag", "pug")}) == pytest.approx(1 / 3)
    assert recognised(probs, known, {}) == 0


def test_nothing_is_recognised_where_no_things_are_known() -> None:
    assert recognised(torch.ones(2, 1), targets_named(("cup",), ("",)), {}) == 0


def test_recognised_in_crowds() -> None:
    """By the crop around each thing; single things and those without a name do not count."""
    known = targets_named(("a", "pug", "corgi"), ("", "dog", "dog"))
    torch.manual_seed(0)
    trained = Tagger(TaggerConfig(known.names, known.kinds, width=WIDTH, text_width=4)).eval()
    crops, nothing = torch.randn(2, 3, 2 * WIDTH), torch.zeros(0)
    features = PhotoFeatures(nothing, nothing, nothing, crops, nothing)
    best = tagger.probabilities(trained, crops)[..., 1:].argmax(-1).tolist()
    box = (0.1, 0.1, 0.3, 0.3)

    def dog(which: int) -> Thing:
        return Thing("dog", ("pug", "corgi")[which], box)

    unseen = Thing("dog", "collie", box)
    right = (dog(best[0][0]), dog(best[1][0]))
    half = (dog(best[0][1]), dog(1 - best[1][1]))
    alone = (dog(1 - best[0][2]),)

    def score(checks: dict[int, tuple[Thing, ...]]) -> float:
        return recognised_in_crowds(trained, features, known, checks)

    assert score({0: right}) == 1
    assert score({0: right, 1: half, 2: alone}) == 0.75
    assert score({0: (right[0], unseen)}) == 1
    assert score({0: (*right, *half)}) == 1  # the last have no crop
    assert score({2: alone}) == 0


def test_all_things_of_a_crowded_image_are_present_and_no_others() -> None:
    mixture = Mixture(
        photos={(Path("z"), str(n)): n for n in range(3)},
        labels={0: ("cup",)},
        things={
            1: (Thing("dog", "pug"), Thing("flag", "mali"), Thing("dog", "corgi")),
            2: (Thing("dog", "boxer"),),
        },
        checks={"val": {0: (Thing("dog", "collie"), Thing("dog", "pug"))}},
    )
    found = tagger.targets(mixture)
    assert found.names == ("cup", "boxer", "corgi", "pug", "mali")  # none of a thing to score by
    u = UNKNOWN
    assert found.labels[1:].tolist() == [[u, 0, 1, 1, 1], [u, 1, 0, 0, 0]]
    assert found.columns.tolist() == [[-1, 3, -1], [3, 4, 2], [1, -1, -1]]
    shows = torch.tensor([[1, 0, -1], [-1, 1, 1], [1, 0, 0]])
    cropped = found.of_crops(torch.tensor([1, 1, 2]), shows)
    assert cropped.tolist() == [[u, 0, u, 1, 0], [u, 0, 1, u, 1], [u, 1, 0, 0, 0]]


def test_a_crop_of_a_crowded_image_has_its_own_labels(seen: PhotoFeatures) -> None:
    columns = torch.tensor([[1, -1]]).repeat(PHOTOS, 1)
    shows = (torch.arange(PHOTOS) % 2).to(torch.int8)[None, :, None].repeat(1, 1, 2)
    crowded = dataclasses.replace(seen, crop_shows=shows)
    targets = Targets(CONFIG.names, CONFIG.kinds, torch.ones(PHOTOS, 2), columns)
    views, photo = Views.of(crowded, targets), torch.arange(PHOTOS).repeat(20)
    torch.manual_seed(0)
    features, known = views.draw(photo)
    cropped = (features == views.pooled[2, photo].float()).all(1)
    assert cropped.any()
    assert torch.equal(known[cropped, 1], (photo[cropped] % 2).float())
    assert (known[~cropped] == 1).all()


def test_mean_average_precision() -> None:
    probs = torch.tensor([[0.9, 0.1, 0.5], [0.8, 0.2, 0.5], [0.7, 0.3, 0.5], [0.99, 0.0, 0.5]])
    labels = torch.tensor([[1.0, 1, 0], [0, 0, 0], [1, 1, 0], [UNKNOWN, UNKNOWN, 0]])
    # (1 + 2/3) / 2 and (1 + 2/3) / 2; nobody has the third
    assert mean_average_precision(probs, labels) == pytest.approx(5 / 6)
    assert mean_average_precision(probs[:, 2:], labels[:, 2:]) == 0
