"""Whether looking up pays, and in which index: two heads that a budget controller may have.

Enters: what the controller reads, [..., W], and an embedding per index. Leaves: the expected gain
in score of looking up, and the probability that an index has something useful. An index is known by
its embedding alone, so that any corpus can be scored. The thresholds are data, not weights: stage V
chooses them on held-out questions and stores them next to the weights.

Shape letters: W what is known, I indexes, D the width of their embeddings.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from skipqa.nn.relaxation import widened


class LookupGate(nn.Module):
    """g: by how much the score rises if the question is looked up."""

    threshold: Tensor  # [] below this gain nothing is looked up

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(width, hidden), nn.GELU())
        self.gain = nn.Linear(hidden, 1)
        self.register_buffer("threshold", torch.zeros(()))

    def forward(self, known: Tensor) -> Tensor:
        return widened(self.gain(self.trunk(known)))[..., 0]


class SourceHead(nn.Module):
    """Bilinear in what is known of the question and in the embedding of an index."""

    threshold: Tensor  # [] an index of lower probability is not searched; 0: all are

    def __init__(self, width: int, index_width: int, hidden: int) -> None:
        super().__init__()
        self.of_question = nn.Linear(width, hidden)
        self.of_index = nn.Linear(index_width, hidden)
        self.prior = nn.Linear(index_width, 1)
        self.register_buffer("threshold", torch.zeros(()))

    def forward(self, known: Tensor, indexes_ID: Tensor) -> Tensor:
        """Logits [..., I]."""
        agreement = self.of_question(known) @ self.of_index(indexes_ID).mT
        return widened(agreement + self.prior(indexes_ID)[:, 0])

    def chosen(self, known: Tensor, indexes_ID: Tensor) -> Tensor:
        """[..., I] bool; the likeliest always is."""
        logits = self(known, indexes_ID)
        best = logits == logits.amax(-1, keepdim=True)
        return best | (logits.sigmoid() >= self.threshold)


def gate_flops(width: int, hidden: int) -> int:
    return 2 * hidden * (width + 1)


def source_flops(width: int, index_width: int, hidden: int, num_indexes: int) -> int:
    of_indexes = num_indexes * (index_width * (hidden + 1) + hidden)
    return 2 * (hidden * width + of_indexes)
