import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn.region_query import RegionQueryConfig, build_region_query, term_flops_loss

CONFIG = RegionQueryConfig(5, 4, hidden=8, vocabulary=40, max_terms=6)


@given(st.integers(0, 10_000))
def test_queries_are_sparse_positive_and_sorted(seed: int) -> None:
    torch.manual_seed(seed)
    model = build_region_query(CONFIG)
    weights = model(torch.randn(3, 5), torch.randn(4))
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
    weights = model(torch.randn(3, 5).double(), torch.randn(4).double()).detach()
    weights = torch.where(weights > 0, weights.round(decimals=2) + torch.arange(40) * 1e-4, 0.0)
    written_out = torch.zeros_like(weights)
    for row, query in enumerate(model.queries(weights)):
        written_out[row, query.terms] = torch.from_numpy(query.weights).double()
    soft = model.relaxed_queries(weights, 1e-6)
    torch.testing.assert_close(soft, written_out, atol=1e-6, rtol=0)


def test_permuting_regions_permutes_queries() -> None:
    torch.manual_seed(0)
    regions, question, boxes = torch.randn(2, 4, 5), torch.randn(2, 4), torch.rand(2, 4, 4)
    order = torch.tensor([2, 0, 3, 1])
    sparse = build_region_query(CONFIG)
    torch.testing.assert_close(
        sparse(regions[:, order], question), sparse(regions, question)[:, order]
    )
    dense = build_region_query(RegionQueryConfig(5, 4, "B", hidden=8, retrieval_width=7))
    whole = dense(regions, question, boxes)
    assert whole.shape == (2, 4, 7)
    torch.testing.assert_close(dense(regions[:, order], question, boxes[:, order]), whole[:, order])


def test_term_flops_loss_is_least_for_few_terms() -> None:
    spread, narrow = torch.ones(4, 10), torch.zeros(4, 10)
    narrow[:, 0] = 1.0
    assert term_flops_loss(spread) == 10.0
    assert term_flops_loss(narrow) == 1.0
