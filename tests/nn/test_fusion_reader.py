"""The fusion reader: what its two forms compute, what it counts, and what leaves it."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.costs.flops import count_flops
from skipqa.nn.fusion_reader import (
    TAU_E,
    FusionReader,
    FusionReaderConfig,
    LocalTokens,
    Opening,
    PassageWords,
    flops,
)
from skipqa.nn.grounding import PLACE
from skipqa.nn.soft_edges import edge_bias, row_openness
from skipqa.ops.bipartite_attention.reference import num_edges_kept

Variant = Literal["A", "B"]
VARIANTS = pytest.mark.parametrize("variant", ["A", "B"])
VISION, CONCEPTS, TEXT, WIDTH = 10, 7, 12, 16
LENGTHS = ((3, 5, 0, 2), (1, 4, 6, 3))  # one passage is absent


def reader(variant: Variant, beta: float | None = 0.3) -> FusionReader:
    torch.manual_seed(0)
    config = FusionReaderConfig(
        *(VISION, CONCEPTS, TEXT, WIDTH),
        heads=2,
        embedding_rms=0.15,
        variant=variant,
        edge_width=8,
        beta=beta,
        tokens=4,
        words=5,
    )
    return FusionReader(config).requires_grad_(False)


def inputs(num_tokens: int = 6) -> tuple[LocalTokens, Tensor, Tensor, PassageWords]:
    torch.manual_seed(1)
    lengths = torch.tensor(LENGTHS)
    items, passages, longest = *lengths.shape, int(lengths.max())
    local = LocalTokens(
        torch.randn(items, num_tokens, VISION),
        torch.randn(items, num_tokens, CONCEPTS).softmax(-1),
        torch.randn(items, num_tokens, TEXT),
        torch.randn(items, num_tokens, PLACE),
    )
    states, embeddings = torch.randn(2, items, passages, longest, WIDTH)
    words = PassageWords(states, 0.15 * embeddings, lengths)
    return local, torch.randn(items, TEXT), torch.randn(items, passages, TEXT), words


@VARIANTS
def test_training_reads_along_hard_edges_as_answering_does(variant: Variant) -> None:
    model, given = reader(variant), inputs()
    found = model(*given)
    trained = model.relaxed(*given, Opening(model.config.temperature, TAU_E, hard=True))
    assert torch.equal(found.edges.open_BVK, trained.edges.open_BVK)
    torch.testing.assert_close(found.tokens_BVD, trained.tokens_BVD)
    torch.testing.assert_close(found.mass_BVK, trained.mass_BVK)


@VARIANTS
def test_all_edges_are_dense_attention_to_all_passages(variant: Variant) -> None:
    model, (local, question, pooled, words) = reader(variant), inputs()
    there = words.lengths_BK > 0
    every = there[:, None].expand(-1, local.names_BVd.shape[1], -1)
    found = model(local, question, pooled, words, every)
    q = model.query(model.before_query(found.edges.asking_BVD)).unflatten(-1, (2, -1))
    for b, lengths in enumerate(LENGTHS):
        states = torch.cat([words.states_BKTD[b, k, :n] for k, n in enumerate(lengths)])
        raw = torch.cat([words.embeddings_BKTD[b, k, :n] for k, n in enumerate(lengths)])
        place = torch.cat([torch.arange(n).clamp(max=4) for n in lengths])
        keys = model.key(F.rms_norm(states, (WIDTH,))) + model.word_place[place]
        values = model.value(raw / 0.15)
        of_word = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        gates = found.edges.gates_BVK[b]
        k, v = (x.unflatten(-1, (2, -1)).transpose(0, 1) for x in (keys, values))
        logits = q[b].transpose(0, 1) @ k.transpose(1, 2) / math.sqrt(8)
        prob = (logits + edge_bias(gates)[:, of_word]).softmax(-1)
        read = (prob @ v).transpose(0, 1).flatten(1)
        fused = found.edges.asking_BVD[b] + row_openness(gates)[:, None] * model.out(read)
        expected = model.normalise(fused) * 0.15
        torch.testing.assert_close(found.tokens_BVD[b], expected)


@VARIANTS
@pytest.mark.parametrize("beta", [0.0, 0.2, 0.5, None])
def test_real_mass_is_that_of_the_tokens_that_read(variant: Variant, beta: float | None) -> None:
    model = reader(variant, beta)
    found = model(*inputs())
    edges, mass = found.edges.open_BVK, found.mass_BVK
    reading = edges.any(-1)
    torch.testing.assert_close(mass.sum(-1), reading.float())
    assert float(mass.sum()) == pytest.approx(int(reading.sum()), abs=1e-4)
    assert not mass[~edges].any()
    passing = model.normalise(found.edges.asking_BVD) * 0.15
    torch.testing.assert_close(found.tokens_BVD[~reading], passing[~reading])
    if beta is not None:
        for b, lengths in enumerate(LENGTHS):
            present = sum(n > 0 for n in lengths)
            assert int(edges[b].sum()) == num_edges_kept(6, present, beta, None)
            assert int(edges[b].sum()) <= math.ceil(beta * 6 * present)


def test_a_fused_token_is_as_large_as_an_embedding() -> None:
    size = reader("A")(*inputs()).tokens_BVD.square().mean(-1).sqrt()
    torch.testing.assert_close(size, torch.full_like(size, 0.15), rtol=1e-3, atol=0)


@VARIANTS
@pytest.mark.parametrize("beta", [0.1, 0.4, 1.0])
def test_counted_flops_are_those_of_torch(variant: Variant, beta: float) -> None:
    torch.manual_seed(0)
    sizes = {"vision_width": 64, "concepts": 50, "text_width": 48, "width": 32}
    config = FusionReaderConfig(
        **sizes, heads=4, embedding_rms=1.0, variant=variant, edge_width=16, beta=beta
    )
    model = FusionReader(config).requires_grad_(False)
    tokens, lengths = 20, [9, 14, 5, 11]
    local = LocalTokens(*(torch.rand(1, tokens, n) for n in (64, 50, 48, PLACE)))
    words = PassageWords(*torch.randn(2, 1, 4, 14, 32), torch.tensor([lengths]))
    given = (local, torch.randn(1, 48), torch.randn(1, 4, 48), words)
    counted = count_flops(lambda: model(*given))
    edges = model(*given).edges.open_BVK[0]
    assert math.isclose(flops(config, edges, lengths), counted, rel_tol=0.02)
