"""RCSR: what a region asks of the corpus.

Enters: what the regions show (`RegionViews`), the pooled question [..., d], and the queries that
the names of the regions' concepts make, which a region asks before anything is trained; variant B
also reads the regions' boxes. Leaves: one query per region, sparse over the 30,522 terms of the
retrieval vocabulary (A) or dense (B). It neither forms regions nor searches.

What is learned is a residual: a module that was not trained yet asks what the names ask. The last
layer starts with small random weights and a small positive bias, not with zeros, because relu has
no gradient at 0: terms outside the query by names could never join in. The layer that reads
evidence does start with zeros, so that a concept that no training question showed adds nothing.

Shape letters: R regions, F features, C concepts, d text width, N terms.
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

# Of the last layer: the spread of its weights, and its bias. They change no term by more than 0.01.
START, ALIVE = 1e-4, 1e-3


@dataclass(frozen=True, slots=True)
class RegionQueryConfig:
    vision_width: int
    concepts: int
    question_width: int
    variant: Literal["A", "B"] = "A"
    hidden: int = 512
    vocabulary: int = 30_522  # A: BERT's, the space of SPLADE
    max_terms: int = 128  # A: terms kept a query; the index walks one postings list for each
    retrieval_width: int = 768  # B


@dataclass(frozen=True, slots=True)
class RegionViews:
    """What regions show, as the vision encoder gives it."""

    features: Tensor  # [..., R, F] the mean over a region's tokens
    evidence: Tensor  # [..., R, C] probabilities of concepts


class RegionQuery(nn.Module):
    """W [features ; evidence] of a region and the question, in one hidden layer."""

    def __init__(self, config: RegionQueryConfig) -> None:
        super().__init__()
        self.config = config
        self.standardise = nn.LayerNorm(config.vision_width, elementwise_affine=False)
        self.of_features = nn.Linear(config.vision_width, config.hidden)
        self.of_evidence = nn.Linear(config.concepts, config.hidden, bias=False)
        nn.init.zeros_(self.of_evidence.weight)
        self.of_question = nn.Linear(config.question_width, config.hidden, bias=False)

    def before_activation(self, views: RegionViews, question: Tensor) -> Tensor:
        # Square roots of probabilities have unit length, however many concepts share them.
        seen = self.of_features(self.standardise(views.features))
        named = self.of_evidence(views.evidence.sqrt())
        return seen + named + self.of_question(question)[..., None, :]


class SparseRegionQuery(RegionQuery):
    """Variant A, eq. 7 with a query by names b: phi(c_r, q) = relu(b + sgn(m) log(1 + |m|)) with
    m = MLP([c_r ; q]), cut to its best terms. For a term that the names do not ask for it is the
    paper's log(1 + relu(m)). Inside the logarithm, as log(1 + relu(e^b - 1 + m)), the gradient of
    a name's term would be e^-b, a thousandth of that of others: a wrong name could not be unasked.
    """

    def __init__(self, config: RegionQueryConfig) -> None:
        super().__init__(config)
        self.to_terms = nn.Linear(config.hidden, config.vocabulary)
        _start_small(self.to_terms, ALIVE)

    def forward(self, views: RegionViews, question: Tensor) -> Tensor:
        """What is added to the weight of every term, [..., R, N]: the same for all indexes."""
        m = self.to_terms(F.gelu(self.before_activation(views, question)))
        return m.sign() * m.abs().log1p()

    @staticmethod
    def weights(names: Tensor, residual: Tensor) -> Tensor:
        """The weight of every term before the cut. `names` is the query by names as an index
        encodes it, [..., R, N]."""
        return (names + residual).relu()

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


class DenseRegionQuery(RegionQuery):
    """Variant B, eq. B.3: MLP([q ; f_r ; p_r]), p_r the normalised box, added to the embedding of
    the region's names."""

    def __init__(self, config: RegionQueryConfig) -> None:
        super().__init__(config)
        self.of_box = nn.Linear(4, config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, config.retrieval_width)
        _start_small(self.out)

    def forward(self, views: RegionViews, question: Tensor, boxes: Tensor) -> Tensor:
        """What is added to each region's embedding, [..., R, retrieval_width]; `boxes` [..., R, 4]
        as left, top, right, bottom fractions."""
        left_top, right_bottom = boxes[..., :2], boxes[..., 2:]
        places = torch.cat((left_top, right_bottom - left_top), dim=-1)  # the paper's x, y, w, h
        return self.out(F.gelu(self.before_activation(views, question) + self.of_box(places)))


def build_region_query(config: RegionQueryConfig) -> SparseRegionQuery | DenseRegionQuery:
    return SparseRegionQuery(config) if config.variant == "A" else DenseRegionQuery(config)


def term_flops_loss(weights: Tensor) -> Tensor:
    """SPLADE's sparsity regulariser: the expected cost of a search, sum over terms of the
    squared mean weight over all queries."""
    return weights.flatten(0, -2).mean(0).square().sum()


def flops(config: RegionQueryConfig, num_regions: int) -> int:
    """FLOPs of the queries of one image, a multiply and an add counted as two."""
    inputs, outputs = config.vision_width + config.concepts, config.vocabulary
    if config.variant == "B":
        inputs, outputs = inputs + 4, config.retrieval_width
    shared = config.question_width * config.hidden
    return 2 * (shared + num_regions * config.hidden * (inputs + outputs))


def _start_small(last: nn.Linear, bias: float = 0.0) -> None:
    nn.init.normal_(last.weight, std=START)
    nn.init.constant_(last.bias, bias)
