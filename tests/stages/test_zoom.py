"""Which regions are encoded on their own, and what that changes."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from synthetic import WIDTH, concepts, kept_tokens, question, run, state

from skipqa.config import RegionsConfig, ZoomConfig
from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead
from skipqa.stages.regions import ClusterProposer, FindRegions
from skipqa.stages.zoom import Zoom, crop
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Budget

KNOWN = concepts(*((name, ()) for name in "dog cat cup tea pug lily mali".split()))
PUG = 4
IMAGE = Image.new("RGB", (80, 40))
CONFIG = ZoomConfig(min_information=0.1, sure=1.0)


class Eyes:
    """A backbone that sees a pug in whatever it is shown, and remembers how large that was."""

    concepts = KNOWN

    def __init__(self) -> None:
        self.shown: list[tuple[int, int]] = []

    def encode_low_res(self, image: Image.Image) -> tuple[SimpleNamespace, int]:
        self.shown.append(image.size)
        overview = torch.full((len(KNOWN),), 0.01)
        overview[PUG] = 0.94
        return SimpleNamespace(overview=overview), 1_000


def prior_head(strength: float) -> ConceptPriorHead:
    module = ConceptPriorHead(ConceptPriorConfig(width=WIDTH, hidden=8))
    torch.manual_seed(0)
    torch.nn.init.normal_(module.of_question.weight, std=strength)
    torch.nn.init.normal_(module.of_concept.weight, std=strength)
    return module


def zoomed(
    config: ZoomConfig = CONFIG,
    head: ConceptPriorHead | None = None,
    passages: int = 6,
    positions: tuple[int, ...] = (0, 1, 2, 8, 9, 10, 16, 17),  # in a corner
) -> tuple[State, State, StageRecord, Eyes]:
    """The state before and after."""
    kept, eyes, asked = kept_tokens(8, list(positions), seed=3), Eyes(), question()
    if head is not None:
        prior = head.prior(asked.embedding, head.of_concept(KNOWN.embeddings))
        asked = dataclasses.replace(asked, concept_prior=prior)
    given = state(image=IMAGE, question=asked, kept=kept, budget=Budget(8, passages))
    before, _ = run(FindRegions(RegionsConfig(max_regions=2), ClusterProposer()), given)
    after, record = run(Zoom(config, eyes), before)  # type: ignore[arg-type]
    return before, after, record, eyes


@pytest.mark.parametrize(
    ("config", "head", "passages"),
    [
        (CONFIG, None, 6),
        (CONFIG, prior_head(0.0), 6),
        (CONFIG, prior_head(2.0), 0),
        (dataclasses.replace(CONFIG, regions=0), prior_head(2.0), 6),
        (dataclasses.replace(CONFIG, largest=0.0), prior_head(2.0), 6),
        (dataclasses.replace(CONFIG, sure=0.0), prior_head(2.0), 6),
    ],
)
def test_what_is_not_worth_it_is_left(
    config: ZoomConfig, head: ConceptPriorHead | None, passages: int
) -> None:
    """No prior or nothing left open, nothing to retrieve, no region allowed or small enough."""
    before, after, record, eyes = zoomed(config, head, passages)
    assert after is before
    assert eyes.shown == []
    assert (record.kept, record.dropped, record.flops) == (0, len(before.regions), 0)
    assert record.why


def test_small_regions_are_encoded_on_their_own() -> None:
    before, after, record, eyes = zoomed(head=prior_head(2.0))
    regions, seen = before.regions, after.regions
    assert 0 < len(eyes.shown) == record.kept <= len(regions)
    assert record.flops >= 1_000 * len(eyes.shown)
    changed = [r for r in range(len(regions)) if seen[r] != regions[r]]
    assert len(changed) == record.kept
    for r in changed:
        assert seen[r].concepts[0] == (PUG, pytest.approx(0.94))
        assert seen[r].members == regions[r].members
        old = dict(regions[r].concepts)
        assert all(prob >= old.get(concept, 0.0) - 1e-6 for concept, prob in seen[r].concepts)
    inside = sorted(member for r in changed for member in regions[r].members)
    outside = sorted(set(range(64)) - set(inside))
    tokens, old_tokens = after.kept.tokens, before.kept.tokens
    assert torch.equal(tokens.concept_probs[outside], old_tokens.concept_probs[outside])
    assert (tokens.concept_probs[inside][:, PUG] > 0.4).all()
    torch.testing.assert_close(tokens.concept_probs.sum(1), torch.ones(64))
    torch.testing.assert_close(tokens.meaning.norm(dim=1), torch.ones(64))
    assert torch.equal(after.kept.positions, before.kept.positions)
    assert not (old_tokens.concept_probs[inside][:, PUG] > 0.4).all(), "the old state is untouched"


probs = st.floats(0, 1)


@given(st.tuples(probs, probs, probs, probs), st.integers(1, 300), st.integers(1, 300))
def test_a_crop_is_inside_the_image_and_holds_the_box(
    corners: tuple[float, float, float, float], width: int, height: int
) -> None:
    left, right = sorted(corners[:2])
    top, bottom = sorted(corners[2:])
    piece = crop(Image.new("RGB", (width, height)), (left, top, right, bottom), CONFIG)
    assert 1 <= piece.width <= width
    assert 1 <= piece.height <= height
    assert piece.width + 2 >= (right - left) * width
    assert piece.height + 2 >= (bottom - top) * height


def test_how_much_a_question_tells() -> None:
    asked = question().embedding

    def information(strength: float) -> float:
        head = prior_head(strength)
        return head.prior(asked, head.of_concept(KNOWN.embeddings)).information

    assert information(0.0) == pytest.approx(0.0, abs=1e-5)
    assert information(1.0) > 0
