import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.soft_edges import degree_loss, edge_bias, relaxed_fusion, row_openness, soft_edges
from skipqa.ops.bipartite_attention import bipartite_attention, select_edges

RULES = [{"above": 0.2}, {"at_least": 0.2}, {"top": 0.1}, {"top": 0.6}, {"degree": 2.0}]


def graph(seed: int) -> torch.Tensor:
    """Scores [7, 5] no two of which are closer than the temperature resolves."""
    generator = torch.Generator().manual_seed(seed)
    return ((torch.randperm(35, generator=generator) - 17.5) / 20).double().view(7, 5)


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(seed=st.integers(0, 10_000))
def test_soft_edges_tend_to_the_selected_ones(rule: dict[str, float], seed: int) -> None:
    scores = graph(seed)
    hard = select_edges(scores, **rule)  # type: ignore[arg-type]
    soft = soft_edges(scores, temperature=1e-4, **rule)  # type: ignore[arg-type]
    torch.testing.assert_close(soft, hard.double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(row_openness(soft), hard.any(-1).double(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(seed=st.integers(0, 1000))
def test_relaxed_attention_tends_to_attention_along_edges(
    rule: dict[str, float], seed: int
) -> None:
    torch.manual_seed(seed)
    lengths = [3, 1, 4, 2, 5]
    q, k, v = (torch.randn(n, 2, 4).double() for n in (7, 15, 15))
    scores = graph(seed)
    hard = bipartite_attention(q, k, v, select_edges(scores, **rule), lengths)  # type: ignore[arg-type]
    gates = soft_edges(scores, temperature=1e-4, **rule)  # type: ignore[arg-type]
    everything = torch.ones(7, 5, dtype=torch.bool)
    relaxed = bipartite_attention(q, k, v, everything, lengths, edge_bias=edge_bias(gates))
    relaxed = relaxed * row_openness(gates)[:, None, None]
    torch.testing.assert_close(relaxed, hard, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    "config",
    [
        FusionConfig(6, 4, 2, edge_width=5, beta=0.3),
        FusionConfig(6, 4, 2, edge_width=5, beta=None),
        FusionConfig(6, 4, 2, "B", edge_width=5, degree=1.5),
        FusionConfig(6, 4, 2, "B", edge_width=5, degree=None),
    ],
    ids=["top beta", "above tau", "degree", "at least tau_e"],
)
@given(seed=st.integers(0, 1000))
def test_relaxed_layer_tends_to_the_hard_layer(config: FusionConfig, seed: int) -> None:
    torch.manual_seed(seed)
    layer = BipartiteFusion(config).double()
    torch.nn.init.normal_(layer.out.weight)
    lengths = [3, 1, 4, 2, 5]
    inputs = torch.randn(7, 6).double(), torch.randn(15, 4).double(), torch.randn(5, 4).double()
    hard = layer(*inputs, lengths)
    margins = hard.scores.detach().flatten().sort().values.diff().abs()
    distance = (hard.scores.detach() - layer.threshold.detach()).abs().min()
    assume(min(float(margins.min()), float(distance)) > 1e-5)
    relaxed, gates = relaxed_fusion(layer, *inputs, lengths, temperature=1e-7)
    torch.testing.assert_close(gates, hard.edges.double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(relaxed, hard.tokens, atol=1e-6, rtol=1e-6)


def test_closed_edges_learn_in_the_relaxed_layer() -> None:
    torch.manual_seed(0)
    layer = BipartiteFusion(FusionConfig(6, 4, 2, edge_width=5, beta=0.1))
    torch.nn.init.normal_(layer.out.weight)
    inputs = torch.randn(7, 6), torch.randn(15, 4), torch.randn(5, 4)
    fused, gates = relaxed_fusion(layer, *inputs, [3] * 5, temperature=0.5, threshold=0.3)
    gates.retain_grad()
    (fused * torch.randn(7, 6)).sum().backward()
    assert gates.grad is not None
    assert (gates.grad != 0).all()
    assert layer.edge_token.weight.grad is not None


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(seed=st.integers(0, 1000), hard=st.booleans())
def test_the_order_of_passages_does_not_matter(
    rule: dict[str, float], seed: int, hard: bool
) -> None:
    torch.manual_seed(seed)
    lengths = [3, 1, 4, 2, 5]
    q, k, v = (torch.randn(n, 2, 4).double() for n in (7, 15, 15))
    scores, order = graph(seed), torch.randperm(5).tolist()

    def attend(order: list[int]) -> torch.Tensor:
        keys, values = (torch.cat([x.split(lengths)[j] for j in order]) for x in (k, v))
        sizes = [lengths[j] for j in order]
        if hard:
            edges = select_edges(scores[:, order], **rule)  # type: ignore[arg-type]
            return bipartite_attention(q, keys, values, edges, sizes)
        gates = soft_edges(scores[:, order], temperature=0.3, **rule)  # type: ignore[arg-type]
        everything = torch.ones(7, 5, dtype=torch.bool)
        return bipartite_attention(q, keys, values, everything, sizes, edge_bias=edge_bias(gates))

    torch.testing.assert_close(attend(order), attend(list(range(5))))


def test_scores_and_learned_threshold_get_gradients() -> None:
    scores, threshold = graph(0).requires_grad_(), torch.tensor(0.1, requires_grad=True)
    (soft_edges(scores, above=threshold, temperature=0.5) * graph(1)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.abs().min() > 0
    assert threshold.grad is not None
    assert threshold.grad != 0


def test_degree_loss_only_punishes_excess() -> None:
    assert degree_loss(torch.ones(4, 6)) == 0
    assert degree_loss(torch.ones(2, 4, 8)) == pytest.approx(0.05 * 4)
