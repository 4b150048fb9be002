"""Names from one photo each: after those of the tagger, whose own logits stay as they are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn.prototypes import MIDPOINT, SLOPE, PrototypeTagger
from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.types import Prototypes

WIDTH, TEXT = 6, 5
KNOWN = ("pug", "rose")


def tagger(seed: int = 0) -> Tagger:
    torch.manual_seed(seed)
    made = Tagger(TaggerConfig(KNOWN, ("dog", "flower"), WIDTH, hidden=16, text_width=TEXT)).eval()
    made.standardise.running_mean.normal_()  # type: ignore[union-attr, operator]
    made.meanings.copy_(torch.randn(len(KNOWN), TEXT))
    return made


def photographed(names: tuple[str, ...], seed: int = 1) -> Prototypes:
    generator = torch.Generator().manual_seed(seed)
    pooled = torch.randn(len(names), 2 * WIDTH, generator=generator)
    return Prototypes(names, ("",) * len(names), pooled, torch.zeros(len(names), TEXT), "test")


@given(st.integers(0, 50), st.lists(st.integers(1, 3), min_size=0, max_size=2))
def test_what_the_tagger_says_of_its_own_names_stays(seed: int, shape: list[int]) -> None:
    known = tagger(seed)
    taught = PrototypeTagger(known, photographed(("mug", "kite"), seed))
    views = torch.randn(*shape, 2, 2 * WIDTH, generator=torch.Generator().manual_seed(seed))
    logits = taught.judge(views)
    assert logits.shape == (*shape, 2, 4)
    assert torch.equal(logits[..., :2], known.judge(views))
    assert taught.config.names == (*KNOWN, "mug", "kite")
    assert len(taught.meanings) == 4
    assert (taught.num_known, known.num_known) == (2, 2)


def test_a_view_is_named_by_the_photo_it_is_like() -> None:
    added = photographed(("mug", "kite", "lamp"))
    taught = PrototypeTagger(tagger(), added)
    near = taught.judge(added.pooled_NE)[:, len(KNOWN) :].detach()
    assert near.argmax(1).tolist() == [0, 1, 2]
    assert torch.allclose(near.diagonal(), torch.tensor(SLOPE * (1 - MIDPOINT)), atol=1e-4)
    assert float(near.diagonal().sigmoid().min()) > 0.99


def test_what_the_tagger_knows_is_not_added_again() -> None:
    taught = PrototypeTagger(tagger(), photographed(("rose", "mug")))
    assert taught.config.names == (*KNOWN, "mug")
    nothing = PrototypeTagger(tagger(), photographed(("rose",)))
    assert nothing.config.names == KNOWN
    assert torch.equal(
        nothing.judge(torch.ones(3, 2 * WIDTH)), tagger().judge(torch.ones(3, 2 * WIDTH))
    )


def test_it_is_not_trained() -> None:
    taught = PrototypeTagger(tagger(), photographed(("mug",)))
    assert not taught.prototypes_NH.requires_grad
    assert float(taught.prototypes_NH.norm(dim=1)) == pytest.approx(1.0)
