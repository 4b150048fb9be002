"""verify only orders and drops; with too few survivors it recalls the best rejected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import WIDTH, kept_tokens, retrieved_passage, run, state

from skipqa.backbones.backbone import EncodedTexts
from skipqa.backbones.presets.pocket import Pocket
from skipqa.config import VerifyConfig
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.nn.verifier import flops as verifier_flops
from skipqa.pipeline import Pipeline
from skipqa.stages.signals import SIGNALS, about_titles
from skipqa.stages.verify import (
    EmbeddingVerifier,
    PassageVerifier,
    SignalVerifier,
    SimilarityVerifier,
    Verify,
    build,
)
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import (
    Budget,
    KeptTokens,
    Question,
    Region,
    Retrieved,
    Verified,
    VisualTokens,
)

TEXTS = [
    "espresso (noun): strong black coffee brewed by forcing hot water under pressure",
    "espresso shop (noun): a cafe where espresso is served",
    "naval battle (noun): a pitched battle between naval fleets",
    "Andorra: geography: landlocked; straddles a number of important crossroads",
    "beagle (noun): a small short-legged smooth-coated breed of hound",
]

DEFAULT, ALL = VerifyConfig(), VerifyConfig(threshold=0.0)
ENOUGH = Budget(2, len(TEXTS))


@pytest.fixture(scope="module")
def backbone(pipeline: Pipeline) -> Pocket:
    assert isinstance(pipeline.backbone, Pocket)
    return pipeline.backbone


@pytest.fixture(scope="module")
def asked(backbone: Pocket) -> Question:
    text = "How is this drink brewed?"
    encoded = backbone.encode_texts([text])
    return Question(text, encoded.embeddings[0], ("drink", "brewed"), encoded.states[0])


@pytest.fixture(scope="module")
def regions(backbone: Pocket) -> tuple[Region, ...]:
    names = [concept.name for concept in backbone.concepts.entries]
    seen = (names.index("espresso"), names.index("beagle"))
    return tuple(Region((0, 0, 1, 1), (0,), ((concept, 0.9),), 1.0) for concept in seen)


@pytest.fixture(scope="module")
def asking(asked: Question, regions: tuple[Region, ...]) -> State:
    """The kept tokens are read by a trained verifier only."""
    return state(question=asked, regions=regions, kept=kept_tokens(2, [0, 1], 0))


@pytest.fixture(scope="module")
def similarity(backbone: Pocket) -> SimilarityVerifier:
    return SimilarityVerifier(VerifyConfig(), backbone)


def retrieved(rows: list[int], by: int = 0) -> Retrieved:
    passages = tuple(retrieved_passage(row, TEXTS[row], by, 5.0 - row / 10) for row in rows)
    return Retrieved(passages, len(rows), len(rows))


def verify(
    found: Retrieved,
    asking: State,
    scorer: PassageVerifier,
    config: VerifyConfig = DEFAULT,
    budget: Budget = ENOUGH,
) -> tuple[Verified, StageRecord]:
    leaving, record = run(Verify(config, scorer), asking.add(retrieved=found, budget=budget))
    return leaving.verified, record


rows = st.lists(st.sampled_from(range(len(TEXTS))), unique=True, min_size=1)


@given(rows)
@settings(max_examples=15)
def test_accepting_all_changes_nothing_but_the_order(
    asking: State, similarity: SimilarityVerifier, backbone: Pocket, rows: list[int]
) -> None:
    found = retrieved(rows)
    kept, record = verify(found, asking, similarity, ALL)
    assert sorted(p.row for p in kept.passages) == sorted(rows)
    assert set(kept.passages) == set(found.passages)
    assert kept.rejected == ()
    assert (record.kept, record.dropped) == (len(rows), 0)
    assert list(kept.scores) == sorted(kept.scores, reverse=True)
    assert "recalled" not in record.why
    assert kept.embeddings.shape == (len(rows), 384)
    alone = backbone.encode_texts([passage.passage.text for passage in kept.passages])
    assert torch.equal(kept.embeddings, alone.embeddings)
    for states, expected in zip(kept.token_states, alone.states, strict=True):
        assert torch.equal(states, expected)


@given(rows, st.floats(0.05, 1))
@settings(max_examples=15)
def test_keeps_the_best_fraction_of_what_was_found(
    asking: State, similarity: SimilarityVerifier, rows: list[int], rho_r: float
) -> None:
    """Algorithm 1: the top ceil(rho_r K), whether accepted or recalled."""
    everything, _ = verify(retrieved(rows), asking, similarity, ALL)
    most = math.ceil(rho_r * len(rows) - 1e-4)
    budget = Budget(2, len(TEXTS), rho_r=rho_r)
    for threshold in (0.0, 1.1):
        config = VerifyConfig(threshold=threshold, min_passages=len(rows))
        kept, record = verify(retrieved(rows), asking, similarity, config, budget)
        assert kept.passages == everything.passages[:most]
        assert (record.kept, record.dropped) == (most, len(rows) - most)


@given(rows, st.integers(0, 6))
@settings(max_examples=15)
def test_rejecting_all_recalls_the_best(
    asking: State, similarity: SimilarityVerifier, rows: list[int], least: int
) -> None:
    everything, _ = verify(retrieved(rows), asking, similarity, ALL)
    config = VerifyConfig(threshold=1.1, min_passages=least)
    kept, record = verify(retrieved(rows), asking, similarity, config)
    recalled = min(least, len(rows))
    assert kept.passages == everything.passages[:recalled]
    assert [passage for passage, _ in kept.rejected] == list(everything.passages[recalled:])
    assert (record.kept, record.dropped) == (recalled, len(rows) - recalled)
    assert ("recalled" in record.why) == (recalled > 0)


def test_what_has_to_do_with_the_question_stays(
    asking: State, similarity: SimilarityVerifier
) -> None:
    config = VerifyConfig(min_passages=0)
    kept, _ = verify(retrieved([4, 3, 2, 1, 0]), asking, similarity, config)
    assert {passage.row for passage in kept.passages} == {0, 1}
    assert all(score >= 0.5 for score in kept.scores)
    assert all(score < 0.5 for _, score in kept.rejected)


def test_a_passage_is_judged_for_the_region_that_asked(
    asking: State, similarity: SimilarityVerifier
) -> None:
    """A beagle's gloss is off the topic for the region with the cup, on it for the dog's."""
    cup, dog = (
        verify(retrieved([4], by=region), asking, similarity)[0].scores[0] for region in (0, 1)
    )
    assert dog > cup


def test_nothing_found_nothing_verified(asking: State, similarity: SimilarityVerifier) -> None:
    kept, record = verify(retrieved([]), asking, similarity)
    assert kept.passages == kept.rejected == ()
    assert kept.embeddings.shape == (0, 384)
    assert (record.kept, record.dropped) == (0, 0)


def test_no_more_than_the_budget_stay(asking: State, similarity: SimilarityVerifier) -> None:
    everything, _ = verify(retrieved([4, 3, 2, 1, 0]), asking, similarity, ALL)
    kept, record = verify(retrieved([4, 3, 2, 1, 0]), asking, similarity, ALL, Budget(2, 2))
    assert kept.passages == everything.passages[:2]
    assert (record.kept, record.dropped) == (2, 3)


@pytest.mark.parametrize(("opinion", "kept_rows", "recalled"), [(9.0, 3, 0), (-9.0, 1, 1)])
def test_a_trained_verifier_accepts_rejects_and_recalls(
    asking: State, backbone: Pocket, opinion: float, kept_rows: int, recalled: int
) -> None:
    torch.manual_seed(0)
    trained = Verifier(VerifierConfig(384, WIDTH))
    torch.nn.init.constant_(trained.out.bias, opinion)
    found = retrieved([0, 2, 4])
    kept, record = verify(found, asking, EmbeddingVerifier(trained, backbone))
    assert len(kept.passages) == kept_rows
    everything = [*kept.passages, *(passage for passage, _ in kept.rejected)]
    assert sorted(p.row for p in everything) == [0, 2, 4]
    assert (record.kept, record.dropped) == (kept_rows, 3 - kept_rows)
    assert (f"{recalled} recalled" in record.why) == bool(recalled)


class Counting:
    """A backbone that keeps what it was given to encode."""

    def __init__(self, backbone: Pocket) -> None:
        self.backbone, self.concepts = backbone, backbone.concepts
        self.passes: list[list[str]] = []

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        self.passes.append(list(texts))
        return self.backbone.encode_texts(texts)


def test_a_verifier_with_signals_has_all_it_reads_encoded_at_once(
    asking: State, backbone: Pocket
) -> None:
    torch.manual_seed(0)
    trained = Verifier(VerifierConfig(384, 384, signals=SIGNALS))
    counting, found = Counting(backbone), retrieved([0, 2, 4])
    evidence = torch.rand(4, len(backbone.concepts)).softmax(-1)
    meaning = evidence @ backbone.concepts.embeddings
    tokens = VisualTokens(torch.rand(4, 8), evidence, meaning, evidence.mean(0), 2)
    kept = KeptTokens(torch.tensor([0, 3]), torch.rand(4), tokens)
    scorer = SignalVerifier(trained, cast(Any, counting))
    verified, record = verify(found, asking.add(kept=kept), scorer, budget=Budget(2, 3))
    titles = about_titles(asking.question, [passage.passage.title for passage in found.passages])
    assert counting.passes == [[TEXTS[0], TEXTS[2], TEXTS[4], *titles]]
    alone = backbone.encode_texts([passage.passage.text for passage in verified.passages])
    torch.testing.assert_close(verified.embeddings, alone.embeddings)
    encoded = backbone.encode_texts(counting.passes[0])
    assert record.flops == encoded.flops + verifier_flops(trained.config, 3)


def test_a_verifier_reads_what_the_decoder_reads(asking: State, backbone: Pocket) -> None:
    found = retrieved([0, 2])
    first = replace(found.passages[0], excerpt="espresso: strong black coffee")
    found = replace(found, passages=(first, found.passages[1]))
    counting = Counting(backbone)
    trained = EmbeddingVerifier(Verifier(VerifierConfig(384, WIDTH)), cast(Any, counting))
    verify(found, asking, trained)
    assert counting.passes == [["espresso: strong black coffee", TEXTS[2]]]


@pytest.mark.parametrize("signals", [0, SIGNALS])
def test_the_verifier_decides_what_is_read_for_it(pipeline: Pipeline, signals: int) -> None:
    assert type(build(pipeline.parts).verifier) is SimilarityVerifier
    trained = pipeline.with_components(verifier=Verifier(VerifierConfig(384, 384, signals=signals)))
    assert type(build(trained.parts).verifier) is (SignalVerifier if signals else EmbeddingVerifier)
