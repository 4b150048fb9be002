"""The backbone of `ablation-13b`: LLaVA-1.6-13B, that is CLIP ViT-L/14, a projector, Vicuna-13B.

Enters and leaves: as `clip_vicuna.py`, with the weights of this preset. LLaVA has its own,
slightly fine-tuned copy of CLIP's vision encoder, which its projector expects. The text encoder
and the projections into the joint space, which LLaVA does not have, are CLIP's. Of LLaVA's image
tiles only the overview of the whole image is used: SKIP needs fewer tokens, not more.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from skipqa.backbones.networks import clip, llama, vit
from skipqa.backbones.presets.clip_vicuna import ClipVicuna
from skipqa.backbones.weights import hub
from skipqa.nn.projector import Projector, ProjectorConfig

# Prefixes of names in the published checkpoint
LANGUAGE, VISION, PROJECTOR = "language_model.", "vision_tower.", "multi_modal_projector."


class Llava(ClipVicuna):
    preset = "ablation-13b"
    repositories = (
        hub.Repository("llava-hf/llava-v1.6-vicuna-13b-hf", 26.7),
        hub.Repository("openai/clip-vit-large-patch14-336", 1.7, leave="*.h5"),
    )

    @property
    def published_decoder(self) -> Any:
        return self._published.text_config

    @cached_property
    def _published(self) -> Any:
        return hub.read_config(self.folders[0])

    @cached_property
    def clip_config(self) -> clip.ClipConfig:
        image, text = self._published.vision_config, hub.read_config(self.folders[1])
        vision = vit.VitConfig(
            image=image.image_size,
            patch=image.patch_size,
            width=image.hidden_size,
            layers=image.num_hidden_layers,
            heads=image.num_attention_heads,
            ffn=image.intermediate_size,
            norm_first=True,
            quick_gelu=image.hidden_act == "quick_gelu",
            norm_eps=image.layer_norm_eps,
        )
        joint, text = text.projection_dim, text.text_config
        words = clip.TextConfig(
            vocabulary=text.vocab_size,
            positions=text.max_position_embeddings,
            width=text.hidden_size,
            layers=text.num_hidden_layers,
            heads=text.num_attention_heads,
            ffn=text.intermediate_size,
            quick_gelu=text.hidden_act == "quick_gelu",
            norm_eps=text.layer_norm_eps,
        )
        return clip.ClipConfig(vision, words, joint, bias=False)

    @cached_property
    def _tensors(self) -> hub.Tensors:
        return hub.Tensors(self.folders[0], self.device, self.dtype, _one_name)

    def read_clip(self) -> clip.Clip:
        published = hub.Tensors(self.folders[1], self.device, self.dtype)
        tuned = self._tensors.under(VISION, "vision_model.")
        both: Mapping[str, Tensor] = ChainMap(tuned, published)  # type: ignore[arg-type]
        state = clip.from_hub_names(both, self.clip_config)
        return hub.fill(lambda: clip.Clip(self.clip_config), state)

    def read_decoder(self) -> llama.Llama:
        state = llama.from_hub_names(self._tensors.under(LANGUAGE), self.decoder_config)
        return hub.fill(lambda: llama.Llama(self.decoder_config), state)

    def read_projector(self) -> Projector:
        """Two linear layers with a GELU between them, as in `Projector`, under other names."""
        config = ProjectorConfig(self.clip_config.vision.width, self.decoder_config.width)
        state = {
            f"{new}.{part}": self._tensors[f"{PROJECTOR}{old}.{part}"]
            for new, old in (("up", "linear_1"), ("out", "linear_2"))
            for part in ("weight", "bias")
        }
        return hub.fill(lambda: Projector(config), state)


def _one_name(name: str) -> str:
    """Newer transformers leave out a part of the vision encoder's names that the published file
    has."""
    return name.replace(f"{VISION}vision_model.", VISION)
