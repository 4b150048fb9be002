"""Which regions are seen for themselves, and what that changes."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from synthetic import WIDTH, concepts, kept_tokens, question

from skipqa.config import RegionsConfig, ZoomConfig
from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead
from skipqa.stages.regions import find_regions
from skipqa.stages.zoom import cut, zoom
from skipqa.trace import StageRecord, Trace
from skipqa.types import Budget, KeptTokens, Region

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


def concept_prior(strength: float) -> ConceptPriorHead:
    module = ConceptPriorHead(ConceptPriorConfig(width=WIDTH, hidden=8))
    torch.manual_seed(0)
    torch.nn.init.normal_(module.of_question.weight, std=strength)
    torch.nn.init.normal_(module.of_concept.weight, std=strength)
    return module


def seen(
    config: ZoomConfig = CONFIG,
    concept_prior: ConceptPriorHead | None = None,
    passages: int = 6,
    positions: tuple[int, ...] = (0, 1, 2, 8, 9, 10, 16, 17),  # in a corner
) -> tuple[KeptTokens, tuple[Region, ...], KeptTokens, tuple[Region, ...], StageRecord, Eyes]:
    kept = kept_tokens(8, list(positions), seed=3)
    trace, eyes, asked = Trace(), Eyes(), question()
    if concept_prior is not None:
        expected = concept_prior.prior(asked.embedding, KNOWN.embeddings)
        asked = dataclasses.replace(asked, concept_prior=expected)
    with trace.stage("regions") as record:
        regions = find_regions(kept, RegionsConfig(max_regions=2), record)
    with trace.stage("zoom") as record:
        after, zoomed = zoom(
            *(IMAGE, kept, regions, asked, Budget(8, passages), eyes, config, record),  # type: ignore[arg-type]
        )
    return kept, regions, after, zoomed, record, eyes


@pytest.mark.parametrize(
    ("config", "concept_prior", "passages"),
    [
        (CONFIG, None, 6),
        (CONFIG, concept_prior(0.0), 6),
        (CONFIG, concept_prior(2.0), 0),
        (dataclasses.replace(CONFIG, regions=0), concept_prior(2.0), 6),
        (dataclasses.replace(CONFIG, largest=0.0), concept_prior(2.0), 6),
        (dataclasses.replace(CONFIG, sure=0.0), concept_prior(2.0), 6),
    ],
)
def test_what_is_not_worth_it_is_left(
    config: ZoomConfig, concept_prior: ConceptPriorHead | None, passages: int
) -> None:
    """Nothing expected or left open, nothing to retrieve, no region allowed or small enough."""
    kept, regions, after, zoomed, record, eyes = seen(config, concept_prior, passages)
    assert after is kept
    assert zoomed == regions
    assert eyes.shown == []
    assert (record.kept, record.dropped, record.flops) == (0, len(regions), 0)
    assert record.why


def test_small_regions_are_seen_for_themselves() -> None:
    kept, regions, after, zoomed, record, eyes = seen(concept_prior=concept_prior(2.0))
    assert 0 < len(eyes.shown) == record.kept <= len(regions)
    assert record.flops >= 1_000 * len(eyes.shown)
    changed = [r for r in range(len(regions)) if zoomed[r] != regions[r]]
    assert len(changed) == record.kept
    for r in changed:
        assert zoomed[r].concepts[0] == (PUG, pytest.approx(0.94))
        assert zoomed[r].members == regions[r].members
        old = dict(regions[r].concepts)
        assert all(prob >= old.get(concept, 0.0) - 1e-6 for concept, prob in zoomed[r].concepts)
    inside = sorted(member for r in changed for member in regions[r].members)
    outside = sorted(set(range(64)) - set(inside))
    assert torch.equal(after.tokens.evidence[outside], kept.tokens.evidence[outside])
    assert (after.tokens.evidence[inside][:, PUG] > 0.4).all()
    torch.testing.assert_close(after.tokens.evidence.sum(1), torch.ones(64))
    torch.testing.assert_close(after.tokens.meaning.norm(dim=1), torch.ones(64))
    assert torch.equal(after.positions, kept.positions)


probs = st.floats(0, 1)


@given(st.tuples(probs, probs, probs, probs), st.integers(1, 300), st.integers(1, 300))
def test_a_cut_is_inside_the_picture_and_holds_the_box(
    corners: tuple[float, float, float, float], width: int, height: int
) -> None:
    left, right = sorted(corners[:2])
    top, bottom = sorted(corners[2:])
    piece = cut(Image.new("RGB", (width, height)), (left, top, right, bottom), CONFIG)
    assert 1 <= piece.width <= width
    assert 1 <= piece.height <= height
    assert piece.width + 2 >= (right - left) * width
    assert piece.height + 2 >= (bottom - top) * height


def test_how_much_a_question_tells() -> None:
    asked = question().embedding
    assert concept_prior(0.0).prior(asked, KNOWN.embeddings).information == pytest.approx(
        0.0, abs=1e-5
    )
    assert concept_prior(1.0).prior(asked, KNOWN.embeddings).information > 0
