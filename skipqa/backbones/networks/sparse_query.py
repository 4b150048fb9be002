"""The pocket SPLADE's side of the question: MiniLM with a head that weighs terms.

Enters: word pieces. Leaves: a factor on every term's idf. Passages need no network here: an
index stores their words' impacts, and whatever a table of expansions could add to a passage, the
question can ask for instead (the inner product does not tell the two apart).
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
        """Factors of the text's own terms and of those that join in, [B, N] each."""
        states, terms = self.text(ids_BL, mask_BL), matched_as_N[ids_BL]
        found: tuple[Tensor, Tensor] = self.head(
            states, terms, mask_BL, self.text.words.weight, among
        )
        return found


def published(report: Report = lambda _: None, config: BertConfig = MINILM_L6) -> SparseQuery:
    """The published text encoder under a head that changes nothing."""
    return SparseQuery(loading.load(lambda: Bert(config), convert.text(report)))


def trained(delta: Path, report: Report = lambda _: None) -> SparseQuery:
    """With what training added."""
    network = published(report)
    network.load_state_dict(loading.tuned(network.state_dict(), delta))
    return network.eval().requires_grad_(False)


@torch.inference_mode()
def factors(network: SparseQuery, ids: list[int], matched_as_N: Tensor) -> Tensor:
    """Of one text, [N]."""
    ids_1L = torch.tensor([ids])
    own, joined = network(ids_1L, torch.ones_like(ids_1L, dtype=torch.bool), matched_as_N)
    return (own + joined)[0]


def flops(network: SparseQuery, length: int) -> int:
    """FLOPs of one text of `length` tokens, a multiply and an add counted as two."""
    config = network.text.config
    head = config.width * (1 + config.width + config.vocabulary)
    return bert.flops(config, length) + 2 * length * head
