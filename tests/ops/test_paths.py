"""K-partite attention is the bipartite operator over the edges of paths."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from skipqa.errors import UserError
from skipqa.ops.bipartite_attention import bipartite_attention, path_edges

WIDTH = 6
sizes = st.integers(1, 4)
seeds = st.integers(0, 300)


def drawn(seed: int, *shape: int, prob: float = 0.5) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < prob


def attended(edges: Tensor, lengths: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """What each token reads, with the queries and the words."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(len(edges), 1, WIDTH, generator=generator)
    words = torch.randn(sum(lengths), 1, WIDTH, generator=generator)
    return bipartite_attention(queries, words, words, edges, lengths), queries, words


def by_walking(*edges: Tensor) -> Tensor:
    """The same edges, one path after another."""
    num_tokens, per_round = len(edges[0]), [one.shape[1] for one in edges]
    found = torch.zeros(num_tokens, sum(per_round), dtype=torch.bool)
    for token in range(num_tokens):
        here, base = [token], 0
        for number, step in enumerate(edges):
            here = sorted({k for j in here for k in range(step.shape[1]) if step[j, k]})
            for k in here:
                found[token, base + k] = True
            base += per_round[number]
    return found


@given(sizes, sizes, sizes, sizes, seeds)
def test_an_edge_for_every_path(tokens: int, one: int, two: int, three: int, seed: int) -> None:
    edges = drawn(seed, tokens, one), drawn(seed + 1, one, two), drawn(seed + 2, two, three)
    assert torch.equal(path_edges(*edges), by_walking(*edges))


@given(sizes, sizes, seeds)
def test_one_round_is_the_bipartite_operator(tokens: int, passages: int, seed: int) -> None:
    edges = drawn(seed, tokens, passages)
    lengths = [1 + (seed + j) % 3 for j in range(passages)]
    assert torch.equal(path_edges(edges), edges)
    same, *_ = attended(path_edges(edges), lengths, seed)
    assert torch.equal(same, attended(edges, lengths, seed)[0])


@given(sizes, sizes, sizes, seeds)
def test_all_paths_open_is_dense_over_all_rounds(
    tokens: int, one: int, two: int, seed: int
) -> None:
    edges = path_edges(
        torch.ones(tokens, one, dtype=torch.bool), torch.ones(one, two, dtype=torch.bool)
    )
    lengths = [1 + (seed + j) % 3 for j in range(one + two)]
    read, queries, words = attended(edges, lengths, seed)
    weights = (queries[:, 0] @ words[:, 0].T / math.sqrt(WIDTH)).softmax(-1)
    torch.testing.assert_close(read[:, 0], weights @ words[:, 0], rtol=1e-4, atol=1e-5)


@given(sizes, sizes, sizes, seeds)
def test_no_path_reads_nothing_and_what_no_path_reaches_is_never_read(
    tokens: int, one: int, two: int, seed: int
) -> None:
    first, onward = drawn(seed, tokens, one, prob=0.3), drawn(seed + 1, one, two, prob=0.3)
    edges = path_edges(first, onward)
    lengths = [2] * (one + two)
    read, queries, words = attended(edges, lengths, seed)
    assert not bool(read[~first.any(1)].any())
    unreached = torch.repeat_interleave(~edges.any(0), 2)
    changed = words.masked_fill(unreached[:, None, None], math.nan)
    again = bipartite_attention(queries, changed, changed, edges, lengths)
    assert torch.equal(read, again)


def test_rounds_that_do_not_follow_each_other() -> None:
    with pytest.raises(UserError, match=r"round 2 have shape .*, the round before has 3 passages"):
        path_edges(torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool))
