"""The paper's equations, one function each, in plain numpy and float64.

Written from the text alone: loops and concatenations as printed, no folding, no batching, no
torch. `test_equations.py` compares whole tensors with the modules, which take weights from
them by name. Equation numbers: main text 5-9, appendix B (architecture) and D (training).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def gelu(x: Array) -> Array:
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def saliency_a(v: Array, q: Array, w1: Array, b1: Array, w2: Array, b2: float) -> Array:
    """Eq. 5: s_i = MLP(v_i || q || v_i * q)."""
    return np.array([w2 @ gelu(w1 @ np.concatenate([v_i, q, v_i * q]) + b1) + b2 for v_i in v])


def saliency_b(v: Array, f_q: Array, w_v: Array, w_b: Array) -> Array:
    """Eq. B.1, given f_q(Q) and a linear f_v."""
    d = len(f_q)
    return np.array([sigmoid(f_q @ (w_v @ v_i) / np.sqrt(d) + w_b @ v_i) for v_i in v])


def top(scores: Array, count: int) -> list[int]:
    """The set of eq. 5's selection, ascending: repeatedly take the largest, first among equals."""
    left = list(range(len(scores)))
    taken = []
    for _ in range(count):
        best = max(left, key=lambda i: (scores[i], -i))
        left.remove(best)
        taken.append(best)
    return sorted(taken)


def standardised(f: Array) -> Array:
    return (f - f.mean()) / np.sqrt(f.var() + 1e-5)


def region_query_a(
    names: Array, f: Array, p: Array, q: Array, w1: Array, b1: Array, w2: Array, b2: Array
) -> Array:
    """Eq. 7's phi with SPLADE's saturation, as a residual on the query by names."""
    c = np.concatenate([standardised(f), np.sqrt(p)])
    m = w2 @ gelu(w1 @ np.concatenate([c, q]) + b1) + b2
    rises = np.log1p(np.maximum(m, 0.0))
    falls = np.log1p(np.maximum(-m, 0.0))
    return np.maximum(names + rises - falls, 0.0)


def region_query_b(
    q: Array, c: Array, p: Array, w1: Array, b1: Array, w2: Array, b2: Array
) -> Array:
    """Eq. B.3; c is what the region shows, p is (x, y, w, h)."""
    return w2 @ gelu(w1 @ np.concatenate([q, c, p]) + b1) + b2


def verification(q: Array, v: Array, e: Array, w1: Array, b1: Array, w2: Array, b2: float) -> Array:
    """Eq. B.6."""
    return np.array(
        [
            sigmoid(w2 @ gelu(w1 @ np.concatenate([q, v, e_j, e_j * q, np.abs(e_j - q)]) + b1) + b2)
            for e_j in e
        ]
    )


def verified(nu: Array, tau: float, rho_r: float) -> list[int]:
    """Algorithm 1, line 14: TopK({k_j : nu_j >= tau}, nu, ceil(rho_r |K|)), the best first."""
    passing = [j for j in range(len(nu)) if nu[j] >= tau]
    best_first = sorted(passing, key=lambda j: nu[j], reverse=True)
    return best_first[: math.ceil(rho_r * len(nu))]


def allocation_a(
    v: Array, q: Array, layers: list[tuple[Array, Array]], ranges: list[tuple[int, int]]
) -> Array:
    """Section 3.6: a 3-layer MLP of (v, q) places V' and K' in their ranges."""
    (w1, b1), (w2, b2), (w3, b3) = layers
    fractions = sigmoid(w3 @ gelu(w2 @ gelu(w1 @ np.concatenate([v, q]) + b1) + b2) + b3)
    return np.array(
        [low + (high - low) * x for (low, high), x in zip(ranges, fractions, strict=True)]
    )


def budget_gflops(d: float, least: float, most: float) -> float:
    """Eq. B.8."""
    return least + (most - least) * d


def difficulty(q: Array, pooled: Array, w_d: Array, b_d: float) -> float:
    """Eq. B.7."""
    return float(sigmoid(w_d @ np.concatenate([q, pooled]) + b_d))


def gumbel_softmax(s: Array, g: Array, tau: float) -> Array:
    """Eq. D.1."""
    weights = np.exp((s + g) / tau)
    return weights / weights.sum()


def anneal(t: int, steps: int) -> float:
    """Eq. D.2."""
    return 0.1 + 0.9 / 2 * (1 + math.cos(math.pi * t / steps))


def cosines(h_v: Array, h_k: Array) -> Array:
    return np.array([[a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for b in h_k] for a in h_v])


def edges_b(h_v: Array, h_k: Array, tau: float) -> NDArray[np.bool_]:
    """Eq. B.4."""
    return cosines(h_v, h_k) >= tau


def compatibility_a(w_v: Array, w_k: Array, v: Array, k: Array) -> Array:
    """Eq. 8."""
    d = len(w_v)
    return np.array([[sigmoid((w_v @ v_i) @ (w_k @ k_j) / np.sqrt(d)) for k_j in k] for v_i in v])


def bipartite_attention(
    q: Array, passages: list[tuple[Array, Array]], edges: NDArray[np.bool_]
) -> Array:
    """Eq. B.5 for one head, an edge opening all tokens of its passage; no edge, no change."""
    out = np.zeros((len(q), passages[0][1].shape[1]))
    for i, q_i in enumerate(q):
        keys = [key for j, (keys, _) in enumerate(passages) if edges[i, j] for key in keys]
        values = [value for j, (_, vals) in enumerate(passages) if edges[i, j] for value in vals]
        if keys:
            weights = np.exp([q_i @ key / np.sqrt(len(q_i)) for key in keys])
            out[i] = sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
    return out


def fusion(
    v: Array,
    passages: list[Array],
    edges: NDArray[np.bool_],
    w_q: list[Array],
    w_k: list[Array],
    w_v: list[Array],
    w_o: Array,
) -> Array:
    """The layer around eq. B.5: a matrix of each kind a head, heads side by side, W_O, residual."""
    heads = [
        bipartite_attention(v @ q.T, [(x @ k.T, x @ u.T) for x in passages], edges)
        for q, k, u in zip(w_q, w_k, w_v, strict=True)
    ]
    return v + np.concatenate(heads, axis=1) @ w_o.T
