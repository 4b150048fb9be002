"""The question encoder of sparse retrieval (SPLADE): MiniLM with a head that weights terms.

Enters: word pieces of a question. Leaves: a factor on every vocabulary term's idf. Passages need
no network: an index stores the impacts of their words, and any expansion of a passage can be
written as an expansion of the question instead, with the same inner product.

Shapes: B batch, L word pieces, N terms of the vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from skipqa.assets import Report
from skipqa.backbones.networks import bert
from skipqa.backbones.networks.bert import MINILM_L6, Bert, BertConfig
from skipqa.backbones.weights import convert, loading
from skipqa.nn.term_weights import TermWeights, TermWeightsConfig

COMPONENT = "sparse_query"


class SparseQuery(nn.Module):
    def __init__(self, text: Bert) -> None:
        super().__init__()
        self.text = text
        config = text.config
        self.head = TermWeights(TermWeightsConfig(config.width, config.vocabulary))

    def forward(
        self, ids_BL: Tensor, mask_BL: Tensor, matched_as_N: Tensor, among: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Factors of the text's own terms and of the expansion terms, [B, N] each."""
        states, terms = self.text(ids_BL, mask_BL), matched_as_N[ids_BL]
        found: tuple[Tensor, Tensor] = self.head(
            states, terms, mask_BL, self.text.words.weight, among
        )
        return found


def published(report: Report = lambda _: None, config: BertConfig = MINILM_L6) -> SparseQuery:
    """The published text encoder with a new head, which changes no term's weight."""
    return SparseQuery(loading.load(lambda: Bert(config), convert.text(report)))


def trained(delta: Path, report: Report = lambda _: None) -> SparseQuery:
    """The published network with a trained delta added, head included."""
    network = published(report)
    network.load_state_dict(loading.tuned(network.state_dict(), delta))
    return network.eval().requires_grad_(False)


@torch.inference_mode()
def factors(network: SparseQuery, ids: list[int], matched_as_N: Tensor) -> Tensor:
    """[N]: the factors of one text."""
    ids_1L = torch.tensor([ids])
    own, joined = network(ids_1L, torch.ones_like(ids_1L, dtype=torch.bool), matched_as_N)
    return (own + joined)[0]


def flops(network: SparseQuery, length: int) -> int:
    """FLOPs of one text of `length` tokens, a multiply and an add counted as two."""
    config = network.text.config
    head = config.width * (1 + config.width + config.vocabulary)
    return bert.flops(config, length) + 2 * length * head
