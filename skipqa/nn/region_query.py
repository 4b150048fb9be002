"""RCSR: what a region asks of the corpus.

Enters: the regions' features [..., R, D_v] and the pooled question [..., D_q]; variant B also the
regions' boxes. Leaves: one query per region, sparse over the 30,522 terms of the retrieval
vocabulary (A) or dense (B). It neither forms regions nor searches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn.relaxation import relaxed_top_k
from skipqa.types import SparseVector


@dataclass(frozen=True, slots=True)
class RegionQueryConfig:
    visual_width: int
    question_width: int
    variant: Literal["A", "B"] = "A"
    hidden: int = 512
    vocabulary: int = 30_522  # A: BERT's, the space of SPLADE
    max_terms: int = 64  # A: terms kept a query; the index walks one postings list for each
    retrieval_width: int = 768  # B


class SparseRegionQuery(nn.Module):
    """Variant A, eq. 7: phi(c_r, q) = log(1 + relu(MLP([c_r ; q]))), cut to its best terms."""

    def __init__(self, config: RegionQueryConfig) -> None:
        super().__init__()
        self.config = config
        self.of_region = nn.Linear(config.visual_width, config.hidden)
        self.of_question = nn.Linear(config.question_width, config.hidden, bias=False)
        self.to_terms = nn.Linear(config.hidden, config.vocabulary)

    def forward(self, regions: Tensor, question: Tensor) -> Tensor:
        """The weight of every term before the cut, [..., R, vocabulary]."""
        hidden = F.gelu(self.of_region(regions) + self.of_question(question)[..., None, :])
        return self.to_terms(hidden).relu().log1p()

    def queries(self, weights_RN: Tensor) -> list[SparseVector]:
        """The hard form: for each region its `max_terms` heaviest terms, no zeros."""
        count = min(self.config.max_terms, weights_RN.shape[-1])
        heaviest = weights_RN.topk(count, dim=-1).indices.sort(dim=-1).values
        found = []
        for weights, terms in zip(weights_RN.detach().float(), heaviest, strict=True):
            kept = terms[weights[terms] > 0]
            found.append(
                SparseVector(kept.cpu().numpy().astype(np.int32), weights[kept].cpu().numpy())
            )
        return found

    def relaxed_queries(
        self, weights: Tensor, temperature: float, noise: Tensor | None = None
    ) -> Tensor:
        """The same cut, differentiable: tends to `queries` written out over the vocabulary."""
        return weights * relaxed_top_k(weights, self.config.max_terms, temperature, noise)


class DenseRegionQuery(nn.Module):
    """Variant B, eq. B.3: MLP([q ; f_r ; p_r]), p_r the normalised box."""

    def __init__(self, config: RegionQueryConfig) -> None:
        super().__init__()
        self.config = config
        self.of_region = nn.Linear(config.visual_width, config.hidden)
        self.of_question = nn.Linear(config.question_width, config.hidden, bias=False)
        self.of_box = nn.Linear(4, config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, config.retrieval_width)

    def forward(self, regions: Tensor, question: Tensor, boxes: Tensor) -> Tensor:
        """[..., R, retrieval_width]; `boxes` [..., R, 4] as left, top, right, bottom fractions."""
        left_top, right_bottom = boxes[..., :2], boxes[..., 2:]
        places = torch.cat((left_top, right_bottom - left_top), dim=-1)  # the paper's x, y, w, h
        hidden = self.of_region(regions) + self.of_box(places)
        return self.out(F.gelu(hidden + self.of_question(question)[..., None, :]))


def build_region_query(config: RegionQueryConfig) -> SparseRegionQuery | DenseRegionQuery:
    return SparseRegionQuery(config) if config.variant == "A" else DenseRegionQuery(config)


def term_flops_loss(weights: Tensor) -> Tensor:
    """SPLADE's sparsity regulariser: the expected cost of a search, sum over terms of the
    squared mean weight over all queries."""
    return weights.flatten(0, -2).mean(0).square().sum()


def flops(config: RegionQueryConfig, num_regions: int) -> int:
    """FLOPs of the queries of one image, a multiply and an add counted as two."""
    inputs, outputs = config.visual_width, config.vocabulary
    if config.variant == "B":
        inputs, outputs = config.visual_width + 4, config.retrieval_width
    shared = config.question_width * config.hidden
    return 2 * (shared + num_regions * config.hidden * (inputs + outputs))
