"""The fusion layer: both orders of computing it agree, and skipping is exact."""

from __future__ import annotations

import pytest
import torch

from skipqa.nn.fusion import BipartiteFusion, EdgeRule


def layer(rule=None, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    made = BipartiteFusion(24, 16, 4, rule=rule or EdgeRule(top=0.3), head_width=8, edge_width=8)
    torch.nn.init.normal_(made.out.weight, std=0.2)
    return made.to(dtype)


def inputs(seed=1, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([[5, 0, 7], [3, 9, 1]])
    return (
        torch.randn(2, 6, 24, generator=g, dtype=dtype),
        torch.randn(int(lengths.sum()), 16, generator=g, dtype=dtype),
        torch.randn(2, 3, 16, generator=g, dtype=dtype),
        lengths,
    )


@pytest.mark.parametrize(
    "rule",
    [
        EdgeRule(top=0.3),
        EdgeRule(top=1.0),
        EdgeRule(kind="cosine", degree=2),
        EdgeRule(threshold=True),
    ],
)
def test_absorbed_projections_give_the_projected_result(rule):
    fusion = layer(rule)
    projected = fusion(*inputs(), order="project")
    absorbed = fusion(*inputs(), order="absorb")
    torch.testing.assert_close(projected.tokens, absorbed.tokens)
    assert torch.equal(projected.edges, absorbed.edges)


def test_tokens_without_an_edge_leave_bit_for_bit_as_they_came():
    fusion = layer(dtype=torch.float32)
    tokens, *rest = inputs(dtype=torch.float32)
    found = fusion(tokens, *rest)
    idle = ~found.edges.any(-1)
    assert idle.any()
    assert torch.equal(found.tokens[idle], tokens[idle])
    assert not torch.equal(found.tokens[~idle], tokens[~idle])


def test_passages_without_an_edge_are_never_read():
    fusion = layer(EdgeRule(top=0.1))
    tokens, passages, embeddings, lengths = inputs()
    edges = fusion(tokens, passages, embeddings, lengths).edges
    unread = torch.repeat_interleave(~edges.any(1).flatten(), lengths.flatten())
    assert unread.any()
    poisoned = torch.where(unread[:, None], torch.nan, passages)
    for order in ("project", "absorb"):
        assert fusion(tokens, poisoned, embeddings, lengths, order=order).tokens.isfinite().all()


def test_no_edge_at_all():
    fusion = layer(EdgeRule(top=0.0))
    tokens, *rest = inputs()
    assert torch.equal(fusion(tokens, *rest).tokens, tokens)


def test_one_item_equals_a_batch_of_one():
    fusion = layer()
    tokens, passages, embeddings, lengths = inputs()
    n = int(lengths[0].sum())
    one = fusion(tokens[0], passages[:n], embeddings[0], lengths[0].tolist())
    batch = fusion(tokens[:1], passages[:n], embeddings[:1], lengths[:1])
    torch.testing.assert_close(one.tokens, batch.tokens[0])
    assert one.edges.shape == (6, 3)


CHOOSING = {"edge_token.weight", "edge_passage.weight", "threshold"}


def test_an_open_edge_counts_fully():
    """Eq. B.5 has no compatibility in it: choosing edges learns in the relaxed form alone."""
    fusion = layer(EdgeRule(threshold=True))
    fusion(*inputs()).tokens.square().sum().backward()
    for name, parameter in fusion.named_parameters():
        learns = parameter.grad is not None and parameter.grad.abs().sum() > 0
        assert learns == (name not in CHOOSING), name


def test_the_cheaper_order_is_picked_from_counts():
    wide = BipartiteFusion(64, 64, 4, rule=EdgeRule(top=0.1))
    passages = torch.zeros(1600, 64)
    sparse, full = torch.zeros(1, 64, 16, dtype=torch.bool), torch.ones(1, 64, 16, dtype=torch.bool)
    sparse[0, 0, :4] = True
    assert wide._absorbing_is_cheaper(sparse, passages)
    assert not wide._absorbing_is_cheaper(full, passages)
