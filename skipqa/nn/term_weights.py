"""Which terms a question asks for, and how much: a sparse query from a text encoder's states.

Enters: states [B, L, D] of a text's word pieces, the term that each is matched as, and the word
pieces' embeddings. Leaves: the factor on every term's idf, [B, N]. It knows no index: how rare a
term is, the index says.

SPLADE's head with a residual. A word of the text keeps its idf times a gate, which begins at 1,
so that an untrained head asks exactly what a lexical query does; other terms join in by
log(1 + relu(logit)), the logits being tied to the encoder's own embeddings of word pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NO_TERM = -1  # of a word piece that is matched as nothing: grammar, punctuation, [CLS]


@dataclass(frozen=True, slots=True)
class TermWeightsConfig:
    width: int = 384
    vocabulary: int = 30_522
    max_terms: int = 64  # kept a query; the index walks one postings list for each


class TermWeights(nn.Module):
    def __init__(self, config: TermWeightsConfig) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Linear(config.width, 1)
        self.to_word = nn.Linear(config.width, config.width)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        with torch.no_grad():
            self.gate.weight.zero_()
            self.gate.bias.fill_(math.log(math.e - 1))  # softplus gives 1
            self.to_word.weight.zero_()
            self.to_word.bias.zero_()

    def forward(
        self,
        states_BLD: Tensor,
        terms_BL: Tensor,
        mask_BL: Tensor,
        words_ND: Tensor,
        among: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Factors of the text's own terms, and of those that join in; a query is their sum.

        With `among` only those terms may join in: training needs no others than its passages have.
        """
        gates_BL = F.softplus(self.gate(states_BLD)[..., 0].float())
        counted = (terms_BL != NO_TERM) & mask_BL
        own_BN = gates_BL.new_zeros(len(states_BLD), self.config.vocabulary)
        own_BN = own_BN.scatter_reduce(
            1, terms_BL.clamp(min=0), gates_BL * counted, reduce="amax", include_self=True
        )
        words, bias = (
            (words_ND, self.bias) if among is None else (words_ND[among], self.bias[among])
        )
        logits = self.to_word(states_BLD) @ words.T.to(states_BLD.dtype)
        # The maximum commutes with what follows, which then has one row a text to work on.
        best = logits.masked_fill(~mask_BL[..., None], -torch.inf).amax(1).float()
        joined = (best + bias).relu().log1p()
        if among is not None:
            joined = torch.zeros_like(own_BN).index_copy(1, among, joined)
        return own_BN, joined


@torch.no_grad()
def tie_to_words(
    head: TermWeights, states_TD: Tensor, ids_T: Tensor, words_ND: Tensor, joining: int
) -> None:
    """Give the head a start: the ridge regression that finds a state's own word piece, and a
    bias below which all but about `joining` terms of a state remain.

    A sentence encoder has lost the head that it was pretrained with; from zeros, relu would pass
    no gradient.
    """
    states, words = states_TD.double(), F.normalize(words_ND - words_ND.mean(0), dim=-1)
    mean = states.mean(0)
    centred, targets = states - mean, words[ids_T].double()
    gram = centred.T @ centred
    ridge = 0.01 * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
    solution = torch.linalg.solve(gram + ridge, centred.T @ (targets - targets.mean(0)))
    head.to_word.weight.copy_(solution.T)
    head.to_word.bias.copy_(targets.mean(0) - mean @ solution)
    some = states_TD[:: max(1, len(states_TD) // 512)]
    logits_SN = head.to_word(some) @ words_ND.T
    least = logits_SN.topk(joining + 1, dim=-1).values[:, -1].mean()
    spread = (logits_SN.amax(-1).mean() - least).clamp(min=1e-6)
    head.to_word.weight.div_(spread)  # the nearest term joins in with log(1 + 1)
    head.to_word.bias.div_(spread)
    head.bias.fill_(-float(least / spread))
