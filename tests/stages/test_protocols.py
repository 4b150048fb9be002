"""What a stage is built with comes in two kinds, trained or not, that are called alike."""

from __future__ import annotations

import inspect

import pytest

from skipqa.evaluation.systems import merging, pruners, retrievers
from skipqa.evaluation.systems.ablations import AcceptAll
from skipqa.evaluation.systems.baselines import LateRerank, MemoryAttention, PassThrough
from skipqa.evaluation.systems.reading_apart import ReadApart
from skipqa.pipeline import NAMES, STAGES, Pipeline
from skipqa.stages import budget, draft, encode, fuse, prune, readers, regions, retrieve, verify
from skipqa.stages.stage import Stage

IMPLEMENTATIONS: dict[type, list[type]] = {
    encode.PriorEstimator: [encode.NoPrior, encode.TrainedPrior],
    encode.SpanFinder: [encode.NoSpan, encode.TrainedSpan],
    draft.Drafter: [draft.IdentityDrafter, draft.TrainedDrafter],
    budget.Budgeter: [
        *(budget.FixedBudgeter, budget.AbstainBudgeter),
        *(budget.TrainedBudgeter, budget.ReadingBudgeter),
    ],
    prune.TokenScorer: [
        *(prune.ConceptScorer, prune.SaliencyScorer),
        *(pruners.RandomScorer, pruners.AttentionScorer, pruners.SimilarityScorer),
        *(pruners.CertaintyScorer, pruners.KeepHeadScorer),
    ],
    regions.Proposer: [regions.ClusterProposer, regions.BoxProposer],
    retrieve.RegionQuerier: [
        *(retrieve.ConceptQuerier, retrieve.SparseQuerier, retrieve.DenseQuerier),
        *(retrievers.TextQuerier, retrievers.LateQuerier),
    ],
    verify.PassageVerifier: [
        verify.SimilarityVerifier,
        verify.EmbeddingVerifier,
        verify.SignalVerifier,
        verify.PairVerifier,
    ],
    fuse.Fuser: [fuse.CosineFuser, fuse.TrainedFuser, fuse.ReadingFuser],
    readers.Reader: [
        *(readers.QuotingReader, readers.ClauseReader),
        *(readers.ShortReader, readers.InstructedReader),
    ],
    readers.Generate: [readers.ReadTogether, ReadApart],
    Stage: [
        *(merging.MergeTokens, merging.MergeFurther, merging.PruneAndMerge, pruners.SampleTokens),
        *(AcceptAll, LateRerank, PassThrough, MemoryAttention),
    ],
}
PAIRS = [(protocol, kind) for protocol, kinds in IMPLEMENTATIONS.items() for kind in kinds]


@pytest.mark.parametrize(("protocol", "kind"), PAIRS, ids=lambda one: one.__name__)
def test_it_is_called_as_its_protocol_says(protocol: type, kind: type) -> None:
    """Names, order, defaults and types."""
    own = {name for name, value in vars(protocol).items() if inspect.isfunction(value)}
    methods = {name for name in own if name == "__call__" or not name.startswith("_")}
    assert "__call__" in methods
    for name in methods:
        said, done = getattr(protocol, name), getattr(kind, name)
        assert inspect.signature(done) == inspect.signature(said), name


def test_every_stage_of_the_flow_is_called_alike(pipeline: Pipeline) -> None:
    signature = inspect.signature(Stage.__call__)
    for name in NAMES:
        assert inspect.signature(type(pipeline.stages[name]).__call__) == signature, name
        assert list(inspect.signature(STAGES[name]).parameters) == ["parts"]
