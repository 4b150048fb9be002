"""How much each visual token of an image has to do with the question, without training.

Enters: projected visual tokens [V, D] and the embeddings of the question's tokens [T, D], both in
the decoder's embedding space. Leaves: one score per visual token, or the positions of the best. It
knows neither models nor prompts.

    s_i = max_t cos(P v_i, P q_t),    P = I - U U^T

U spans two directions: the mean of the vocabulary's unit vectors, and the mean of the image's.
Without P the largest cosine keeps tokens that resemble everything: those with most of what all
words, or all tokens of the image, have in common. P centres both sides, by projection rather than
by subtracting a mean: visual tokens and words may differ much in length, so that one mean would not
fit both, and vectors that point the same way still do so after P. A visual token that says a word
of the question therefore has s_i = 1, the highest score, and always stays. The maximum rather than
the mean over t, since one word is enough ("cup") and a prompt has many that are about no region.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

NOTHING = 1e-4  # a unit vector of which less is left has no direction of its own


def saliency(visual_VD: Tensor, question_TD: Tensor, vocabulary_D: Tensor | None = None) -> Tensor:
    """s_i of every visual token, [V]; `vocabulary_D` is `mean_direction` of the model's words."""
    unit_VD = F.normalize(visual_VD.float(), dim=-1)
    unit_TD = F.normalize(question_TD.float(), dim=-1)
    means = [unit_VD.mean(0)] if vocabulary_D is None else [vocabulary_D, unit_VD.mean(0)]
    for mean_D in _orthonormal([mean_D.to(unit_VD) for mean_D in means]):
        unit_VD = unit_VD - (unit_VD @ mean_D)[:, None] * mean_D
        unit_TD = unit_TD - (unit_TD @ mean_D)[:, None] * mean_D
    visual_VD = F.normalize(unit_VD, dim=-1, eps=NOTHING)
    return (visual_VD @ F.normalize(unit_TD, dim=-1, eps=NOTHING).T).amax(1)


def mean_direction(words_WD: Tensor) -> Tensor:
    """The mean of the unit vectors of some words, [D]."""
    return F.normalize(words_WD.float(), dim=-1).mean(0)


def count_kept(keep: float, total: int) -> int:
    """ceil(keep * total); what floats add to a whole number does not count (0.11 * 100)."""
    return min(total, math.ceil(keep * total - 1e-9))


def most_salient(saliency_V: Tensor, count: int) -> Tensor:
    """Positions of the `count` highest scores, ascending; ties go to the first."""
    order = torch.argsort(saliency_V, descending=True, stable=True)
    return order[:count].sort().values


def _orthonormal(vectors: list[Tensor]) -> list[Tensor]:
    """Gram-Schmidt; what is left of a vector that the others span is (almost) nothing."""
    basis: list[Tensor] = []
    for vector_D in vectors:
        vector_D = F.normalize(vector_D, dim=-1)
        for axis_D in basis:
            vector_D = vector_D - (vector_D @ axis_D) * axis_D
        basis.append(F.normalize(vector_D, dim=-1, eps=NOTHING))
    return basis
