"""An encoder of fewer layers is the published one, stopped early."""

from __future__ import annotations

import pytest
import torch

from skipqa.backbones.networks import bert
from skipqa.backbones.text_encoder import PAIR_LAYERS, MiniLm

TEXTS = ("where does it come from?", ("where does it come from?", "pugs are from china"))


def test_the_first_layers_are_the_published_ones() -> None:
    whole, short = MiniLm().network, MiniLm(layers=PAIR_LAYERS).network
    assert (len(whole.layers), len(short.layers)) == (bert.MINILM_L6.layers, PAIR_LAYERS)
    ids = torch.tensor([[101, 2073, 2515, 2009, 102]])
    x = whole.norm(whole.words(ids) + whole.places.weight[:5] + whole.segment)
    for layer in whole.layers[:PAIR_LAYERS]:
        x = layer(x, None)
    assert torch.equal(short(ids), x)


@pytest.mark.parametrize("layers", [1, PAIR_LAYERS, bert.MINILM_L6.layers])
def test_fewer_layers_cost_less(layers: int) -> None:
    texts = MiniLm(layers=layers)
    found = texts.encode(TEXTS)
    lengths = [len(states) for states in found.states]
    assert found.flops == sum(bert.flops(texts.network.config, length) for length in lengths)
    assert found.flops * bert.MINILM_L6.layers == MiniLm().encode(TEXTS).flops * layers
    assert found.embeddings.norm(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
