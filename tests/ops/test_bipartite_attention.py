"""Bipartite attention on a CPU: the path that skips work against the one that masks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.ops.bipartite_attention import (
    bipartite_attention,
    compatibility,
    passage_mass,
    select_edges,
    word_mass,
)


def problem(seed, num_items, num_tokens, lengths, num_heads, width, density, dtype=torch.float64):
    """Random queries, packed passages, edges and edge biases. `lengths` is one list an item."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    num_passages = len(lengths[0])
    n = sum(map(sum, lengths))
    q = normal(num_items, num_tokens, num_heads, width)
    k, v = normal(n, num_heads, width), normal(n, num_heads, width)
    edges = torch.rand(num_items, num_tokens, num_passages, generator=g) < density
    bias = normal(num_items, num_tokens, num_passages)
    return q, k, v, edges, torch.tensor(lengths), bias


@st.composite
def problems(draw):
    num_items = draw(st.integers(1, 3))
    num_passages = draw(st.integers(1, 5))
    lengths = [[draw(st.integers(0, 9)) for _ in range(num_passages)] for _ in range(num_items)]
    return problem(
        draw(st.integers(0, 2**16)),
        num_items,
        draw(st.integers(1, 11)),
        lengths,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 8)),
        draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
    )


@given(problems(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_gather_equals_reference(given_problem, with_bias):
    q, k, v, edges, lengths, bias = given_problem
    bias = bias if with_bias else None
    found, expected = (
        bipartite_attention(q, k, v, edges, lengths, edge_bias=bias, backend=backend)
        for backend in ("gather", "reference")
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@given(problems())
@settings(max_examples=30, deadline=None)
def test_all_edges_equal_dense_attention(given_problem):
    q, k, v, edges, lengths, _ = given_problem
    out = bipartite_attention(q, k, v, torch.ones_like(edges), lengths)
    start = 0
    for b, total in enumerate(lengths.sum(-1).tolist()):
        if total:
            rows = slice(start, start + total)
            dense = torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(0, 1) for x in (q[b], k[rows], v[rows]))
            )
            torch.testing.assert_close(out[b], dense.transpose(0, 1), rtol=1e-10, atol=1e-12)
        start += total


@given(problems())
@settings(max_examples=30, deadline=None)
def test_unseen_passages_do_not_matter_and_edgeless_tokens_get_zero(given_problem):
    q, k, v, edges, lengths, _ = given_problem
    used = edges.any(1) & (lengths > 0)
    poison = torch.repeat_interleave(~used.flatten(), lengths.flatten())
    k, v = k.clone(), v.clone()
    k[poison] = v[poison] = math.nan
    out = bipartite_attention(q, k, v, edges, lengths)
    assert out.isfinite().all()
    edgeless = ~(edges & (lengths > 0)[:, None, :]).any(-1)
    assert (out[edgeless] == 0).all()


def test_a_batch_equals_its_items():
    q, k, v, edges, lengths, bias = problem(0, 3, 7, [[4, 0, 5], [1, 2, 3], [6, 6, 0]], 2, 4, 0.4)
    whole = bipartite_attention(q, k, v, edges, lengths, edge_bias=bias)
    start = 0
    for b in range(3):
        stop = start + int(lengths[b].sum())
        item = bipartite_attention(
            q[b], k[start:stop], v[start:stop], edges[b], lengths[b].tolist(), edge_bias=bias[b]
        )
        torch.testing.assert_close(item, whole[b])
        start = stop


@pytest.mark.parametrize("backend", ["gather", "reference"])
def test_gradients(backend):
    q, k, v, edges, lengths, bias = problem(1, 2, 4, [[3, 2], [0, 4]], 2, 3, 0.5)
    leaves = [x.requires_grad_() for x in (q, k, v, bias)]
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias: bipartite_attention(
            q, k, v, edges, lengths, edge_bias=bias, backend=backend
        ),
        leaves,
    )


def test_gradient_exists_without_any_edge():
    q, k, v, edges, lengths, _ = problem(2, 1, 3, [[2, 2]], 1, 4, 0.0)
    q.requires_grad_()
    bipartite_attention(q, k, v, edges, lengths).sum().backward()
    assert (q.grad == 0).all()


@given(problems())
@settings(max_examples=30, deadline=None)
def test_mass_is_a_distribution_over_the_edges(given_problem):
    q, k, v, edges, lengths, bias = given_problem
    mass = passage_mass(q, k, edges, lengths, edge_bias=bias)
    seen = edges & (lengths > 0)[:, None, :]
    assert (mass[~seen] == 0).all()
    torch.testing.assert_close(mass.sum(-1), seen.any(-1).to(mass.dtype))
    # Values that name their passage turn attention into its mass.
    names = torch.repeat_interleave(
        torch.arange(lengths.numel()) % lengths.shape[1], lengths.flatten()
    )
    for j in range(lengths.shape[1]):
        indicator = (names == j).to(v.dtype)[:, None, None].expand_as(v)
        fraction = bipartite_attention(q, k, indicator, edges, lengths, edge_bias=bias)
        torch.testing.assert_close(fraction.mean((-1, -2)), mass[..., j])


@given(problems())
@settings(max_examples=30, deadline=None)
def test_the_mass_of_words_adds_up_to_that_of_their_passages(given_problem):
    q, k, _, edges, lengths, bias = given_problem
    weights = torch.rand(q.shape[:2], dtype=q.dtype)
    mass = word_mass(q, k, edges, lengths, weights, edge_bias=bias)
    of_passages = passage_mass(q, k, edges, lengths, edge_bias=bias)
    expected = torch.einsum("bv,bvk->bk", weights, of_passages).flatten()
    ends = lengths.flatten().cumsum(0)
    found = torch.stack(
        [mass[e - n : e].sum() for e, n in zip(ends, lengths.flatten(), strict=True)]
    )
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-4, atol=1e-6)
    # A value that is one word's own picks out its mass
    for word in range(min(3, len(mass))):
        own = torch.zeros_like(k)
        own[word] = 1.0
        read = bipartite_attention(q, k, own, edges, lengths, edge_bias=bias).mean((-1, -2))
        expected = (weights * read).sum().to(mass.dtype)
        torch.testing.assert_close(mass[word], expected, rtol=1e-4, atol=1e-6)


@given(
    st.integers(0, 2**16),
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(1, 6),
    st.floats(0, 1),
)
@settings(max_examples=80, deadline=None)
def test_top_keeps_the_best_pairs(seed, num_items, num_tokens, num_passages, top):
    g = torch.Generator().manual_seed(seed)
    # Few distinct values, so that ties are common.
    scores = torch.randint(0, 5, (num_items, num_tokens, num_passages), generator=g) / 4
    lengths = torch.randint(0, 3, (num_items, num_passages), generator=g)
    edges = select_edges(scores, top=top, lengths=lengths)
    assert not (edges & (lengths == 0)[:, None, :]).any()
    for b in range(num_items):
        present = (lengths[b] > 0).expand(num_tokens, -1)
        kept, dropped = scores[b][edges[b]], scores[b][~edges[b] & present]
        assert len(kept) == math.ceil(top * present.sum().item() - 1e-6)
        if len(kept) and len(dropped):
            assert kept.min() >= dropped.max()


def test_degree_sets_the_mean_number_of_edges():
    scores = torch.rand(2, 64, 16, generator=torch.Generator().manual_seed(0))
    assert select_edges(scores, degree=4).sum((1, 2)).tolist() == [256, 256]
    assert select_edges(scores[0], degree=99).all()


@pytest.mark.parametrize("learned", [False, True])
def test_thresholds_at_their_boundary(learned):
    """The main text keeps A_ij > tau, the appendix a cosine >= tau_e."""
    scores = torch.tensor([[0.4, 0.5, 0.6]])
    tau = torch.tensor(0.5, requires_grad=True) if learned else 0.5
    assert select_edges(scores, above=tau).tolist() == [[False, False, True]]
    assert select_edges(scores, at_least=tau).tolist() == [[False, True, True]]
    assert select_edges(scores, at_least=tau, lengths=[1, 0, 1]).tolist() == [[False, False, True]]


def test_compatibility_variants():
    h_v, h_k = torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0], [0.0, -2.0]])
    torch.testing.assert_close(
        compatibility(h_v, h_k),
        torch.sigmoid(torch.tensor([[24.0, -8.0]]) / math.sqrt(2)),
    )
    torch.testing.assert_close(compatibility(h_v, h_k, kind="cosine"), torch.tensor([[0.96, -0.8]]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": torch.ones(2, 4)}, "edges"),
        ({"lengths": [1, 2, 3]}, "passage lengths"),
        ({"v": torch.ones(5, 1, 1)}, "do not fit"),
        ({"edge_bias": torch.ones(2, 3)}, "edge_bias"),
    ],
)
def test_wrong_shapes_are_named(change, message):
    good = {
        "q": torch.ones(2, 1, 3),
        "k": torch.ones(4, 1, 3),
        "v": torch.ones(4, 1, 3),
        "edges": torch.ones(2, 2, dtype=torch.bool),
        "lengths": [1, 3],
    }
    with pytest.raises(UserError, match=message):
        bipartite_attention(**{**good, **change})


def test_select_edges_wants_one_rule():
    with pytest.raises(UserError, match="exactly one"):
        select_edges(torch.ones(2, 2), above=0.5, top=0.1)
    with pytest.raises(UserError, match="fraction"):
        select_edges(torch.ones(2, 2), top=1.5)
