from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn.region_query import (
    RegionQueryConfig,
    RegionViews,
    build_region_query,
    term_flops_loss,
)

CONFIG = RegionQueryConfig(5, 3, 4, hidden=8, vocabulary=40, max_terms=6)


def views(*shape: int) -> RegionViews:
    return RegionViews(torch.randn(*shape, 5), torch.rand(*shape, 3))


@given(st.integers(0, 10_000))
def test_queries_are_sparse_positive_and_sorted(seed: int) -> None:
    torch.manual_seed(seed)
    model = build_region_query(CONFIG)
    weights = model.weights(torch.randn(3, 40).relu(), model(views(3), torch.randn(4)))
    for query, row in zip(model.queries(weights), weights, strict=True):
        assert len(query) <= CONFIG.max_terms
        assert (np.diff(query.terms) > 0).all()
        assert (query.weights > 0).all()
        assert len(query) == min(CONFIG.max_terms, int((row > 0).sum()))
        assert query.terms.dtype == np.int32
        assert query.weights.dtype == np.float32


@given(st.integers(0, 10_000))
def test_relaxed_queries_tend_to_the_hard_ones(seed: int) -> None:
    torch.manual_seed(seed)
    model = build_region_query(CONFIG).double()
    weights = torch.randn(3, 40).double().relu()
    weights = torch.where(weights > 0, weights.round(decimals=2) + torch.arange(40) * 1e-4, 0.0)
    written_out = torch.zeros_like(weights)
    for row, query in enumerate(model.queries(weights)):
        written_out[row, query.terms] = torch.from_numpy(query.weights).double()
    soft = model.relaxed_queries(weights, 1e-6)
    torch.testing.assert_close(soft, written_out, atol=1e-6, rtol=0)


def test_an_untrained_query_is_the_query_by_names() -> None:
    torch.manual_seed(0)
    model = build_region_query(RegionQueryConfig(5, 3, 4))
    names = torch.zeros(3, 30_522)
    names[:, :20] = torch.rand(3, 20) + 0.5
    query = model.weights(names, model(views(3), torch.randn(4)))
    torch.testing.assert_close(query, names, atol=1e-2, rtol=0)


def test_every_kind_of_term_is_alive_at_the_first_step() -> None:
    """The names' own terms and others: a gradient reaches both, and every layer before them."""
    torch.manual_seed(0)
    model = build_region_query(CONFIG)
    names = torch.zeros(16, 40)
    names[:, :10] = 2.0
    query = model.weights(names, model(views(16), torch.randn(4)))
    query[:, :10].sum().backward(retain_graph=True)
    inside = model.to_terms.weight.grad.abs().sum(1)
    assert (inside[:10] > 0).all()
    model.zero_grad()
    query[:, 10:].sum().backward()
    assert (model.to_terms.weight.grad[10:].abs().sum(1) > 0).all()
    for layer in (model.of_features, model.of_evidence, model.of_question):
        assert layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("asked", [0.0, 0.5, 8.0])
def test_a_term_falls_as_easily_as_it_rises(asked: float) -> None:
    """However heavy it is: one step of the residual is one step of the weight."""
    added = torch.tensor([0.3], requires_grad=True)
    build_region_query(CONFIG).weights(torch.tensor([asked]), added).sum().backward()
    assert added.grad == 1.0


def test_permuting_regions_permutes_queries() -> None:
    torch.manual_seed(0)
    seen, question, boxes = views(2, 4), torch.randn(2, 4), torch.rand(2, 4, 4)
    order = torch.tensor([2, 0, 3, 1])
    moved = RegionViews(seen.features[:, order], seen.evidence[:, order])
    sparse = build_region_query(CONFIG)
    torch.testing.assert_close(sparse(moved, question), sparse(seen, question)[:, order])
    dense = build_region_query(RegionQueryConfig(5, 3, 4, "B", hidden=8, retrieval_width=7))
    whole = dense(seen, question, boxes)
    assert whole.shape == (2, 4, 7)
    torch.testing.assert_close(dense(moved, question, boxes[:, order]), whole[:, order])


def test_term_flops_loss_is_least_for_few_terms() -> None:
    spread, narrow = torch.ones(4, 10), torch.zeros(4, 10)
    narrow[:, 0] = 1.0
    assert term_flops_loss(spread) == 10.0
    assert term_flops_loss(narrow) == 1.0
