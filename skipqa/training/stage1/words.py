"""What each image shows, in words: the best of the tagger's names and of the encoder's classes.

Enters: the probabilities of both kinds of names. Leaves: for every photo its best few words with
their probabilities, as the drafter reads them (embedded) and as the reader does (as text).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from skipqa.backbones.networks import bert
from skipqa.config import DecodeConfig

PROMPT = DecodeConfig()  # the reader is trained on prompts as answering writes them


@dataclass(frozen=True, slots=True)
class Words:
    names: tuple[str, ...]
    embeddings: Tensor  # [names, d]
    indices: Tensor  # [P, W], best first
    probs: Tensor  # [P, W]

    def to(self, device: torch.device | str) -> Words:
        tensors = (tensor.to(device) for tensor in (self.embeddings, self.indices, self.probs))
        return Words(self.names, *tensors)

    def embedded(self, photos: Tensor) -> tuple[Tensor, Tensor]:
        """[B, W, d] and [B, W]."""
        return self.embeddings[self.indices[photos]], self.probs[photos]

    def written(self, photo: int) -> list[str]:
        shown, least = PROMPT.words, PROMPT.min_prob
        best = self.indices[photo, :shown].tolist(), self.probs[photo, :shown].tolist()
        return [self.names[i] for i, prob in zip(*best, strict=True) if prob > least]


def best_words(
    names: Sequence[str], embeddings: Tensor, probs_PN: Tensor, overview_PC: Tensor, count: int
) -> Words:
    """`names` and `embeddings` are of the tagger's names, then of the encoder's classes."""
    best = torch.cat((probs_PN, overview_PC), dim=1).topk(count, dim=1)
    return Words(tuple(names), embeddings, best.indices, best.values)


@torch.no_grad()
def embed(text: bert.Bert, tokenizer: Tokenizer, names: Sequence[str]) -> Tensor:
    """[names, d], unit length."""
    device, found = text.segment.device, []
    for start in range(0, len(names), 512):
        some = tokenizer.encode_batch(list(names[start : start + 512]))
        ids = [torch.tensor(one.ids) for one in some]
        padded = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1).to(device)
        mask = padded >= 0
        found.append(bert.mean_pool(text(padded.clamp(min=0), mask), mask))
    return torch.cat(found)
