"""CLIP in plain torch: images, their patches and texts in one embedding space.

Enters: pixels, or token ids. Leaves: for an image the features that a decoder reads, one unit
vector per patch and one for the whole; for a text one unit vector. One class serves CLIP ViT-L/14
and EVA-CLIP-G/14, with converters for the names of either checkpoint. It knows no classes and no
question.

Shapes: B batch, S pixels per side, V patches, D width of the vision encoder, L text tokens, J
width of the joint space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.backbones.networks import vit
from skipqa.backbones.networks.token_merging import MergedTokens


@dataclass(frozen=True, slots=True)
class TextConfig:
    vocabulary: int
    positions: int
    width: int
    layers: int
    heads: int
    ffn: int
    quick_gelu: bool
    norm_eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class ClipConfig:
    vision: vit.VitConfig
    text: TextConfig
    joint: int
    bias: bool  # of the image's projection into the joint space: EVA has one, CLIP has not


@dataclass(frozen=True, slots=True)
class EncodedImage:
    features: Tensor  # [B, V, D]
    patches: Tensor  # [B, V, J], unit length
    whole: Tensor  # [B, J], unit length


class Clip(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.config = config
        vision, text = config.vision, config.text
        self.vision = vit.Vit(vision)
        self.vision_norm = nn.LayerNorm(vision.width, eps=vision.norm_eps)
        self.vision_to_joint = nn.Linear(vision.width, config.joint, bias=config.bias)
        self.words = nn.Embedding(text.vocabulary, text.width)
        self.places = nn.Parameter(torch.zeros(text.positions, text.width))
        self.text_layers = nn.ModuleList(vit.Layer(text) for _ in range(text.layers))
        self.text_norm = nn.LayerNorm(text.width, eps=text.norm_eps)
        self.text_to_joint = nn.Linear(text.width, config.joint, bias=False)
        self.log_scale = nn.Parameter(torch.zeros(()))  # of a cosine, before a softmax

    def encode_image(self, pixels_B3SS: Tensor) -> EncodedImage:
        """Features are those of the penultimate layer, as in LLaVA and BLIP-2: the last layer
        serves the class token. For the patch vectors each patch attends only to itself in the last
        layer, because attention would mix in the content of the whole image (MaskCLIP, 2022)."""
        x_BTD = self.vision.embed(pixels_B3SS)
        for layer in self.vision.layers[:-1]:
            x_BTD = layer(x_BTD)
        last, features_BVD = self.vision.layers[-1], x_BTD[:, 1:]
        return EncodedImage(
            features=features_BVD,
            patches=self._image_in_joint(last(features_BVD, alone=True)),
            whole=self._image_in_joint(last(x_BTD)[:, 0]),
        )

    def encode_image_merged(self, pixels_B3SS: Tensor, per_layer: int) -> EncodedImage:
        """As `encode_image`, with `per_layer` tokens merged in each layer but the last (ToMe). A
        patch has what its token has, so that there are still V on the grid."""
        tokens = MergedTokens.apart(self.vision.embed(pixels_B3SS))
        *layers, last = cast(list[vit.Layer], list(self.vision.layers))
        for layer in layers:
            tokens = layer.merged(tokens, per_layer)
        x_BTD = tokens.x_BTD
        return EncodedImage(
            features=tokens.on_grid(x_BTD),
            patches=tokens.on_grid(self._image_in_joint(last(x_BTD, alone=True))),
            whole=self._image_in_joint(last.merged(tokens).x_BTD[:, 0]),
        )

    def encode_text(self, ids_BL: Tensor, ends_B: Tensor) -> Tensor:
        """[B, J], unit length: the state at each text's end; attention is causal, so padding after
        it has no effect."""
        x_BLD = self.words(ids_BL) + self.places[: ids_BL.shape[1]]
        for layer in self.text_layers:
            x_BLD = layer(x_BLD, causal=True)
        x_BD = x_BLD[torch.arange(len(ids_BL), device=ids_BL.device), ends_B]
        return F.normalize(self.text_to_joint(self.text_norm(x_BD)), dim=-1)

    def _image_in_joint(self, x: Tensor) -> Tensor:
        return F.normalize(self.vision_to_joint(self.vision_norm(x)), dim=-1)


def flops(config: ClipConfig, size: int) -> int:
    """FLOPs of one image of `size` pixels per side, a multiply and an add counted as two."""
    c = replace(config.vision, image=size)
    alone = c.tokens * c.width * (4 * c.width + 2 * c.ffn)
    return vit.flops(c) + 2 * (alone + (c.tokens + 1) * c.width * config.joint)


def merged_flops(config: ClipConfig, size: int, per_layer: int) -> int:
    """The same with tokens merged in each layer but the last. The class token goes along where each
    token is by itself."""
    c = replace(config.vision, image=size)
    spent, tokens = vit.embedding_flops(c), c.tokens + 1
    for _ in range(c.layers - 1):
        in_layer, tokens = vit.merged_layer_flops(c, tokens, per_layer)
        spent += in_layer
    spent += vit.layer_flops(c, tokens, tokens)
    alone = tokens * c.width * (4 * c.width + 2 * c.ffn)
    return spent + 2 * (alone + (tokens + 1) * c.width * config.joint)


def from_hub_names(state: Mapping[str, Tensor], config: ClipConfig) -> dict[str, Tensor]:
    """The state of `Clip` from a Hugging Face CLIP checkpoint: renamed, q|k|v joined."""
    vision = "vision_model."
    named = {
        "vision.patches.weight": state[f"{vision}embeddings.patch_embedding.weight"],
        "vision.class_token": state[f"{vision}embeddings.class_embedding"],
        "vision.places": state[f"{vision}embeddings.position_embedding.weight"],
        "vision_to_joint.weight": state["visual_projection.weight"],
        "words.weight": state["text_model.embeddings.token_embedding.weight"],
        "places": state["text_model.embeddings.position_embedding.weight"],
        "text_to_joint.weight": state["text_projection.weight"],
        "log_scale": state["logit_scale"],
    }
    named |= _take(state, "vision.first_norm", f"{vision}pre_layrnorm")  # spelt like this
    named |= _take(state, "vision_norm", f"{vision}post_layernorm")
    named |= _take(state, "text_norm", "text_model.final_layer_norm")
    for encoder, old, new in (
        (config.vision, "vision_model", "vision.layers"),
        (config.text, "text_model", "text_layers"),
    ):
        for i in range(encoder.layers):
            layer = f"{old}.encoder.layers.{i}."
            attention = (f"{layer}self_attn.{x}_proj" for x in "qkv")
            named |= _take(state, f"{new}.{i}.qkv", *attention)
            named |= _take(state, f"{new}.{i}.out", f"{layer}self_attn.out_proj")
            named |= _take(state, f"{new}.{i}.attention_norm", f"{layer}layer_norm1")
            named |= _take(state, f"{new}.{i}.ffn_norm", f"{layer}layer_norm2")
            named |= _take(state, f"{new}.{i}.up", f"{layer}mlp.fc1")
            named |= _take(state, f"{new}.{i}.down", f"{layer}mlp.fc2")
    return named


def from_open_clip_names(state: Mapping[str, Tensor], config: ClipConfig) -> dict[str, Tensor]:
    """The state of `Clip` from an OpenCLIP checkpoint with EVA's vision encoder."""
    trunk = "visual.trunk."
    named = {
        "vision.class_token": state[f"{trunk}cls_token"].flatten(),
        "vision.places": state[f"{trunk}pos_embed"][0],
        "words.weight": state["text.token_embedding.weight"],
        "places": state["text.positional_embedding"],
        "text_to_joint.weight": state["text.text_projection"].T.contiguous(),
        "log_scale": state["logit_scale"],
    }
    named |= _take(state, "vision.patches", f"{trunk}patch_embed.proj")
    named |= _take(state, "vision_norm", f"{trunk}norm")
    named |= _take(state, "vision_to_joint", f"{trunk}head")
    named |= _take(state, "text_norm", "text.ln_final")
    for i in range(config.vision.layers):
        new, old = f"vision.layers.{i}.", f"{trunk}blocks.{i}."
        q_bias, v_bias = state[f"{old}attn.q_bias"], state[f"{old}attn.v_bias"]
        named[f"{new}qkv.weight"] = state[f"{old}attn.qkv.weight"]
        named[f"{new}qkv.bias"] = torch.cat((q_bias, torch.zeros_like(q_bias), v_bias))
        named |= _take(state, f"{new}out", f"{old}attn.proj")
        named |= _take(state, f"{new}attention_norm", f"{old}norm1")
        named |= _take(state, f"{new}ffn_norm", f"{old}norm2")
        named |= _take(state, f"{new}up", f"{old}mlp.fc1")
        named |= _take(state, f"{new}down", f"{old}mlp.fc2")
    for i in range(config.text.layers):
        new, old = f"text_layers.{i}.", f"text.transformer.resblocks.{i}."
        for part in ("weight", "bias"):
            named[f"{new}qkv.{part}"] = state[f"{old}attn.in_proj_{part}"]
        named |= _take(state, f"{new}out", f"{old}attn.out_proj")
        named |= _take(state, f"{new}attention_norm", f"{old}ln_1")
        named |= _take(state, f"{new}ffn_norm", f"{old}ln_2")
        named |= _take(state, f"{new}up", f"{old}mlp.c_fc")
        named |= _take(state, f"{new}down", f"{old}mlp.c_proj")
    return named


def open_clip_config(shapes: Mapping[str, tuple[int, ...]]) -> ClipConfig:
    """The config of an EVA-CLIP from the shapes of its tensors: its own file only names a model.

    The shapes do not tell the number of heads; in every published EVA-CLIP-G a head is 88 wide,
    in every CLIP text encoder 64.
    """
    trunk = "visual.trunk."
    width, _, patch, _ = shapes[f"{trunk}patch_embed.proj.weight"]
    grid = round((shapes[f"{trunk}pos_embed"][1] - 1) ** 0.5)
    vision = vit.VitConfig(
        image=grid * patch,
        patch=patch,
        width=width,
        layers=_count(shapes, f"{trunk}blocks."),
        heads=width // 88,
        ffn=shapes[f"{trunk}blocks.0.mlp.fc1.weight"][0],
        norm_eps=vit.EVA_CLIP_G_336.norm_eps,
    )
    vocabulary, text_width = shapes["text.token_embedding.weight"]
    text = TextConfig(
        vocabulary=vocabulary,
        positions=shapes["text.positional_embedding"][0],
        width=text_width,
        layers=_count(shapes, "text.transformer.resblocks."),
        heads=text_width // 64,
        ffn=shapes["text.transformer.resblocks.0.mlp.c_fc.weight"][0],
        quick_gelu=False,
    )
    return ClipConfig(vision, text, joint=shapes[f"{trunk}head.weight"][0], bias=True)


def _count(names: Iterable[str], prefix: str) -> int:
    numbers = {name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)}
    return len(numbers)


def _take(state: Mapping[str, Tensor], new: str, *old: str) -> dict[str, Tensor]:
    """The weight and bias of one layer, made by joining those of the `old` layers."""
    return {
        f"{new}.{part}": torch.cat([state[f"{name}.{part}"] for name in old])
        for part in ("weight", "bias")
    }
