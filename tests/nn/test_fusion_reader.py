"""The fusion reader: what its two forms compute, what it counts, and what leaves it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from skipqa.costs.flops import count_flops
from skipqa.nn.fusion_reader import (
    TAU_E,
    Asked,
    FusionReader,
    FusionReaderConfig,
    LocalTokens,
    Opening,
    PassageWords,
    flops,
)
from skipqa.nn.grounding import PLACE
from skipqa.nn.soft_edges import edge_bias
from skipqa.ops.bipartite_attention.reference import num_edges_kept

Variant = Literal["A", "B"]
VARIANTS = pytest.mark.parametrize("variant", ["A", "B"])
VISION, CONCEPTS, TEXT, WIDTH = 10, 7, 12, 16
LENGTHS = ((3, 5, 0, 2), (1, 4, 6, 3))  # one passage is absent


def reader(variant: Variant, beta: float | None = 0.3, window: int = 3) -> FusionReader:
    torch.manual_seed(0)
    config = FusionReaderConfig(
        *(VISION, CONCEPTS, TEXT, WIDTH),
        heads=2,
        embedding_rms=0.15,
        variant=variant,
        edge_width=8,
        beta=beta,
        pointers=2,
        window=window,
        words=5,
    )
    return FusionReader(config).requires_grad_(False)


def inputs(num_tokens: int = 6) -> tuple[LocalTokens, Asked, Tensor, PassageWords]:
    torch.manual_seed(1)
    lengths = torch.tensor(LENGTHS)
    items, passages, longest = *lengths.shape, int(lengths.max())
    local = LocalTokens(
        torch.randn(items, num_tokens, VISION),
        torch.randn(items, num_tokens, CONCEPTS).softmax(-1),
        torch.randn(items, num_tokens, TEXT),
        torch.randn(items, num_tokens, PLACE),
        torch.rand(items, num_tokens),
    )
    asked = Asked(torch.randn(items, TEXT), torch.randn(items, 4, WIDTH), torch.tensor([4, 2]))
    states, embeddings = torch.randn(2, items, passages, longest, WIDTH)
    words = PassageWords(states, 0.15 * embeddings, lengths)
    return local, asked, torch.randn(items, passages, TEXT), words


@VARIANTS
def test_training_reads_along_hard_edges_as_answering_does(variant: Variant) -> None:
    model, given = reader(variant), inputs()
    found = model(*given)
    trained = model.relaxed(*given, Opening(model.config.temperature, TAU_E, hard=True))
    assert torch.equal(found.edges.open_BVK, trained.edges.open_BVK)
    torch.testing.assert_close(found.tokens_BLD, trained.tokens_BLD)
    torch.testing.assert_close(found.mass_BVK, trained.mass_BVK)


@VARIANTS
def test_all_edges_are_dense_attention_to_all_passages(variant: Variant) -> None:
    """Against attention written out, one item, one pointer and one word of a window at a time."""
    model, (local, asked, pooled, words) = reader(variant), inputs()
    there = words.lengths_BK > 0
    every = there[:, None].expand(-1, local.names_BVd.shape[1], -1)
    found = model(local, asked, pooled, words, every)
    q_BVSE = model.query(model.before_query(found.edges.asking_BVD)).unflatten(-1, (2, 8))
    for b, lengths in enumerate(LENGTHS):
        keys, windows, of_word = [], [], []
        for k, length in enumerate(lengths):
            one = torch.zeros(2, 4, dtype=torch.bool)
            one[b, k] = length > 0
            keys += list(model._keys(words, one)[0, :length]) if length else []
            own = [*words.embeddings_BKTD[b, k, :length], *torch.zeros(2, WIDTH)]
            windows += [torch.stack(own[t : t + 3]) for t in range(length)]
            of_word += [k] * length
        k_NSE, v_NWD = torch.stack(keys).unflatten(-1, (2, 8)), torch.stack(windows)
        gates, votes = found.edges.gates_BVK[b], found.edges.votes_BSV[b]
        for s in range(2):
            logits = q_BVSE[b, :, s] @ k_NSE[:, s].T / math.sqrt(8)
            prob_VN = (logits + edge_bias(gates)[:, of_word]).softmax(-1)
            for w in range(3):
                expected = votes[s] @ (prob_VN @ v_NWD[:, w])
                torch.testing.assert_close(found.tokens_BLD[b, 2 + 3 * s + w], expected)


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
    if beta is not None:
        for b, lengths in enumerate(LENGTHS):
            present = sum(n > 0 for n in lengths)
            assert int(edges[b].sum()) == num_edges_kept(6, present, beta, None)
            assert int(edges[b].sum()) <= math.ceil(beta * 6 * present)


@VARIANTS
def test_only_tokens_with_an_edge_vote(variant: Variant) -> None:
    model, given = reader(variant), inputs()
    edges = torch.zeros(2, 6, 4, dtype=torch.bool)
    edges[0, 1, 0] = edges[0, 4, 1] = True
    found = model(*given, edges)
    votes_SV = found.edges.votes_BSV[0]
    torch.testing.assert_close(votes_SV[:, [1, 4]].sum(-1), torch.ones(2))
    # Without any edge nothing is read, and what the image shows is still told
    assert not found.tokens_BLD[1, 2:].any()
    assert found.tokens_BLD[1, :2].any()


def test_a_salient_token_has_the_greater_say() -> None:
    model, (local, *given) = reader("A"), inputs()
    everywhere = replace(local, saliency_BV=torch.ones_like(local.saliency_BV))
    every = (given[2].lengths_BK > 0)[:, None].expand(-1, 6, -1)
    alike = model(everywhere, *given, every).edges.votes_BSV
    less = everywhere.saliency_BV.clone()
    less[:, 2] = 0.5
    votes = model(replace(local, saliency_BV=less), *given, every).edges.votes_BSV
    odds = (votes / (1 - votes))[:, :, 2] / (alike / (1 - alike))[:, :, 2]
    torch.testing.assert_close(odds, torch.full_like(odds, 0.5))


def test_a_pointer_on_one_word_leaves_its_window_as_it_stands() -> None:
    """Copying is exact: no projection stands between a word and the decoder."""
    model, (local, asked, pooled, words) = reader("A"), inputs()
    model.query.weight.mul_(1e3)
    found = model.relaxed(local, asked, pooled, words, Opening(1.0, -1e6))
    pointed_SKT, raw_KTD = found.pointed_BSKT[0], words.embeddings_BKTD[0]  # type: ignore[index]
    for s in range(2):
        best = int(pointed_SKT[s].argmax())
        if pointed_SKT[s].max() < 0.999:
            continue
        k, t = divmod(best, raw_KTD.shape[1])
        for w in range(3):
            there = t + w < LENGTHS[0][k]
            expected = raw_KTD[k, t + w] if there else torch.zeros(WIDTH)
            found_word = found.tokens_BLD[0, 2 + 3 * s + w]
            torch.testing.assert_close(found_word, expected, atol=1e-3, rtol=1e-2)


def test_an_answer_may_stand_before_what_asks_for_it() -> None:
    """A key depends on words that follow, in its own passage alone."""
    model, (*_, words) = reader("A"), inputs()
    every = torch.ones(2, 4, dtype=torch.bool)
    states = words.states_BKTD.clone()
    states[0, 1, 4] += 1.0  # the last word of five
    before, after = (model._keys(replace(words, states_BKTD=x), every) for x in (words.states_BKTD, states))
    changed = (before != after).any(-1).unflatten(0, (2, 4))
    assert changed[0, 1, :5].all()
    changed[0, 1] = False
    assert not changed.any()


def test_what_the_image_shows_is_as_large_as_an_embedding() -> None:
    size = reader("A")(*inputs()).tokens_BLD[:, :2].square().mean(-1).sqrt()
    torch.testing.assert_close(size, torch.full_like(size, 0.15), rtol=1e-3, atol=0)


@VARIANTS
@pytest.mark.parametrize("beta", [0.1, 0.4, 1.0])
def test_counted_flops_are_those_of_torch(variant: Variant, beta: float) -> None:
    torch.manual_seed(0)
    sizes = {"vision_width": 64, "concepts": 50, "text_width": 48, "width": 32}
    config = FusionReaderConfig(
        **sizes,
        heads=4,
        embedding_rms=1.0,
        variant=variant,
        edge_width=16,
        beta=beta,
        window=4,
    )
    model = FusionReader(config).requires_grad_(False)
    tokens, lengths = 20, [9, 14, 5, 11]
    local = LocalTokens(*(torch.rand(1, tokens, n) for n in (64, 50, 48, PLACE)), torch.rand(1, 20))
    words = PassageWords(*torch.randn(2, 1, 4, 14, 32), torch.tensor([lengths]))
    asked = Asked(torch.randn(1, 48), torch.randn(1, 7, 32), torch.tensor([7]))
    pooled = torch.randn(1, 4, 48)
    chosen = model(local, asked, pooled, words).edges
    edges = chosen.open_BVK[0]
    # Answering has no words of a passage without an edge
    longest = max(n for n, read in zip(lengths, edges.any(0).tolist(), strict=True) if read)
    states, raw = (x[:, :, :longest] for x in (words.states_BKTD, words.embeddings_BKTD))
    words = PassageWords(states, raw, words.lengths_BK * edges.any(0))
    lengths_BK = torch.ones(1, 4, dtype=torch.long)

    def answering() -> None:
        model.read(model.choose(local, asked, pooled, lengths_BK), words)

    counted = count_flops(answering)
    assert math.isclose(flops(config, edges, lengths), counted, rel_tol=0.02)
