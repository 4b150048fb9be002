"""What a backbone says by a Llama of its own: completions, and how likely answers would be.

Enters: a prompt, or its embeddings after what was read before. Leaves: the greedy completion, free
or quoted, and log-probabilities of answers. How a prompt is embedded, which tokens an answer is
and which end it are a subclass's business.

Shapes as in `llama.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from skipqa.backbones.backbone import Completion
from skipqa.backbones.generation import candidates as continuations
from skipqa.backbones.generation.quoting import SpanConstraint, Verbatim
from skipqa.backbones.networks.llama import KVCache, Llama


class GenerationMixin(ABC):
    @property
    @abstractmethod
    def decoder(self) -> Llama: ...

    @property
    @abstractmethod
    def decoder_tokenizer(self) -> Tokenizer: ...

    @property
    @abstractmethod
    def ends(self) -> Sequence[int]:
        """Tokens that a completion ends before."""

    @abstractmethod
    def embed_prompt(self, prompt: str, visual: Tensor | None = None) -> Tensor:
        """[1, T, D]"""

    @abstractmethod
    def as_answer(self, text: str) -> list[int]:
        """What the decoder would have to write for its answer to be `text`, and an end."""

    @torch.inference_mode()
    def generate(
        self,
        prompt: str,
        max_new_tokens: int,
        quote_from: Sequence[str] = (),
        avoid: Collection[str] = (),
        visual: Tensor | None = None,
        candidates: Sequence[tuple[str, float]] = (),
    ) -> Completion:
        embedded_1TD = self.embed_prompt(prompt, visual)
        return self.continued(embedded_1TD, max_new_tokens, quote_from, avoid, candidates)

    def continued(
        self,
        embedded_1TD: Tensor,
        max_new_tokens: int,
        quote_from: Sequence[str] = (),
        avoid: Collection[str] = (),
        candidates: Sequence[tuple[str, float]] = (),
        past: KVCache | None = None,
    ) -> Completion:
        """As `complete`, of a prompt that is embedded, after what was read before it."""
        decoder, tokenizer, ends = self.decoder, self.decoder_tokenizer, self.ends
        weights: list[float] = []
        if candidates:
            assert not quote_from
            answers = [self.as_answer(answer) for answer, _ in candidates]
            prior = [prob for _, prob in candidates]
            generated, weights = continuations.reply(
                decoder, embedded_1TD, max_new_tokens, ends, answers, prior, past
            )
        else:
            spans = SpanConstraint(quote_from, tokenizer, ends, avoid) or None
            generated = decoder.generate(embedded_1TD, max_new_tokens, ends, spans, past)
        return Completion(
            tokenizer.decode(generated.tokens).strip(),
            prompt_tokens=embedded_1TD.shape[1] + (0 if past is None else past.length),
            new_tokens=len(generated.tokens),
            flops=generated.flops,
            weights=tuple(weights),
        )

    def loglikelihood(self, prompt: str, answers: Sequence[str]) -> tuple[list[float], int]:
        tokens = [self.as_answer(answer) for answer in answers]
        return continuations.loglikelihood(self.decoder, self.embed_prompt(prompt), tokens)

    def log_prob(self, prompt: str, answer: str, visual: Tensor | None = None) -> float:
        embedded_1TD, wanted = self.embed_prompt(prompt, visual), self.as_answer(answer)[:-1]
        written = self.decoder.generate(embedded_1TD, len(wanted), (), Verbatim(wanted))
        return sum(written.log_probs)
