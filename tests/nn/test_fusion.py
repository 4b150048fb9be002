"""The fusion layer: both orders of computing it agree, and skipping is exact."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from skipqa.costs.flops import count_flops
from skipqa.nn.fusion import (
    CPU_ATTENTION_PRICE,
    BipartiteFusion,
    EdgeRule,
    FusionConfig,
    cheaper_order,
    flops,
)


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


RULES = pytest.mark.parametrize(
    "config",
    [
        {"beta": 0.1},
        {"beta": None},
        {"variant": "B", "degree": 0.5},
        {"variant": "B", "degree": None},
    ],
    ids=["A, top beta", "A, above tau", "B, degree", "B, at least tau_e"],
)
passage_lengths = st.lists(st.integers(0, 6), min_size=1, max_size=5)
seeds = st.integers(0, 1000)


def item(seed, lengths, num_tokens=7):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    words, embeddings = normal(sum(lengths), 16), normal(len(lengths), 16)
    return normal(num_tokens, 24), list(words.split(lengths)), embeddings


def fuse(fusion, tokens, passages, embeddings, order):
    """The layer over the passages of `order`."""
    lengths = [len(passages[j]) for j in order]
    words = torch.cat([passages[j] for j in order])
    return fusion(tokens, words, embeddings[order], lengths)


def frugal(config, tokens, passages, embeddings):
    """A layer that opens a handful of edges of this item, whatever its rule."""
    fusion = layer(**config).requires_grad_(False)
    scores = fusion.compatibility(tokens, embeddings).flatten().sort(descending=True).values
    fusion.threshold.fill_(scores[:5].mean())
    return fusion


@RULES
@given(seed=seeds, lengths=passage_lengths, shuffle=st.randoms(use_true_random=False))
def test_the_order_of_passages_does_not_matter(config, seed, lengths, shuffle):
    problem = item(seed, lengths)
    fusion = frugal(config, *problem)
    order = list(range(len(lengths)))
    plain = fuse(fusion, *problem, order)
    shuffle.shuffle(order)
    permuted = fuse(fusion, *problem, order)
    assert torch.equal(permuted.edges, plain.edges[:, order])
    torch.testing.assert_close(permuted.tokens, plain.tokens)


@RULES
@given(seed=seeds, lengths=passage_lengths)
def test_dropping_a_passage_without_edges_changes_nothing(config, seed, lengths):
    problem = item(seed, lengths)
    fusion = frugal(config, *problem)
    whole = fuse(fusion, *problem, list(range(len(lengths))))
    used = whole.edges.any(0).nonzero()[:, 0].tolist()
    assume(0 < len(used) < len(lengths))
    if fusion.rule.top is not None:  # of fewer pairs the same number of edges
        prob = int(whole.edges.sum()) / (len(problem[0]) * len(used))
        fusion.rule = EdgeRule(top=prob)
    fewer = fuse(fusion, *problem, used)
    assert torch.equal(fewer.edges, whole.edges[:, used])
    torch.testing.assert_close(fewer.tokens, whole.tokens)


# Against float64: three products and a softmax in a row, each rounded once.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
}


@pytest.mark.parametrize("order", ["project", "absorb"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@given(seed=seeds, lengths=passage_lengths)
def test_all_edges_are_dense_attention(dtype, order, seed, lengths):
    fusion = layer(beta=1.0).requires_grad_(False)
    tokens, passages, embeddings = item(seed, lengths)
    words = torch.cat(passages)
    low = layer(beta=1.0, dtype=dtype).requires_grad_(False)
    found = low(*(x.to(dtype) for x in (tokens, words, embeddings)), lengths, order=order)
    if sum(lengths) == 0:
        assert torch.equal(found.tokens, tokens.to(dtype))
        return
    assert found.edges[:, [length > 0 for length in lengths]].all()
    q, k, v = (
        x.unflatten(-1, (4, 8)).transpose(0, 1)
        for x in (fusion.query(tokens), fusion.key(words), fusion.value(words))
    )
    read = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
    dense = tokens + fusion.out(read)
    error = float((found.tokens.double() - dense).norm() / dense.norm())
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("beta", [0.02, 0.1, 0.5, 1.0])
def test_counted_flops_are_those_of_the_order_that_runs(beta):
    torch.manual_seed(0)
    fusion = BipartiteFusion(FusionConfig(48, 32, 4, beta=beta)).requires_grad_(False)
    tokens, words, lengths = torch.randn(40, 48), torch.randn(160, 32), [20] * 8
    inputs = tokens, words, torch.randn(8, 32), lengths
    counted = count_flops(lambda: fusion(*inputs))
    edges = fusion(*inputs).edges
    assert math.isclose(flops(fusion.config, edges, lengths), counted, rel_tol=0.02)


@pytest.mark.parametrize("order", ["auto", "project", "absorb"])
def test_the_gpu_path_gives_what_the_cpu_path_does(order):
    """Where there is no GPU, Triton's interpreter runs the kernels."""
    if order != "project":
        pytest.importorskip("triton")
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fusion = BipartiteFusion(FusionConfig(24, 16, 8, head_width=16, beta=0.3))
    torch.nn.init.normal_(fusion.out.weight, std=0.2)
    fusion.requires_grad_(False)
    tokens, passages, embeddings, lengths = inputs(dtype=torch.float32)
    expected = fusion(tokens, passages, embeddings, lengths)
    fusion.to(device)
    given = [x.to(device) for x in (tokens, passages, expected.edges, lengths)]
    found = fusion._fuse_batch(*given, order, longest=9).cpu()
    torch.testing.assert_close(found, expected.tokens, rtol=1e-4, atol=1e-5)
    idle = ~expected.edges.any(-1)
    assert torch.equal(found[idle], tokens[idle])


@pytest.mark.parametrize(("heads", "order"), [(8, "absorb"), (12, "project")])
def test_the_gpu_absorbs_only_in_whole_tiles_of_heads(heads, order):
    pytest.importorskip("triton")
    fusion = BipartiteFusion(FusionConfig(96, 96, heads, beta=0.01))
    edges = torch.zeros(1, 64, 16, dtype=torch.bool)
    assert fusion._gpu_order(edges, torch.zeros(1_600, 96)) == order
