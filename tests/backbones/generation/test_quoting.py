"""Quoting by constrained decoding, and guesses that make it faster without changing it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.backbones.generation.quoting import SpanConstraint
from skipqa.backbones.networks.llama import Llama, LlamaConfig
from skipqa.pipeline import Pipeline

TEXTS = (
    "espresso (noun): strong black coffee brewed by forcing hot water through ground beans",
    "The Chihuahua comes from Mexico; it is an old breed of very small dog.",
    "Crème brûlée – naïve café, 東京 and 🍋 lemons at 3.5 °C",
)


class FromTexts:
    """A constraint on token ids, to test generation without a tokenizer."""

    def __init__(self, texts: list[list[int]], stop: int, guesses: list[list[int]]) -> None:
        self.texts, self.stop, self.guesses = texts, stop, guesses
        self.span: list[int] = []

    def _followers(self) -> set[int]:
        n = len(self.span)
        return {
            text[i + n]
            for text in self.texts
            for i in range(len(text) - n)
            if text[i : i + n] == self.span
        }

    def allowed(self) -> list[int]:
        return sorted(self._followers() | ({self.stop} if self.span else set()))

    def advance(self, token: int) -> None:
        self.span.append(token)

    def likely(self) -> list[int]:
        return self.guesses[len(self.span) % len(self.guesses)] if self.guesses else []


@pytest.fixture(scope="module")
def decoder() -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(40, 32, 2, 4, 2, 64)).double().eval()


@given(
    texts=st.lists(st.lists(st.integers(1, 39), min_size=1, max_size=12), min_size=1, max_size=3),
    guesses=st.lists(st.lists(st.integers(0, 39), max_size=9), max_size=4),
    prompt=st.lists(st.integers(0, 39), min_size=1, max_size=6),
    max_new=st.integers(1, 12),
)
def test_guesses_never_change_the_result(
    decoder: Llama,
    texts: list[list[int]],
    guesses: list[list[int]],
    prompt: list[int],
    max_new: int,
) -> None:
    embedded = decoder.embedding(torch.tensor([prompt])).detach()
    slow = decoder.generate(embedded, max_new, [0], FromTexts(texts, 0, []))
    fast = decoder.generate(embedded, max_new, [0], FromTexts(texts, 0, guesses))
    assert fast.tokens == slow.tokens
    assert fast.log_probs == pytest.approx(slow.log_probs, abs=1e-9)
    assert fast.flops >= slow.flops or len(slow.tokens) > 1


def follow(constraint: SpanConstraint, pick: list[int], stop: int) -> list[int]:
    """Tokens chosen by `pick` among those allowed, until the stop token or the end."""
    chosen: list[int] = []
    for number in pick:
        allowed = constraint.allowed()
        if not allowed:
            break
        token = allowed[number % len(allowed)]
        if token == stop:
            break
        constraint.advance(token)
        chosen.append(token)
    return chosen


@given(pick=st.lists(st.integers(0, 1_000), min_size=1, max_size=30))
def test_whatever_is_chosen_is_a_span(pipeline: Pipeline, pick: list[int]) -> None:
    tokenizer = pipeline.backbone.decoder_tokenizer
    stop = tokenizer.token_to_id("<|im_end|>")
    constraint = SpanConstraint(TEXTS, tokenizer, [stop])
    chosen = follow(constraint, pick, stop)
    texts = [tokenizer.encode(f" {text}").ids for text in TEXTS]
    assert any(text[i : i + len(chosen)] == chosen for text in texts for i in range(len(text)))
    assert tokenizer.decode(chosen)[:1] == " "  # a span starts with a whole word


def test_words_to_avoid_do_not_start_a_span(pipeline: Pipeline) -> None:
    tokenizer = pipeline.backbone.decoder_tokenizer
    free = SpanConstraint(TEXTS, tokenizer, [0]).allowed()
    avoid = ["Espresso", "chihuahua", "the"]
    avoiding = SpanConstraint(TEXTS, tokenizer, [0], avoid).allowed()
    refused = [tokenizer.decode([token]).strip().lower() for token in set(free) - set(avoiding)]
    assert len(refused) == 3
    assert all(any(w.startswith(r) for w in ("espresso", "chihuahua", "the")) for r in refused)


def test_nothing_to_quote(pipeline: Pipeline) -> None:
    tokenizer = pipeline.backbone.decoder_tokenizer
    assert not SpanConstraint([], tokenizer, [0])
    assert not SpanConstraint(["…"], tokenizer, [0])


def test_a_span_ends_only_between_words(pipeline: Pipeline) -> None:
    tokenizer = pipeline.backbone.decoder_tokenizer
    stop = tokenizer.token_to_id("<|im_end|>")
    constraint = SpanConstraint(["Ornithorhynchus anatinus"], tokenizer, [stop])
    tokens = tokenizer.encode(" Ornithorhynchus").ids
    assert len(tokens) > 1
    for token in tokens[:-1]:
        constraint.advance(token)
        assert stop not in constraint.allowed()
    constraint.advance(tokens[-1])
    assert stop in constraint.allowed()
