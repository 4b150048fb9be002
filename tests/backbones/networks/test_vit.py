"""The plain ViT against transformers' CLIP, and its counted FLOPs against torch's counter."""

from __future__ import annotations

import pytest
import torch

from skipqa.backbones.networks import vit
from skipqa.costs.flops import count_flops


def test_equals_clip():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    reference = transformers.CLIPVisionModel(
        transformers.CLIPVisionConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            image_size=28, patch_size=7,
        )
    ).eval()  # fmt: skip
    config = vit.VitConfig(28, 7, 32, 2, 4, 48, norm_first=True, quick_gelu=True)
    network = vit.Vit(config)
    state = {k.removeprefix("vision_model."): v for k, v in reference.state_dict().items()}
    network.patches.weight.data = state["embeddings.patch_embedding.weight"]
    network.class_token.data = state["embeddings.class_embedding"]
    network.places.data = state["embeddings.position_embedding.weight"]
    network.first_norm.weight.data = state["pre_layrnorm.weight"]
    network.first_norm.bias.data = state["pre_layrnorm.bias"]
    for i, layer in enumerate(network.layers):
        at = f"encoder.layers.{i}."
        for kind in ("weight", "bias"):
            qkv = [state[f"{at}self_attn.{x}_proj.{kind}"] for x in "qkv"]
            getattr(layer.qkv, kind).data = torch.cat(qkv)
            getattr(layer.out, kind).data = state[f"{at}self_attn.out_proj.{kind}"]
            getattr(layer.up, kind).data = state[f"{at}mlp.fc1.{kind}"]
            getattr(layer.down, kind).data = state[f"{at}mlp.fc2.{kind}"]
            getattr(layer.attention_norm, kind).data = state[f"{at}layer_norm1.{kind}"]
            getattr(layer.ffn_norm, kind).data = state[f"{at}layer_norm2.{kind}"]
    pixels = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        expected = reference(pixels).last_hidden_state[:, 1:]
        torch.testing.assert_close(network(pixels), expected, rtol=1e-4, atol=1e-5)


def test_counted_flops():
    config = vit.VitConfig(28, 7, 32, 2, 4, 48)
    model = vit.Vit(config).eval()
    assert count_flops(lambda: model(torch.randn(1, 3, 28, 28))) == vit.flops(config)


def test_the_submission_has_576_tokens():
    assert vit.EVA_CLIP_G_336.tokens == 576
