"""The head that weighs a query's terms: it begins as a lexical query and learns from there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from skipqa.nn.term_weights import NO_TERM, TermWeights, TermWeightsConfig, tie_to_words

WIDTH, TERMS = 12, 30


@pytest.fixture
def head() -> TermWeights:
    return TermWeights(TermWeightsConfig(WIDTH, TERMS))


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, the terms they are matched as, what is no padding, and embeddings of words."""
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(2, 4, WIDTH, generator=draw)
    terms = torch.tensor([[NO_TERM, 3, 5, 3], [7, NO_TERM, 9, 9]])
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    return states, terms, mask, torch.randn(TERMS, WIDTH, generator=draw)


def test_untrained_it_asks_what_a_lexical_query_does(
    head: TermWeights, batch: tuple[Tensor, ...]
) -> None:
    own, joined = head(*batch)
    assert own[0].nonzero()[:, 0].tolist() == [3, 5]
    assert own[1].nonzero()[:, 0].tolist() == [7]
    torch.testing.assert_close(own[own > 0], torch.ones(3))
    assert not joined.any()


def test_others_join_in_by_the_formula(head: TermWeights, batch: tuple[Tensor, ...]) -> None:
    states, _, mask, words = batch
    torch.nn.init.normal_(head.to_word.weight)
    torch.nn.init.normal_(head.bias)
    _, joined = head(*batch)
    logits = head.to_word(states) @ words.T + head.bias
    expected = logits.relu().log1p().masked_fill(~mask[..., None], 0.0).amax(1)
    torch.testing.assert_close(joined, expected)


def test_among_some_terms_it_is_the_same_for_these(
    head: TermWeights, batch: tuple[Tensor, ...]
) -> None:
    torch.nn.init.normal_(head.to_word.weight)
    among = torch.tensor([1, 4, 9, 22])
    (own, joined), (own_some, some) = head(*batch), head(*batch, among)
    torch.testing.assert_close(some[:, among], joined[:, among])
    assert some.count_nonzero() == some[:, among].count_nonzero()
    torch.testing.assert_close(own, own_some)


def test_the_start_finds_the_word_itself_and_passes_gradients(head: TermWeights) -> None:
    draw = torch.Generator().manual_seed(1)
    words = torch.randn(TERMS, WIDTH, generator=draw)
    mixing = torch.randn(WIDTH, WIDTH, generator=draw)
    ids = torch.randint(0, TERMS, (600,), generator=draw)
    states = words[ids] @ mixing + 0.05 * torch.randn(600, WIDTH, generator=draw)
    tie_to_words(head, states, ids, words, joining=3)
    own = head.to_word(states) @ words.T
    assert (own.argmax(1) == ids).float().mean() > 0.8  # words of different lengths
    _, joined = head(states[:, None], ids[:, None], torch.ones(600, 1, dtype=torch.bool), words)
    assert 1 <= (joined > 0).sum(1).float().mean() <= 6
    joined.sum().backward()
    assert head.to_word.weight.grad is not None
    assert head.to_word.weight.grad.abs().sum() > 0
