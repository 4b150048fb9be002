"""fuse computes attention along edges only, and nothing else can change its result."""

from __future__ import annotations

import dataclasses
import math

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from synthetic import WIDTH, kept_tokens, question, run, state, verified

from skipqa.config import FuseConfig
from skipqa.stages.fuse import CosineFuser, Fuse
from skipqa.trace import StageRecord
from skipqa.types import Fused, KeptTokens, Verified

GRID = 5
ASKED = question()
positions = st.sets(st.integers(0, GRID * GRID - 1), min_size=1, max_size=12).map(sorted)
lengths = st.lists(st.integers(1, 6), min_size=1, max_size=5)
seeds = st.integers(0, 200)


def fused_by(config: FuseConfig, kept: KeptTokens, passages: Verified) -> tuple[Fused, StageRecord]:
    entering = state(question=ASKED, kept=kept, verified=passages)
    leaving, record = run(Fuse(CosineFuser(config)), entering)
    return leaving.fused, record


def fuse(kept: KeptTokens, passages: Verified, beta: float) -> tuple[Fused, StageRecord]:
    return fused_by(FuseConfig(beta=beta), kept, passages)


def choose(passages: Verified, order: list[int]) -> Verified:
    return dataclasses.replace(
        passages,
        passages=tuple(passages.passages[j] for j in order),
        scores=tuple(passages.scores[j] for j in order),
        token_states=tuple(passages.token_states[j] for j in order),
        embeddings=passages.embeddings[order],
    )


@given(positions, lengths, seeds, st.floats(0, 1))
def test_fraction_of_edges_and_rows_without_any(
    positions: list[int], lengths: list[int], seed: int, beta: float
) -> None:
    kept, passages = kept_tokens(GRID, positions, seed), verified(lengths, seed)
    fused, record = fuse(kept, passages, beta)
    pairs = len(positions) * len(lengths)
    assert int(fused.edges.sum()) == min(pairs, math.ceil(beta * pairs - 1e-6))
    assert (record.kept, record.dropped) == (int(fused.edges.sum()), int((~fused.edges).sum()))
    untouched = ~fused.edges.any(1)
    before = kept.tokens.meaning[kept.positions]
    assert torch.equal(fused.tokens[untouched], before[untouched])
    assert all((mass > 0) == bool(fused.edges[:, j].any()) for j, mass in enumerate(fused.mass))
    tokens_with_an_edge = int(fused.edges.any(1).sum())
    torch.testing.assert_close(sum(fused.mass), float(tokens_with_an_edge), rtol=1e-4, atol=1e-5)


@given(positions, lengths, st.lists(st.booleans(), min_size=5, max_size=5), seeds)
def test_own_documents_and_general_knowledge_have_edges_of_their_own(
    positions: list[int], lengths: list[int], own: list[bool], seed: int
) -> None:
    """As many as either has without the other: neither can take them all."""
    kept, passages = kept_tokens(GRID, positions, seed), verified(lengths, seed)
    told = zip(passages.passages, own, strict=False)
    passages = dataclasses.replace(
        passages, passages=tuple(dataclasses.replace(p, own=kind) for p, kind in told)
    )
    fused, _ = fuse(kept, passages, 0.1)
    for kind in (True, False):
        places = [j for j, one in enumerate(passages.passages) if one.own == kind]
        if places:
            alone, _ = fuse(kept, choose(passages, places), 0.1)
            assert torch.equal(fused.edges[:, places], alone.edges)
            assert any(fused.mass[j] > 0 for j in places)


@given(positions, lengths, seeds)
def test_all_edges_equal_dense_attention(
    positions: list[int], lengths: list[int], seed: int
) -> None:
    kept, passages = kept_tokens(GRID, positions, seed), verified(lengths, seed)
    fused, _ = fuse(kept, passages, 1.0)
    tokens = kept.tokens.meaning[kept.positions]
    words = torch.cat(passages.token_states)
    weights = ((tokens + ASKED.embedding) @ words.T / math.sqrt(WIDTH)).softmax(-1)
    torch.testing.assert_close(fused.tokens, tokens + weights @ words, rtol=1e-4, atol=1e-5)


@given(positions, lengths, seeds, st.floats(0.05, 0.6))
def test_dropping_a_passage_without_edges_changes_nothing(
    positions: list[int], lengths: list[int], seed: int, beta: float
) -> None:
    kept, passages = kept_tokens(GRID, positions, seed), verified(lengths, seed)
    fused, _ = fuse(kept, passages, beta)
    used = [j for j, mass in enumerate(fused.mass) if mass > 0]
    assume(0 < len(used) < len(lengths))
    same_edges = int(fused.edges.sum()) / (len(positions) * len(used))
    fewer, _ = fuse(kept, choose(passages, used), same_edges)
    assert torch.equal(fewer.edges, fused.edges[:, used])
    assert torch.equal(fewer.tokens, fused.tokens)


@given(positions, lengths, seeds, st.floats(0, 1), st.randoms(use_true_random=False))
def test_order_of_passages_does_not_matter(
    positions: list[int], lengths: list[int], seed: int, beta: float, shuffle: object
) -> None:
    kept, passages = kept_tokens(GRID, positions, seed), verified(lengths, seed)
    order = list(range(len(lengths)))
    shuffle.shuffle(order)  # type: ignore[attr-defined]
    fused, _ = fuse(kept, passages, beta)
    permuted, _ = fuse(kept, choose(passages, order), beta)
    assert torch.equal(permuted.edges, fused.edges[:, order])
    torch.testing.assert_close(permuted.tokens, fused.tokens, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.tensor(permuted.mass), torch.tensor(fused.mass)[order], rtol=1e-4, atol=1e-5
    )


def test_no_passages_leave_the_tokens_alone() -> None:
    kept = kept_tokens(GRID, [1, 2, 3], 0)
    fused, record = fuse(kept, verified([], 0), 0.1)
    assert torch.equal(fused.tokens, kept.tokens.meaning[kept.positions])
    assert fused.edges.shape == (3, 0)
    assert fused.mass == ()
    assert (record.kept, record.dropped) == (0, 0)


def test_flops_are_counted_along_edges_only() -> None:
    kept, passages = kept_tokens(GRID, list(range(10)), 0), verified([4, 4, 4], 0)
    sparse, dense = (fuse(kept, passages, beta)[1].flops for beta in (0.1, 1.0))
    scoring = 2 * 10 * 3 * WIDTH
    assert (dense - scoring) == 10 * (sparse - scoring)


@given(positions, lengths, seeds, st.floats(0, 9))
def test_mean_degree(positions: list[int], lengths: list[int], seed: int, degree: float) -> None:
    kept, passages = kept_tokens(GRID, positions, seed), verified(lengths, seed)
    fused, _ = fused_by(FuseConfig(edges="degree", degree=degree), kept, passages)
    pairs = len(positions) * len(lengths)
    assert int(fused.edges.sum()) == min(pairs, math.ceil(degree * len(positions) - 1e-6))
