"""The fusion reader: what its two forms compute, what it counts, and what leaves it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Literal

import pytest
import torch

from skipqa.costs.flops import count_flops
from skipqa.errors import UserError
from skipqa.nn.fusion_reader import (
    TAU_E,
    Asked,
    FusionReader,
    FusionReaderConfig,
    LocalTokens,
    Offered,
    Opening,
    PassageWords,
    flops,
)
from skipqa.nn.grounding import PLACE
from skipqa.nn.soft_edges import edge_bias
from skipqa.ops.bipartite_attention.reference import num_edges_kept
from skipqa.training.pathway.stage3_fusion import FusionTraining

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
        windows=2,
        window=window,
        before=1,
        words=5,
    )
    return FusionReader(config).requires_grad_(False)


def inputs(num_tokens: int = 6) -> tuple[LocalTokens, Asked, Offered, PassageWords]:
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
    told = torch.randn(2, items, passages)
    offered = Offered(torch.randn(items, passages, TEXT), *told, lengths > 0)
    return local, asked, offered, words


@VARIANTS
def test_training_reads_along_hard_edges_as_answering_does(variant: Variant) -> None:
    model, given = reader(variant), inputs()
    found = model(*given)
    trained = model.relaxed(*given, Opening(model.config.temperature, TAU_E, hard=True))
    assert torch.equal(found.edges.open_BVK, trained.edges.open_BVK)
    torch.testing.assert_close(found.tokens_BLD, trained.tokens_BLD)
    torch.testing.assert_close(found.mass_BVK, trained.mass_BVK)
    torch.testing.assert_close(found.pointed_BKT, trained.pointed_BKT)


@VARIANTS
def test_all_edges_are_dense_attention_to_all_passages(variant: Variant) -> None:
    """Where it points, against attention written out, one item and one head at a time."""
    model, (local, asked, offered, words) = reader(variant), inputs()
    every = offered.there_BK[:, None].expand(-1, local.names_BVd.shape[1], -1)
    found = model(local, asked, offered, words, every)
    q_BVSE = model.query(model.before_query(found.edges.asking_BVD)).unflatten(-1, (2, 8))
    for b, lengths in enumerate(LENGTHS):
        keys, of_word = [], []
        for k, length in enumerate(lengths):
            one = torch.zeros(2, 4, dtype=torch.bool)
            one[b, k] = length > 0
            keys += list(model._keys(words, one)) if length else []
            of_word += [k] * length
        k_NSE = torch.stack(keys).unflatten(-1, (2, 8))
        gates, votes = found.edges.gates_BVK[b], found.edges.votes_BV[b]
        pointed_N = torch.zeros(len(keys))
        for s in range(2):
            logits = q_BVSE[b, :, s] @ k_NSE[:, s].T / math.sqrt(8)
            pointed_N += votes @ (logits + edge_bias(gates)[:, of_word]).softmax(-1) / 2
        torch.testing.assert_close(found.pointed_BKT[b][words.there_BKT[b]], pointed_N)
        assert float(found.pointed_BKT[b].sum()) == pytest.approx(1.0, abs=1e-5)


@VARIANTS
def test_windows_are_words_as_they_stand_the_best_last(variant: Variant) -> None:
    """Copying is exact: no projection stands between a word and the decoder. They do not overlap,
    and outside their passage there is nothing."""
    model, (local, asked, offered, words) = reader(variant, beta=None), inputs()
    found = model(local, asked, offered, words)
    for b, lengths in enumerate(LENGTHS):
        pointed = found.pointed_BKT[b].clone()
        for last in (True, False):
            k, t = divmod(int(pointed.argmax()), pointed.shape[1])
            window = found.tokens_BLD[b, 5:8] if last else found.tokens_BLD[b, 1:4]
            for w, place in enumerate(range(t - 1, t + 2)):
                there = 0 <= place < lengths[k] and pointed[k, t] > 0
                raw = words.embeddings_BKTD[b, k, place] if there else torch.zeros(WIDTH)
                torch.testing.assert_close(window[w], raw)
            pointed[k, max(0, t - 2) : t + 3] = 0


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
    votes_V = found.edges.votes_BV[0]
    torch.testing.assert_close(votes_V[[1, 4]].sum(), torch.tensor(1.0))
    # Without any edge nothing is read, and what the image shows is still told
    assert not found.pointed_BKT[1].any()
    assert not found.tokens_BLD[1, [1, 2, 3, 5, 6, 7]].any()
    assert found.tokens_BLD[1, [0, 4]].any(1).all()


def test_given_gates_stand_in_for_its_own() -> None:
    """Given edges leave them: a likely edge is still heard more than an unlikely one."""
    model, given = reader("A"), inputs()
    edges = torch.zeros(2, 6, 4, dtype=torch.bool)
    edges[0, 1, 0] = edges[0, 4, 1] = edges[1, 2, 2] = True
    own = model(*given, edges).edges.gates_BVK
    assert ((own[edges] > 0) & (own[edges] < 1)).all()
    found = model(*given, 0.25 * edges)
    assert torch.equal(found.edges.open_BVK, edges)
    assert torch.equal(found.edges.gates_BVK, 0.25 * edges)


def test_a_passage_that_verification_trusts_has_likelier_edges() -> None:
    model, (local, asked, offered, words) = reader("A"), inputs()
    logits = model(local, asked, offered, words).edges.logits_BVK
    for name, trust in (("believed_BK", 0.5), ("retrieved_BK", 0.3)):
        told = getattr(offered, name) + torch.tensor([0.0, 2.0, 0.0, 0.0])
        more = replace(offered, **{name: told})
        changed = model(local, asked, more, words).edges.logits_BVK - logits
        torch.testing.assert_close(changed[..., 1], torch.full((2, 6), 2.0 * trust))
        torch.testing.assert_close(changed[..., [0, 2, 3]], torch.zeros(2, 6, 3))


def test_a_token_that_is_not_kept_has_no_vote_and_could_have_had_one() -> None:
    model, (local, asked, offered, words) = reader("A"), inputs()
    kept = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0]).expand(2, -1).clone().requires_grad_()
    read = model.relaxed(replace(local, kept_BV=kept), asked, offered, words, Opening(1.0, TAU_E))
    votes = read.edges.votes_BV
    assert not votes[:, [2, 4]].any()
    torch.testing.assert_close(votes.sum(-1), torch.ones(2))
    weight = torch.randn_like(read.tokens_BLD[:, 4])
    (gradient,) = torch.autograd.grad((read.tokens_BLD[:, 4] * weight).sum(), kept)
    assert gradient[:, [2, 4]].all()


def test_a_salient_token_has_the_greater_say() -> None:
    model, (local, asked, offered, words) = reader("A"), inputs()
    everywhere = replace(local, saliency_BV=torch.ones_like(local.saliency_BV))
    every = offered.there_BK[:, None].expand(-1, 6, -1)
    alike = model(everywhere, asked, offered, words, every).edges.votes_BV
    less = everywhere.saliency_BV.clone()
    less[:, 2] = 0.5
    fainter = replace(local, saliency_BV=less)
    votes = model(fainter, asked, offered, words, every).edges.votes_BV
    odds = (votes / (1 - votes))[:, 2] / (alike / (1 - alike))[:, 2]
    torch.testing.assert_close(odds, torch.full_like(odds, 0.5))


def test_the_gradient_of_a_window_is_that_of_the_mean_window() -> None:
    """Straight through: what is given is one place, what is learned from are all."""
    model, (local, asked, offered, words) = reader("A").requires_grad_(True), inputs()
    read = model.relaxed(local, asked, offered, words, Opening(1.0, TAU_E))
    weight = torch.randn(WIDTH)
    (of_window,) = torch.autograd.grad(
        (read.tokens_BLD[0, 5] * weight).sum(), read.pointed_BKT, retain_graph=True
    )
    # The first word of the window is the one before the word that is pointed at
    raw = words.embeddings_BKTD[0] * words.there_BKT[0][..., None]
    expected = torch.zeros_like(of_window[0])
    expected[:, 1:] = raw[:, :-1] @ weight
    mean = (read.pointed_BKT[0].detach() * expected).sum()
    torch.testing.assert_close(of_window[0], expected - mean)


def test_an_answer_may_stand_before_what_asks_for_it() -> None:
    """A key depends on words that follow, in its own passage alone."""
    model, (*_, words) = reader("A"), inputs()
    every = torch.ones(2, 4, dtype=torch.bool)
    states = words.states_BKTD.clone()
    states[0, 1, 4] += 1.0  # the last word of five
    before, after = (
        model._keys(replace(words, states_BKTD=some), every) for some in (words.states_BKTD, states)
    )
    changed = torch.zeros_like(words.there_BKT)
    changed[words.there_BKT] = (before != after).any(-1)
    assert changed[0, 1, :5].all()
    changed[0, 1] = False
    assert not changed.any()


def test_a_window_has_a_place_for_the_word_itself() -> None:
    config = reader("A").config
    assert replace(config, window=4, before=3).before == 3
    for make in (partial(replace, config), FusionTraining):
        with pytest.raises(UserError, match="in a window of 4 at most 3 stand before it"):
            make(window=4, before=4)


def test_what_the_image_shows_is_as_large_as_an_embedding() -> None:
    size = reader("A")(*inputs()).tokens_BLD[:, [0, 4]].square().mean(-1).sqrt()
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
    there = torch.ones(1, 4, dtype=torch.bool)
    offered = Offered(torch.randn(1, 4, 48), *torch.randn(2, 1, 4), there)
    chosen = model(local, asked, offered, words).edges
    edges = chosen.open_BVK[0]
    # Answering has no words of a passage without an edge
    longest = max(n for n, read in zip(lengths, edges.any(0).tolist(), strict=True) if read)
    states, raw = (x[:, :, :longest] for x in (words.states_BKTD, words.embeddings_BKTD))
    words = PassageWords(states, raw, words.lengths_BK * edges.any(0))

    def answering() -> None:
        model.read(model.choose(local, asked, offered), words)

    counted = count_flops(answering)
    assert math.isclose(flops(config, edges, lengths), counted, rel_tol=0.02)
