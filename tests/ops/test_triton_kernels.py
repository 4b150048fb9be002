"""The Triton kernels against the masked reference: interpreted on a CPU, compiled on a GPU.

On a CPU the interpreter runs the kernels' logic in float32 (numpy has no bfloat16); marked `gpu`,
the whole grid runs compiled in every precision.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")  # tests/conftest.py turns its interpreter on

from skipqa.errors import UserError
from skipqa.ops.bipartite_attention import (
    bipartite_attention,
    compatibility,
    cuda,
    reference,
    select_edges,
)
from skipqa.ops.bipartite_attention import triton as kernels
from skipqa.ops.bipartite_attention.fused import Weights, fusion_layer
from skipqa.ops.bipartite_attention.selection import choose_edges
from skipqa.ops.bipartite_attention.triton import Launch

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
NAMES = ("out", "dq", "dk", "dv", "dbias")


def draw(seed, num_items, num_tokens, lengths, num_heads, width, density, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g).to(DEVICE, dtype)

    num_passages = len(lengths[0])
    packed = sum(map(sum, lengths))
    edges = torch.rand(num_items, num_tokens, num_passages, generator=g) < density
    return (
        [
            normal(num_items, num_tokens, num_heads, width),
            normal(packed, num_heads, width),
            normal(packed, num_heads, width),
            normal(num_items, num_tokens, num_passages),
        ],
        edges.to(DEVICE),
        torch.tensor(lengths, device=DEVICE),
    )


def forward_and_gradients(attend, tensors, edges, lengths, dtype, biased):
    leaves = [x.detach().to(dtype).requires_grad_() for x in tensors]
    q, k, v, bias = leaves
    used = leaves if biased else leaves[:3]
    out = attend(q, k, v, edges, lengths, bias if biased else None, 0.3)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(DEVICE, dtype)
    return [x.detach().double() for x in (out, *torch.autograd.grad(out, used, grad))]


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm().clamp(min=1e-12))


def assert_no_worse_than_torch(tensors, edges, lengths, *launches, biased=True):
    """At most twice the error of torch in the same precision; both against float64.

    A launch of the Triton kernels is also that of their backward pass; behind one for Hopper comes
    the kernel for Hopper where it takes the inputs.
    """
    dtype = tensors[0].dtype
    oracle = reference.bipartite_attention
    exact = forward_and_gradients(oracle, tensors, edges, lengths, torch.float64, biased)
    theirs = forward_and_gradients(oracle, tensors, edges, lengths, dtype, biased)
    # Where the exact value nearly vanishes, as every dbias with one edge, rounding remains; dbias
    # is a difference of two sums, each rounded.
    eps, unit = torch.finfo(dtype).eps, float(edges.sum().sqrt())
    for launch in launches:
        backward = None
        bias = tensors[3] if biased else None
        if isinstance(launch, cuda.Launch) and cuda.fits_backward(
            *tensors[:3], bias, edges.shape[2]
        ):
            backward = cuda.Backward()
        elif isinstance(launch, Launch):
            backward = Launch(launch.parts, min(32, launch.block_m), launch.block_n, 4, 1)
        ours = partial(kernels.bipartite_attention, forward_launch=launch, backward_launch=backward)
        found = forward_and_gradients(ours, tensors, edges, lengths, dtype, biased)
        for name, a, b, e in zip(NAMES, found, theirs, exact, strict=False):
            assert a.isfinite().all(), (launch, name)
            rounding = (8 if name == "dbias" else 4) * eps * max(unit, float(e.norm()))
            allowed = max(2 * float((b - e).norm()), rounding)
            assert float((a - e).norm()) <= allowed, (launch, name)


LENGTHS = [[5, 0, 33, 16], [7, 18, 3, 1]]  # an absent passage, one longer than a tile


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_forward_and_backward(parts, density):
    tensors, edges, lengths = draw(0, 2, 21, LENGTHS, 2, 24, density)
    assert_no_worse_than_torch(tensors, edges, lengths, Launch(parts, 16, 16, 4, 1))


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_all_tokens_in_one_tile(density):
    tensors, edges, lengths = draw(8, 2, 13, LENGTHS, 2, 24, density)
    launch = Launch(1, 16, 16, 4, 1, resident=True)
    assert_no_worse_than_torch(tensors, edges, lengths, launch)


def test_without_bias_and_in_another_tile():
    tensors, edges, lengths = draw(1, 1, 37, [[9, 40]], 3, 16, 0.4)
    launch = Launch(1, 32, 32, 4, 1)
    assert_no_worse_than_torch(tensors, edges, lengths, launch, biased=False)


def test_one_edge():
    tensors, edges, lengths = draw(2, 2, 17, LENGTHS, 1, 16, 0.0)
    edges[1, 13, 1] = True
    assert_no_worse_than_torch(tensors, edges, lengths, Launch(4, 16, 16, 4, 1))


def test_passages_without_an_edge_are_not_read():
    (q, k, v, _), edges, lengths = draw(3, 1, 8, [[6, 6, 6]], 2, 16, 0.5)
    edges[:, :, 1] = False
    k[6:12] = v[6:12] = torch.nan
    out = bipartite_attention(q, k, v, edges, lengths, backend="triton")
    assert out.isfinite().all()
    assert (out[~edges.any(-1)] == 0).all()


def test_strided_inputs():
    (q, k, v, _), edges, lengths = draw(4, 2, 9, [[4, 5], [3, 2]], 2, 16, 0.6)
    packed = torch.stack((k, v), dim=1)  # keys and values as one projection leaves them
    strided_q = q.transpose(1, 2).contiguous().transpose(1, 2)
    found = bipartite_attention(
        strided_q, packed[:, 0], packed[:, 1], edges, lengths, backend="triton"
    )
    expected = bipartite_attention(q, k, v, edges, lengths, backend="reference")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(GPU, reason="says what happens without a GPU")
def test_hopper_kernel_is_not_for_a_cpu():
    (q, k, v, _), edges, lengths = draw(4, 1, 9, [[4, 5]], 2, 64, 0.6)
    assert not cuda.fits(q, k, v, num_passages=2)
    with pytest.raises(UserError, match="CUDA device"):
        bipartite_attention(q, k, v, edges, lengths, backend="cuda")


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 32))
def test_parts_cover_the_passages_and_fill_the_gpu(num_items, num_heads, num_passages):
    parts = cuda.Launch.choose(num_items, num_heads, num_passages).parts
    assert 1 <= parts <= num_passages
    assert parts <= cuda.MOST_PARTS
    assert parts == 1 or parts * num_items * num_heads <= cuda.PROGRAMS
    of_a_part = -(-num_passages // parts)
    assert of_a_part * (parts - 1) < num_passages  # none is empty


@pytest.mark.parametrize("kind", ["sigmoid", "cosine"])
@pytest.mark.parametrize("rule", [{"top": 0.3, "degree": None}, {"top": None, "degree": 1.5}])
def test_scores_and_choice_together(kind, rule):
    g = torch.Generator().manual_seed(11)
    tokens, passages = (
        torch.randn(2, n, w, generator=g).to(DEVICE) for n, w in ((19, 48), (5, 40))
    )
    weights = tuple(torch.randn(24, w, generator=g).to(DEVICE) / 5 for w in (48, 40))
    lengths = torch.tensor([[3, 0, 1, 2, 9], [1, 1, 1, 1, 0]], device=DEVICE)
    scores, edges = choose_edges(tokens, passages, weights, lengths, kind, **rule)
    expected = compatibility(tokens @ weights[0].T, passages @ weights[1].T, kind=kind)
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    chosen = {name: value for name, value in rule.items() if value is not None}
    assert torch.equal(edges, select_edges(scores, **chosen, lengths=lengths, backend="reference"))


@given(
    st.integers(0, 2**16),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 7),
    st.sampled_from(["top", "degree"]),
    st.floats(0, 1),
)
@settings(max_examples=25, deadline=None)
def test_selection_is_the_reference(seed, num_items, num_tokens, num_passages, rule, fraction):
    g = torch.Generator().manual_seed(seed)
    # Few distinct values, negative ones among them, so that ties are common.
    scores = (torch.randint(-4, 5, (num_items, num_tokens, num_passages), generator=g) / 4).to(
        DEVICE
    )
    lengths = torch.randint(0, 3, (num_items, num_passages), generator=g).to(DEVICE)
    value = {rule: fraction if rule == "top" else fraction * num_passages}
    found = select_edges(scores, **value, lengths=lengths, backend="triton")
    assert torch.equal(found, select_edges(scores, **value, lengths=lengths, backend="reference"))


def layer_problem(seed, dtype, num_items=2, num_tokens=19, lengths=((5, 0, 33), (20, 18, 3))):
    g = torch.Generator().manual_seed(seed)
    heads, head_width, width = 8, 16, 48

    def normal(*shape):
        return torch.randn(*shape, generator=g).to(DEVICE, dtype)

    inner, packed = heads * head_width, sum(map(sum, lengths))
    weights = Weights(*(0.2 * normal(inner, width) for _ in range(3)), 0.2 * normal(width, inner))
    edges = torch.rand(num_items, num_tokens, len(lengths[0]), generator=g) < 0.3
    return (
        (normal(num_items, num_tokens, width), normal(packed, width), weights),
        (edges.to(DEVICE), torch.tensor(lengths, device=DEVICE)),
        (heads, 0.25),
    )


def plain_layer(tokens, passages, weights, edges, lengths, heads, scale):
    q, k, v = (
        (x @ w.T).unflatten(-1, (heads, -1))
        for x, w in ((tokens, weights.q), (passages, weights.k), (passages, weights.v))
    )
    read = reference.bipartite_attention(q, k, v, edges, lengths, None, scale)
    return tokens + read.flatten(2) @ weights.o.T


def test_fused_layer():
    (tokens, passages, weights), graph, shape = layer_problem(0, torch.float32)
    found = fusion_layer(tokens, passages, weights, *graph, *shape, longest=33)
    exact = plain_layer(
        tokens.double(), passages.double(), Weights(*(w.double() for w in weights)),
        *graph, *shape,
    )  # fmt: skip
    assert error(found, exact) < 1e-6
    edges, lengths = graph
    idle = ~(edges & (lengths > 0)[:, None]).any(-1)
    assert idle.any()
    assert torch.equal(found[idle], tokens[idle])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_items", [1, 3, 128])
@pytest.mark.parametrize("num_tokens", [1, 13, 64, 577])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_grid(dtype, num_items, num_tokens, density):
    if num_items == 128 and num_tokens > 64:
        num_tokens = 131
    one = [100, 0, 37, 129, 1]
    tensors, edges, lengths = draw(
        5, num_items, num_tokens, [one] * num_items, 3, 64, density, dtype
    )
    block_n = 32 if dtype == torch.float32 else 64
    launches = [Launch(parts, 16, block_n, 4, 2) for parts in (1, 5)]
    if num_tokens <= 64:
        launches.append(Launch(1, 64, block_n, 4, 2, resident=True))
    by_hand = []
    if cuda.fits(*tensors[:3], num_passages=len(one)):
        by_hand = [cuda.Launch(parts) for parts in (1, 3, 5)]
    assert_no_worse_than_torch(tensors, edges, lengths, *launches, *by_hand)
    launch = Launch(5, 32, block_n, 4, 1)
    assert_no_worse_than_torch(tensors, edges, lengths, launch, *by_hand, biased=False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_passages", [1, 16, 31])
def test_hopper_kernel_at_its_own_size(dtype, num_passages):
    """Heads of 128; more passages than half a word; some longer than one buffer; tokens strided."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernel is written for Hopper GPUs")
    sizes = [100, 104, 105, 208, 7, 0, 1, 300]
    lengths = [(sizes * 4)[:num_passages]] * 2
    tensors, edges, lengths = draw(9, 2, 300, lengths, 4, 128, 0.3, dtype)
    tensors[0] = tensors[0].transpose(1, 2).contiguous().transpose(1, 2)
    assert cuda.fits(*tensors[:3], num_passages)
    most = cuda.Launch.choose(1, 1, num_passages)
    launches = [cuda.Launch(1), cuda.Launch(min(3, num_passages)), most]
    assert_no_worse_than_torch(tensors, edges, lengths, *launches)
    assert_no_worse_than_torch(tensors, edges, lengths, *launches, biased=False)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [64, 576])
def test_the_same_bits_every_time(num_tokens):
    tensors, edges, lengths = draw(6, 8, num_tokens, [[100] * 16] * 8, 8, 128, 0.1, torch.bfloat16)
    first = None
    for _ in range(100):
        q, k, v, bias = (x.detach().requires_grad_() for x in tensors)
        out = bipartite_attention(q, k, v, edges, lengths, edge_bias=bias)
        found = [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v, bias))]
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))
