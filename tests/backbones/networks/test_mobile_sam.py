"""MobileSAM's prompts and masks against transformers' SAM, and its FLOPs against the counter.

`tests/golden/test_mobile_sam.py` holds the whole network to the published one, at full size.
"""

from __future__ import annotations

import pytest
import test_tiny_vit as encoder
import torch
from torch import Tensor, nn

from skipqa.backbones.networks import mobile_sam
from skipqa.backbones.networks.mobile_sam import MobileSam, MobileSamConfig
from skipqa.costs.flops import count_flops

SMALL = MobileSamConfig(encoder.SMALL, heads=4, ffn=40)
PIXELS, WIDTH, SIDE = SMALL.encoder.image, SMALL.width, 6


def published_names(reference: nn.Module) -> dict[str, Tensor]:
    """The weights of transformers' SAM under the names of the first checkpoints."""
    everywhere = {
        "shared_image_embedding.": "prompt_encoder.pe_layer.",
        "positional_embedding": "positional_encoding_gaussian_matrix",
        ".point_embed.": ".point_embeddings.",
        "upscale_conv1": "output_upscaling.0",
        "upscale_layer_norm": "output_upscaling.1",
        "upscale_conv2": "output_upscaling.3",
        "layer_norm": "norm",
    }
    of_heads = {"layers.0": "layers.1", "proj_in": "layers.0", "proj_out": "layers.2"}
    state = {}
    for name, value in reference.state_dict().items():
        is_head = "mlps" in name or "iou_prediction" in name
        for old, new in (of_heads if is_head else everywhere).items():
            name = name.replace(old, new)
        state[name] = value
    return state


@pytest.fixture(scope="module")
def published() -> tuple[MobileSam, nn.Module]:
    """The network and transformers' with the same random weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shapes = {"image_size": PIXELS, "patch_size": 16}
    config = transformers.SamConfig(
        vision_config=shapes
        | {"hidden_size": 8, "num_hidden_layers": 0, "num_pos_feats": WIDTH // 2}
        | {"num_attention_heads": 1, "output_channels": WIDTH},
        prompt_encoder_config=shapes | {"hidden_size": WIDTH, "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": WIDTH, "num_attention_heads": SMALL.heads}
        | {"mlp_dim": SMALL.ffn, "iou_head_hidden_dim": WIDTH},
    )
    reference = transformers.SamModel(config).eval().requires_grad_(False)
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    vision = {f"image_encoder.{k}": v for k, v in encoder.published(SMALL.encoder).items()}
    network = MobileSam(SMALL).eval().requires_grad_(False)
    state = published_names(reference) | vision
    network.load_state_dict(mobile_sam.from_published_names(state, SMALL))
    return network, reference


def test_equals_transformers(published: tuple[MobileSam, nn.Module]) -> None:
    network, reference = published
    features, points = torch.randn(1, WIDTH, SIDE, SIDE), torch.rand(5, 2)
    expected = reference(
        image_embeddings=features, input_points=(points * PIXELS - 0.5)[None, :, None]
    )
    found = network(features, points)
    assert expected.pred_masks.std() > 0.01
    torch.testing.assert_close(found.logits, expected.pred_masks[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.quality, expected.iou_scores[0], rtol=1e-4, atol=1e-5)


def test_points_are_independent(published: tuple[MobileSam, nn.Module]) -> None:
    network, _ = published
    features, points = torch.randn(1, WIDTH, SIDE, SIDE), torch.rand(4, 2)
    together = network(features, points)
    for number, point in enumerate(points):
        alone = network(features, point[None])
        torch.testing.assert_close(alone.logits[0], together.logits[number])
        torch.testing.assert_close(alone.quality[0], together.quality[number])


@pytest.mark.parametrize("config", [SMALL, MobileSamConfig()], ids=["small", "published"])
@pytest.mark.parametrize("points", [1, 2, 8])
def test_flops_are_what_torch_counts(config: MobileSamConfig, points: int) -> None:
    side = config.encoder.image
    with torch.device("meta"):
        network = MobileSam(config)
        counted = count_flops(
            lambda: network(network.encode(torch.empty(1, 3, side, side)), torch.empty(points, 2))
        )
    assert mobile_sam.flops(config, points) == counted
