"""The fusion layer: both orders of computing it agree, and skipping is exact."""

from __future__ import annotations

import pytest
import torch

from skipqa.nn.fusion import CPU_ATTENTION_PRICE, BipartiteFusion, FusionConfig, cheaper_order


def layer(seed=0, dtype=torch.float64, **config):
    torch.manual_seed(seed)
    made = BipartiteFusion(FusionConfig(24, 16, 4, head_width=8, edge_width=8, **config))
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
    "config",
    [
        {"beta": 0.3},
        {"beta": 1.0},
        {"beta": None},
        {"variant": "B", "degree": 2.0},
        {"variant": "B", "degree": None},
    ],
    ids=str,
)
def test_absorbed_projections_give_the_projected_result(config):
    fusion = layer(**config)
    if config == {"variant": "B", "degree": None}:
        torch.nn.init.constant_(fusion.threshold, 0.1)
    projected = fusion(*inputs(), order="project")
    absorbed = fusion(*inputs(), order="absorb")
    torch.testing.assert_close(projected.tokens, absorbed.tokens)
    assert torch.equal(projected.edges, absorbed.edges)


def test_tokens_without_an_edge_leave_bit_for_bit_as_they_came():
    fusion = layer(beta=0.3, dtype=torch.float32)
    tokens, *rest = inputs(dtype=torch.float32)
    found = fusion(tokens, *rest)
    idle = ~found.edges.any(-1)
    assert idle.any()
    assert torch.equal(found.tokens[idle], tokens[idle])
    assert not torch.equal(found.tokens[~idle], tokens[~idle])


def test_passages_without_an_edge_are_never_read():
    fusion = layer(beta=0.1)
    tokens, passages, embeddings, lengths = inputs()
    edges = fusion(tokens, passages, embeddings, lengths).edges
    unread = torch.repeat_interleave(~edges.any(1).flatten(), lengths.flatten())
    assert unread.any()
    poisoned = torch.where(unread[:, None], torch.nan, passages)
    for order in ("project", "absorb"):
        assert fusion(tokens, poisoned, embeddings, lengths, order=order).tokens.isfinite().all()


def test_no_edge_at_all():
    fusion = layer(beta=0.0)
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
    fusion = layer(beta=None)
    fusion(*inputs()).tokens.square().sum().backward()
    for name, parameter in fusion.named_parameters():
        learns = parameter.grad is not None and parameter.grad.abs().sum() > 0
        assert learns == (name not in CHOOSING), name


@pytest.mark.parametrize(("variant", "opens"), [("A", False), ("B", True)])
def test_a_score_of_exactly_the_threshold(variant, opens):
    """A_ij > tau in equation 8, cosine >= tau_e in equation B.4."""
    fusion = layer(variant=variant, beta=None, degree=None)
    scores = fusion(*inputs()).scores.detach()
    torch.nn.init.constant_(fusion.threshold, float(scores[0, 2, 2]))
    assert bool(fusion(*inputs()).edges[0, 2, 2]) == opens


def test_the_cheaper_order():
    config = FusionConfig(384, 384, 12)
    few, many = (10, 1_600, 2_000), (64, 1_600, 102_400)  # tokens, words, words over all edges
    assert cheaper_order(config, *few) == ("absorb", 2 * 10 * 384**2 + 2 * 2_000 * 384 * 12)
    assert cheaper_order(config, *many) == ("project", 2 * 1_600 * 384**2 + 2 * 102_400 * 384)
    # Between the two, attention's price decides: timed on a CPU, projecting is the faster.
    between = (62, 1_600, 40_000)
    assert cheaper_order(config, *between)[0] == "absorb"
    assert cheaper_order(config, *between, CPU_ATTENTION_PRICE)[0] == "project"
