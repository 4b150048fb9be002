"""Every component against `equations.py`: float64, seed 2026, whole tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from skipqa.nn.budget import (
    DifficultyBudget,
    DifficultyBudgetConfig,
    DiscreteBudget,
    DiscreteBudgetConfig,
)
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.region_query import (
    DenseRegionQuery,
    RegionQueryConfig,
    RegionViews,
    SparseRegionQuery,
)
from skipqa.nn.relaxation import cosine_schedule, gumbel_softmax
from skipqa.nn.saliency import AlignedSaliency, ProductSaliency, SaliencyConfig
from skipqa.nn.verifier import Verifier, VerifierConfig, judge
from skipqa.ops.bipartite_attention import bipartite_attention, compatibility, select_edges
from skipqa.types import Budget

from . import equations

V, K, D, DV, H, C = 11, 5, 6, 7, 8, 5


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(2026)


def randomised(module: nn.Module) -> nn.Module:
    module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def close(ours: torch.Tensor, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-11, atol=1e-12)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_saliency_a() -> None:
    model = randomised(ProductSaliency(SaliencyConfig(D, hidden=H)))
    v, q = normal(V, D), normal(D)
    joined = torch.cat((model.of_token, model.of_question, model.of_product), dim=1)
    want = equations.saliency_a(
        v.numpy(),
        q.numpy(),
        joined.detach().numpy(),
        model.bias.detach().numpy(),
        model.out.weight[0].detach().numpy(),
        model.out.bias.item(),
    )
    logits = model(v, q)
    close(logits, want)
    for count in range(V + 1):
        assert model.select(logits, count).tolist() == equations.top(want, count)


def test_saliency_b() -> None:
    model = randomised(AlignedSaliency(SaliencyConfig(D, "B", hidden=H)))
    v, q = normal(V, D), normal(D)
    want = equations.saliency_b(
        v.numpy(),
        model.of_question(q).detach().numpy(),
        model.of_token.weight.detach().numpy(),
        model.content_bias.detach().numpy(),
    )
    logits = model(v, q)
    close(logits.sigmoid(), want)
    for count in range(V + 1):
        assert model.select(logits, count).tolist() == equations.top(want, count)


def test_region_query_a() -> None:
    config = RegionQueryConfig(DV, C, D, hidden=H, vocabulary=50, max_terms=9)
    model = randomised(SparseRegionQuery(config))
    views, q = RegionViews(normal(3, DV), normal(3, C).softmax(-1)), normal(D)
    names = normal(3, 50).relu()  # half of the terms are not asked for
    joined = torch.cat(
        (model.of_features.weight, model.of_evidence.weight, model.of_question.weight), dim=1
    )
    want = np.array(
        [
            equations.region_query_a(
                *(row.numpy() for row in (names[r], views.features[r], views.evidence[r], q)),
                joined.detach().numpy(),
                model.of_features.bias.detach().numpy(),
                model.to_terms.weight.detach().numpy(),
                model.to_terms.bias.detach().numpy(),
            )
            for r in range(3)
        ]
    )
    weights = model.weights(names, model(views, q))
    close(weights, want)
    for query, row in zip(model.queries(weights), want, strict=True):
        assert query.terms.tolist() == [t for t in equations.top(row, 9) if row[t] > 0]
        np.testing.assert_allclose(query.weights, row[query.terms], rtol=1e-6)


def test_region_query_b() -> None:
    model = randomised(
        DenseRegionQuery(RegionQueryConfig(DV, C, D, "B", hidden=H, retrieval_width=10))
    )
    views, q = RegionViews(normal(2, DV), normal(2, C).softmax(-1)), normal(D)
    boxes = torch.tensor([[0.1, 0.2, 0.5, 0.9], [0.0, 0.0, 1.0, 1.0]], dtype=torch.float64)
    parts = (model.of_question, model.of_features, model.of_evidence, model.of_box)
    joined = torch.cat([part.weight for part in parts], dim=1)
    want = [
        equations.region_query_b(
            q.numpy(),
            np.concatenate([equations.standardised(f), np.sqrt(p)]),
            np.array([box[0], box[1], box[2] - box[0], box[3] - box[1]]),
            joined.detach().numpy(),
            model.of_features.bias.detach().numpy(),
            model.out.weight.detach().numpy(),
            model.out.bias.detach().numpy(),
        )
        for f, p, box in zip(
            views.features.numpy(), views.evidence.numpy(), boxes.numpy(), strict=True
        )
    ]
    close(model(views, q, boxes), np.array(want))


def test_verification() -> None:
    model = randomised(Verifier(VerifierConfig(D, DV, hidden=H)))
    q, v, e = normal(D), normal(DV), normal(K, D)
    joined = torch.cat((model.of_query.weight, model.of_passage.weight), dim=1)
    want = equations.verification(
        q.numpy(),
        v.numpy(),
        e.numpy(),
        joined.detach().numpy(),
        model.of_query.bias.detach().numpy(),
        model.out.weight[0].detach().numpy(),
        model.out.bias.item(),
    )
    nu = model(q, v, e).sigmoid()
    close(nu, want)
    for rho_r in (0.0, 0.3, 0.6, 1.0):
        for tau in (0.0, *want, 0.5, 1.0):
            most = Budget(1, K, rho_r=rho_r).most_passages(K)
            assert judge(nu, most, float(tau), 0).kept.tolist() == equations.verified(
                nu.detach().numpy(), float(tau), rho_r
            )


def test_discrete_budget() -> None:
    config = DiscreteBudgetConfig(DV, D, hidden=H)
    model = randomised(DiscreteBudget(config))
    layers = [(x.weight.detach().numpy(), x.bias.detach().numpy()) for x in model.mlp[::2]]
    for _ in range(20):
        v, q = normal(DV), normal(D)
        ranges = [config.tokens, config.passages]
        want = equations.allocation_a(v.numpy(), q.numpy(), layers, ranges)
        allocation = model(v, q, 576, 16)
        close(torch.stack(allocation[:2]), want)
        budget = model.decide(v, q, 576, 16)
        assert [budget.tokens, budget.passages] == np.floor(want + 0.5).tolist()


def test_difficulty_and_its_budget() -> None:
    config = DifficultyBudgetConfig(DV, D)
    model = randomised(DifficultyBudget(config))
    v, q = normal(DV), normal(D)
    d = equations.difficulty(
        q.numpy(),
        v.numpy(),
        model.difficulty.weight[0].detach().numpy(),
        model.difficulty.bias.item(),
    )
    close(model.estimate(v, q), np.array(d))
    rho_v = np.sort(np.random.default_rng(2026).uniform(*config.rho_v, config.grid))
    rho_r = np.sort(np.random.default_rng(42).uniform(*config.rho_r, config.grid))
    model.store_phi(rho_v.tolist(), rho_r.tolist())
    points = np.linspace(*config.gflops, config.grid)
    for difficulty in np.linspace(0, 1, 77):
        b = equations.budget_gflops(difficulty, *config.gflops)
        got = model.phi(torch.tensor(b, dtype=torch.float64))
        close(got[0], np.interp(b, points, rho_v))
        close(got[1], np.interp(b, points, rho_r))


def test_gumbel_softmax_and_its_schedule() -> None:
    scores, noise = normal(V), normal(V)
    close(
        gumbel_softmax(scores, 0.37, noise),
        equations.gumbel_softmax(scores.numpy(), noise.numpy(), 0.37),
    )
    for t in range(0, 15_001, 500):
        assert cosine_schedule(1.0, 0.1, t, 15_000) == pytest.approx(equations.anneal(t, 15_000))


def test_compatibility_and_edges() -> None:
    w_v, w_k, v, k = normal(H, D), normal(H, D), normal(V, D), normal(K, D)
    ours = compatibility(v @ w_v.T, k @ w_k.T)
    close(ours, equations.compatibility_a(w_v.numpy(), w_k.numpy(), v.numpy(), k.numpy()))
    cosine = compatibility(v @ w_v.T, k @ w_k.T, kind="cosine")
    edges = select_edges(cosine, at_least=0.1)
    np.testing.assert_array_equal(
        edges.numpy(), equations.edges_b((v @ w_v.T).numpy(), (k @ w_k.T).numpy(), 0.1)
    )


@pytest.mark.parametrize("backend", ["reference", "gather"])
def test_attention_along_edges(backend: str) -> None:
    lengths = [3, 1, 4, 2, 6]
    q, k, v = normal(V, 1, H), normal(sum(lengths), 1, H), normal(sum(lengths), 1, H)
    edges = torch.rand(V, K) < 0.3
    edges[2] = False
    splits = zip(k[:, 0].split(lengths), v[:, 0].split(lengths), strict=True)
    want = equations.bipartite_attention(
        q[:, 0].numpy(), [(a.numpy(), b.numpy()) for a, b in splits], edges.numpy()
    )
    close(bipartite_attention(q, k, v, edges, lengths, backend=backend)[:, 0], want)  # type: ignore[arg-type]
    assert not want[2].any()


@pytest.mark.parametrize("order", ["project", "absorb"])
@pytest.mark.parametrize(
    "config",
    [
        FusionConfig(D, DV, 2, "A", head_width=4, edge_width=H, beta=0.3),
        FusionConfig(D, DV, 2, "A", head_width=4, edge_width=H, beta=None),
        FusionConfig(D, DV, 2, "B", head_width=4, edge_width=H, degree=2.0),
        FusionConfig(D, DV, 2, "B", head_width=4, edge_width=H, degree=None),
    ],
    ids=["A, top beta", "A, above tau", "B, degree", "B, at least tau_e"],
)
def test_fusion_layer(config: FusionConfig, order: str) -> None:
    layer = randomised(BipartiteFusion(config))
    nn.init.constant_(layer.threshold, 0.5 if config.variant == "A" else 0.2)
    lengths = [3, 1, 4, 2, 6]
    v, words, k = normal(V, D), normal(sum(lengths), DV), normal(K, DV)
    w_v, w_k = (x.weight.detach().numpy() for x in (layer.edge_token, layer.edge_passage))
    v_n, k_n, tau = v.numpy(), k.numpy(), layer.threshold.item()
    if config.variant == "A":
        scores = equations.compatibility_a(w_v, w_k, v_n, k_n)
        count = math.ceil(0.3 * V * K)
        best = np.isin(np.arange(V * K), equations.top(scores.flatten(), count)).reshape(V, K)
        edges = scores > tau if config.beta is None else best
    else:
        if config.degree is not None:  # tau_e is the cosine of the last edge that degree allows
            tau = np.sort(equations.cosines(v_n @ w_v.T, k_n @ w_k.T).flatten())[-2 * V]
        edges = equations.edges_b(v_n @ w_v.T, k_n @ w_k.T, tau)
    assert 0 < edges.sum() < edges.size
    heads = (
        [w.numpy() for w in x.weight.detach().view(2, 4, -1)]
        for x in (layer.query, layer.key, layer.value)
    )
    want = equations.fusion(
        v_n,
        [x.numpy() for x in words.split(lengths)],
        edges,
        *heads,
        layer.out.weight.detach().numpy(),
    )
    found = layer(v, words, k, lengths, order=order)
    np.testing.assert_array_equal(found.edges.numpy(), edges)
    close(found.tokens, want)
