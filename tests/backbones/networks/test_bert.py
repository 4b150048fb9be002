"""The text encoder against transformers' BERT: tiny random weights, whole tensors, float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig as HubConfig
from transformers import BertModel

from skipqa.backbones.networks.bert import Bert, BertConfig, flops, from_hub_names, mean_pool

CONFIG = BertConfig(vocabulary=83, width=48, layers=3, heads=4, ffn=96, positions=40)
Networks = tuple[Bert, BertModel]


@pytest.fixture(scope="module")
def networks() -> Networks:
    torch.manual_seed(0)
    reference = BertModel(
        HubConfig(
            vocab_size=CONFIG.vocabulary,
            hidden_size=CONFIG.width,
            num_hidden_layers=CONFIG.layers,
            num_attention_heads=CONFIG.heads,
            intermediate_size=CONFIG.ffn,
            max_position_embeddings=CONFIG.positions,
            layer_norm_eps=CONFIG.norm_eps,
        ),
        add_pooling_layer=False,
    ).eval()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    network = Bert(CONFIG).eval()
    network.load_state_dict(from_hub_names(reference.state_dict(), CONFIG))
    return network.requires_grad_(False), reference.requires_grad_(False)


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    """Texts of 11, 23 and 1 tokens, padded."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(23)[None] < torch.tensor([11, 23, 1])[:, None]
    return torch.randint(CONFIG.vocabulary, (3, 23), generator=generator) * mask, mask


def test_states_equal_transformers(networks: Networks, batch: tuple[Tensor, Tensor]) -> None:
    (network, reference), (ids, mask) = networks, batch
    expected = reference(ids, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(network(ids, mask)[mask], expected[mask], rtol=1e-4, atol=1e-4)


def test_padding_changes_nothing(networks: Networks, batch: tuple[Tensor, Tensor]) -> None:
    (network, _), (ids, mask) = networks, batch
    padded = network(ids, mask)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = network(ids[row : row + 1, :length])
        torch.testing.assert_close(padded[row, :length], alone[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mean_pool(padded, mask)[row], mean_pool(alone)[0])


def test_packed_texts_are_as_alone(networks: Networks, batch: tuple[Tensor, Tensor]) -> None:
    (network, _), (ids, mask) = networks, batch
    texts = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    for text, found in zip(texts, network.packed(texts), strict=True):
        torch.testing.assert_close(found, network(torch.tensor([text]))[0], rtol=1e-4, atol=1e-4)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network.packed(texts)
    assert counter.get_total_flops() == sum(flops(CONFIG, len(text)) for text in texts)


def test_checkpoints_with_a_prefix_are_read(networks: Networks) -> None:
    network, reference = networks
    prefixed = {f"bert.{name}": value for name, value in reference.state_dict().items()}
    for name, value in from_hub_names(prefixed, CONFIG).items():
        assert torch.equal(value, network.state_dict()[name])


def test_mean_is_over_real_tokens_and_of_unit_length(batch: tuple[Tensor, Tensor]) -> None:
    mask = batch[1]
    states = torch.randn(3, 23, 5, generator=torch.Generator().manual_seed(2))
    expected = torch.stack(
        [F.normalize(s[m].mean(0), dim=0) for s, m in zip(states, mask, strict=True)]
    )
    torch.testing.assert_close(mean_pool(states, mask), expected)


@pytest.mark.parametrize("length", [1, 23])
def test_flops_are_what_torch_counts(networks: Networks, length: int) -> None:
    ids = torch.ones(1, length, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        networks[0](ids)
    assert flops(CONFIG, length) == counter.get_total_flops()
