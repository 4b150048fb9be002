"""The language-model half of a backbone whose decoder is a Llama: `generate`, `loglikelihood`.

Enters: a prompt, or its embeddings with a cache of what stands before it. Leaves: the greedy
completion, free or quoted, and log-probabilities of answers. How a prompt is embedded, which
tokens make an answer and which end a completion is left to the subclass.

Shapes as in `llama.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from skipqa.backbones.backbone import Completion, DecoderWords, Decoding
from skipqa.backbones.generation import candidates
from skipqa.backbones.generation.candidates import Candidate
from skipqa.backbones.generation.quoting import SpanConstraint, Verbatim
from skipqa.backbones.networks.llama import KVCache, Llama, early_flops


class GenerationMixin(ABC):
    @property
    @abstractmethod
    def decoder(self) -> Llama: ...

    @property
    @abstractmethod
    def decoder_tokenizer(self) -> Tokenizer: ...

    @property
    @abstractmethod
    def stop_tokens(self) -> Sequence[int]:
        """Tokens that end a completion; they are not part of it."""

    @abstractmethod
    def embed_prompt(self, prompt: str, visual: Tensor | None = None) -> Tensor:
        """[1, T, D]"""

    @abstractmethod
    def answer_tokens(self, text: str) -> list[int]:
        """The tokens that the decoder generates when its answer is `text`, and the end token."""

    @torch.inference_mode()
    def decoder_words(
        self, texts: Sequence[str], layers: int, longest: int | None = None
    ) -> DecoderWords:
        """Encoded as prompts are, without a template around them."""
        decoder, spent = self.decoder, 0
        states, embeddings = [], []
        for text in texts:
            ids = self.decoder_tokenizer.encode(text, add_special_tokens=False).ids[:longest]
            x_1LD = decoder.embedding(torch.tensor([ids], device=decoder.embedding.weight.device))
            embeddings.append(x_1LD[0].float().cpu())
            states.append(decoder.early_states(x_1LD, layers)[0].float().cpu())
            spent += early_flops(decoder.config, layers, len(ids))
        return DecoderWords(tuple(states), tuple(embeddings), spent)

    @torch.inference_mode()
    def generate(self, prompt: str, decoding: Decoding, visual: Tensor | None = None) -> Completion:
        return self.generate_embedded(self.embed_prompt(prompt, visual), decoding)

    def generate_embedded(
        self, prompt_1TD: Tensor, decoding: Decoding, past: KVCache | None = None
    ) -> Completion:
        """As `generate`, for a prompt that is embedded already and may follow a cached `past`."""
        log_probs: list[float] = []
        if decoding.candidates:
            generated, log_probs = candidates.generate_with_candidates(
                self.decoder,
                prompt_1TD,
                decoding.max_new_tokens,
                self.stop_tokens,
                [
                    Candidate(self.answer_tokens(text), prior, decoding.completion_log_prior)
                    for text, prior in decoding.candidates
                ],
                past,
            )
        else:
            spans = SpanConstraint(
                decoding.quote_from, self.decoder_tokenizer, self.stop_tokens, decoding.avoid
            )
            generated = self.decoder.generate(
                prompt_1TD, decoding.max_new_tokens, self.stop_tokens, spans or None, past
            )
        return Completion(
            self.decoder_tokenizer.decode(generated.tokens).strip(),
            prompt_tokens=prompt_1TD.shape[1] + (0 if past is None else past.length),
            new_tokens=len(generated.tokens),
            flops=generated.flops,
            candidate_log_probs=tuple(log_probs),
        )

    def loglikelihood(self, prompt: str, answers: Sequence[str]) -> tuple[list[float], int]:
        tokens = [self.answer_tokens(answer) for answer in answers]
        return candidates.loglikelihood(self.decoder, self.embed_prompt(prompt), tokens)

    def log_prob(self, prompt: str, answer: str, visual: Tensor | None = None) -> float:
        prompt_1TD, target = self.embed_prompt(prompt, visual), self.answer_tokens(answer)[:-1]
        forced = self.decoder.generate(prompt_1TD, len(target), (), Verbatim(target))
        return sum(forced.log_probs)
