"""Whatever the budgets, whoever decides: the trace accounts for each token, passage and edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skipqa.image import open_image
from skipqa.nn.budget import DifficultyBudgetConfig, DiscreteBudgetConfig, build_budget
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.region_query import RegionQueryConfig, build_region_query
from skipqa.nn.saliency import SaliencyConfig, build_saliency
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.pipeline import Answer, Pipeline
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord, Trace
from skipqa.types import Decoded

WIDTH, HEADS, FEATURES = 384, 12, 1_280
QUESTION = "How is this drink brewed?"


class NoDecoding:
    """decode: what is left out happens before the decoder, which takes most of the time."""

    def __init__(self, parts: Parts) -> None: ...

    def __call__(self, state: State, record: StageRecord) -> State:
        record.kept = record.dropped = 0
        record.why = "not asked"
        return state.add(prompt="", answer=Decoded(""))


class EncodedOnce:
    """The pipeline's backbone with the photo already encoded."""

    def __init__(self, pipeline: Pipeline, photo: Path) -> None:
        self.backbone = pipeline.backbone
        image, scales = open_image(photo), pipeline.config.encode.scales
        self.low_res = self.backbone.encode_low_res(image, scales)
        self.high_res = self.backbone.encode_high_res(image, self.low_res[0], scales)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name)

    def encode_low_res(self, image: object, scales: tuple[int, ...] = ()) -> Any:
        # Only zoom, with a crop of the photo, asks without scales.
        return self.low_res if scales else self.backbone.encode_low_res(cast(Any, image))

    def encode_high_res(self, image: object, low_res: object, scales: tuple[int, ...]) -> Any:
        return (low_res, 0) if len(scales) == 1 else self.high_res


def without_decoding(pipeline: Pipeline, photo: Path) -> Pipeline:
    backbone = cast(Any, EncodedOnce(pipeline, photo))
    return pipeline.with_backbone(backbone).with_stages(decode=NoDecoding)


@pytest.fixture(scope="module")
def untrained(pipeline: Pipeline, photo: Path) -> Pipeline:
    return without_decoding(pipeline, photo)


@pytest.fixture(scope="module")
def trained(trained_pipeline: Pipeline, photo: Path) -> Pipeline:
    return without_decoding(trained_pipeline, photo)


def counts(trace: Trace, stage: str) -> tuple[int, int]:
    record = trace[stage]
    assert record.kept is not None, stage
    assert record.dropped is not None, stage
    assert record.why, stage
    return record.kept, record.dropped


def check(answer: Answer) -> None:
    trace, state = answer.trace, answer.state
    allowed, retrieved = state.budget, state.retrieved
    verified, fused = state.verified, state.fused
    num_tokens = answer.num_tokens
    assert counts(trace, "look") == (num_tokens, 0)
    # Every token was kept or dropped, and the kept ones are each in one region.
    kept_positions = state.kept.positions.tolist()
    assert counts(trace, "prune") == (len(kept_positions), num_tokens - len(kept_positions))
    assert len(kept_positions) == len(set(kept_positions)) == min(allowed.tokens, num_tokens)
    members = sorted(member for region in state.regions for member in region.members)
    assert members == kept_positions
    # Every hit was kept or dropped; every passage kept was then accepted or rejected.
    assert counts(trace, "retrieve")[0] == len(retrieved.passages) <= allowed.passages
    assert sum(counts(trace, "retrieve")) == retrieved.num_hits
    judged = [*verified.passages, *(passage for passage, _ in verified.rejected)]
    assert sorted(p.row for p in judged) == sorted(p.row for p in retrieved.passages)
    assert counts(trace, "verify") == (len(verified.passages), len(verified.rejected))
    assert len(verified.passages) <= allowed.most_passages(len(retrieved.passages))
    # Every pair of a kept token and a kept passage was an edge or not.
    assert fused.edges.shape == (len(kept_positions), len(verified.passages))
    num_edges = int(fused.edges.sum())
    assert counts(trace, "fuse") == (num_edges, fused.edges.numel() - num_edges)
    assert [e.id for e in answer.evidence] == [p.passage.id for p in verified.passages]


@given(
    tokens=st.integers(1, 600),
    passages=st.integers(0, 20),
    threshold=st.floats(0, 1),
    min_passages=st.integers(0, 4),
    beta=st.floats(0, 1),
)
@settings(max_examples=12)
def test_without_components(
    untrained: Pipeline,
    photo: Path,
    tokens: int,
    passages: int,
    threshold: float,
    min_passages: int,
    beta: float,
) -> None:
    system = untrained.with_config(
        budget={"tokens": tokens, "passages": passages},
        verify={"threshold": threshold, "min_passages": min_passages},
        fuse={"beta": beta},
    )
    check(system.answer(photo, QUESTION, fast_path=False))


@given(tokens=st.integers(1, 600), passages=st.integers(0, 20), threshold=st.floats(0, 1))
@settings(max_examples=6)
def test_with_the_shipped_components(
    trained: Pipeline, photo: Path, tokens: int, passages: int, threshold: float
) -> None:
    system = trained.with_config(
        budget={"tokens": tokens, "passages": passages}, verify={"threshold": threshold}
    )
    answer = system.answer(photo, QUESTION)
    check(answer)
    assert counts(answer.trace, "encode") == (64, 0)
    assert counts(answer.trace, "look") == ((256 if passages else 64), 0)
    assert counts(answer.trace, "draft") == (0, 1)


def test_as_shipped(trained_looked_up: Answer) -> None:
    check(trained_looked_up)
    kept = len(trained_looked_up.evidence)
    assert sum(counts(trained_looked_up.trace, "decode")) == kept


@given(variant=st.sampled_from("AB"), seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_with_components(
    untrained: Pipeline, photo: Path, variant: Literal["A", "B"], seed: int
) -> None:
    torch.manual_seed(seed)
    kind = DiscreteBudgetConfig if variant == "A" else DifficultyBudgetConfig
    controller, verifier = build_budget(kind(WIDTH, WIDTH)), Verifier(VerifierConfig(WIDTH, WIDTH))
    for module in (controller, verifier):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    concepts = len(untrained.backbone.concepts)
    system = untrained.with_components(
        budget=controller,
        saliency=build_saliency(SaliencyConfig(WIDTH, variant)),
        region_query=build_region_query(RegionQueryConfig(FEATURES, concepts, WIDTH)),
        verifier=verifier,
        fusion=BipartiteFusion(FusionConfig(WIDTH, WIDTH, HEADS, variant)),
    )
    answer = system.answer(photo, QUESTION, fast_path=False)
    check(answer)
    again = system.answer(photo, QUESTION, fast_path=False)
    assert again.evidence == answer.evidence
    assert torch.equal(again.state.fused.tokens, answer.state.fused.tokens)
