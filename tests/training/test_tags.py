"""The tagger learns from what is known, and no photo is named by a tagger that saw it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.training import tags
from skipqa.training.mixture import Mixture
from skipqa.training.photos import Seen
from skipqa.training.run import Run
from skipqa.training.tags import UNKNOWN, TagTraining, loss_of_known, mean_average_precision

PHOTOS, WIDTH = 40, 6
CONFIG = TaggerConfig(("a", "b"), ("", "dog"), width=WIDTH, hidden=8, text_width=4, dropout=0.1)


@pytest.fixture
def shown() -> Tensor:
    """Which of the two things each photo shows."""
    return torch.randint(0, 2, (PHOTOS, 2), generator=torch.Generator().manual_seed(0)).float()


@pytest.fixture
def seen(shown: Tensor) -> Seen:
    """A feature for each thing, the others are noise."""
    features = torch.randn(2, PHOTOS, 4, WIDTH, generator=torch.Generator().manual_seed(1))
    features[..., :2] += 4 * shown[:, None]
    return Seen(features.bfloat16(), torch.zeros(PHOTOS, 3))


@pytest.fixture
def wanted(shown: Tensor) -> Tensor:
    """Some photos have no label, some have one."""
    found = shown.clone()
    found[::7] = UNKNOWN
    found[1::7, 1] = UNKNOWN
    return found


def test_targets() -> None:
    mixture = Mixture(
        photos={(Path("z"), str(n)): n for n in range(4)},
        labels={0: ("cup", "cat"), 2: ()},
        entities={1: ("flag", "mali"), 3: ("dog", "pug")},
    )
    found = tags.targets(mixture)
    assert found.names == ("cat", "cup", "pug", "mali")
    assert found.kinds == ("", "", "dog", "flag")
    u = UNKNOWN
    assert found.wanted.tolist() == [[1, 1, u, u], [u, u, 0, 1], [0, 0, u, u], [u, u, 1, 0]]


def test_what_is_unknown_gives_no_gradient(wanted: Tensor) -> None:
    logits = torch.randn(wanted.shape, requires_grad=True)
    loss_of_known(logits, wanted).backward()
    assert logits.grad is not None
    assert (logits.grad[wanted == UNKNOWN] == 0).all()
    assert (logits.grad[wanted != UNKNOWN] != 0).all()


def test_shares_come_from_taggers_that_did_not_see_the_photo(
    seen: Seen, wanted: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saw: list[Tensor] = []

    def fit(*arguments: object) -> int:
        chosen = arguments[4]
        assert isinstance(chosen, Tensor)
        saw.append(chosen)
        return len(saw) - 1

    def probabilities(tagger: int, features: Tensor) -> Tensor:
        return torch.full((len(features), 2), float(tagger))

    monkeypatch.setattr(tags, "_fit", fit)
    monkeypatch.setattr(tags, "probabilities", probabilities)
    whole, shares = tags.train(seen, wanted, CONFIG, Run(tmp_path), TagTraining())
    labelled = (wanted != UNKNOWN).any(1)
    assert torch.equal(saw[int(whole)], labelled)  # type: ignore[call-overload]
    for photo in range(PHOTOS):
        assert not saw[int(shares[photo, 0])][photo]
    assert sum(int(chosen.sum()) for chosen in saw[:-1]) == (tags.FOLDS - 1) * int(labelled.sum())


def test_it_learns(seen: Seen, wanted: Tensor, tmp_path: Path) -> None:
    training = TagTraining(rounds=60.0, batch=16, rate=1e-2)
    tagger, shares = tags.train(seen, wanted, CONFIG, Run(tmp_path), training)
    assert isinstance(tagger, Tagger)
    assert shares.shape == wanted.shape
    assert mean_average_precision(shares, wanted) > 0.8  # about half of the labels are 1


def test_mean_average_precision() -> None:
    shares = torch.tensor([[0.9, 0.1, 0.5], [0.8, 0.2, 0.5], [0.7, 0.3, 0.5], [0.99, 0.0, 0.5]])
    wanted = torch.tensor([[1.0, 1, 0], [0, 0, 0], [1, 1, 0], [UNKNOWN, UNKNOWN, 0]])
    # (1 + 2/3) / 2 and (1 + 2/3) / 2; nobody has the third
    assert mean_average_precision(shares, wanted) == pytest.approx(5 / 6)
    assert mean_average_precision(shares[:, 2:], wanted[:, 2:]) == 0
