"""SPLADE from any BERT masked language model: a folder or a Hugging Face id.

The weight of a term is the maximum over the tokens of log(1 + relu(logit)). Heavy imports happen
on use: reading an index needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from skipqa.errors import MissingExtra, UserError
from skipqa.knowledge.vectors import NUM_TERMS, SparseRows
from skipqa.types import Passage, SparseVector


class SpladeEncoder:
    """Passages and queries use the same model; on a GPU in half precision."""

    encodes_whole_questions = True

    def __init__(
        self,
        checkpoint: str,
        max_tokens: int = 256,
        batch: int = 32,
        floor: float = 0.01,
        ceiling: float = 4.0,
    ) -> None:
        self.checkpoint = checkpoint
        self.max_tokens = max_tokens
        self.batch = batch
        self.floor = floor  # smaller weights are noise found in every passage
        self.ceiling = ceiling

    @property
    def network(self) -> object:
        return self

    def forget_question(self) -> None:
        """Nothing is kept."""

    def config(self) -> dict[str, Any]:
        return {
            "kind": "splade",
            "checkpoint": self.checkpoint,
            "max_tokens": self.max_tokens,
            "batch": self.batch,
            "floor": self.floor,
            "ceiling": self.ceiling,
        }

    def save(self, folder: Path) -> None:
        """Nothing: the index stores the name of the checkpoint, not a copy."""

    def observe(self, document_frequency: NDArray[np.int64], num_passages: int) -> None:
        """Nothing: the model's weights already reflect term frequency."""

    def encode_passages(self, passages: Sequence[Passage]) -> SparseRows:
        return self._encode([f"{p.title}. {p.text}" if p.title else p.text for p in passages])

    def encode_query(self, text: str) -> SparseVector:
        return self._encode([text])[0]

    def query_flops(self, text: str) -> int:
        """Every weight except the embeddings once per token, plus attention."""
        tokenizer, model = self._loaded
        length = min(len(tokenizer(text)["input_ids"]), self.max_tokens)
        config = model.config
        tables = (config.vocab_size + config.max_position_embeddings) * config.hidden_size
        weights = model.num_parameters() - tables + config.vocab_size * config.hidden_size
        attention = 2 * config.num_hidden_layers * config.hidden_size * length
        return 2 * length * int(weights + attention)

    def encode_terms(self, text: str) -> SparseVector:
        return self.encode_query(text)

    def as_query(self, passage: SparseVector) -> SparseVector:
        return passage

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self._loaded[0].backend_tokenizer.to_str())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    def _encode(self, texts: list[str]) -> SparseRows:
        import torch

        tokenizer, model = self._loaded
        # Texts of similar length are batched together to keep padding short.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        vectors: list[SparseVector | None] = [None] * len(texts)
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            inputs = tokenizer(
                [texts[i] for i in chosen],
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
            ).to(model.device)
            with torch.inference_mode():
                logits = model(**inputs).logits.float()  # [batch, tokens, V]
                logits = logits.relu() * inputs["attention_mask"][:, :, None]
                weights = logits.amax(dim=1).log1p().cpu().numpy()  # [batch, V]
            for i, row in zip(chosen, weights, strict=True):
                terms = np.flatnonzero(row > self.floor)
                vectors[i] = SparseVector(terms.astype(np.int32), row[terms])
        return SparseRows.stack([vector for vector in vectors if vector is not None])

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        try:
            import torch
            from transformers import AutoModelForMaskedLM, AutoTokenizer
        except ImportError as error:
            raise MissingExtra("a SPLADE encoder", "splade") from error
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.checkpoint)
            model = AutoModelForMaskedLM.from_pretrained(self.checkpoint)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"no masked-language-model checkpoint at {self.checkpoint!r} ({reason}); give a "
                "folder with config.json, model.safetensors and tokenizer.json (SPLADE++ is "
                "about 440 MB), or a Hub id that this machine can reach"
            ) from error
        if model.config.vocab_size > NUM_TERMS:
            raise UserError(
                f"{self.checkpoint} has {model.config.vocab_size} terms, not BERT's {NUM_TERMS}"
            )
        if torch.cuda.is_available():
            model = model.half().to("cuda")
        return tokenizer, model.eval()
