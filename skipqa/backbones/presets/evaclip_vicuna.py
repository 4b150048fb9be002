"""The backbone of `submission-7b`: EVA-CLIP-G/14 at 336 px and Vicuna-7B v1.5.

Enters and leaves: as `clip_vicuna.py`, with the weights of this preset. No projector between the
two is published: without a trained one the decoder reads in words what the regions show.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from skipqa.backbones.networks import clip, llama
from skipqa.backbones.presets.clip_vicuna import ClipVicuna
from skipqa.backbones.weights import hub


class EvaClipVicuna(ClipVicuna):
    preset = "submission-7b"
    repositories = (
        hub.Repository("lmsys/vicuna-7b-v1.5", 13.5),
        # Trained at 224 px: positions are interpolated for the paper's 336.
        hub.Repository("timm/eva_giant_patch14_plus_clip_224.merged2b_s11b_b114k", 2.7),
    )

    @cached_property
    def published_decoder(self) -> Any:
        return hub.read_config(self.folders[0])

    @cached_property
    def clip_config(self) -> clip.ClipConfig:
        with hub.reading(self.repositories[1], self.folders[1]):
            return clip.open_clip_config(self._clip_tensors.shapes)

    @cached_property
    def _clip_tensors(self) -> hub.Tensors:
        return hub.Tensors(self.folders[1], self.device, self.dtype)

    def read_clip(self) -> clip.Clip:
        state = clip.from_open_clip_names(self._clip_tensors, self.clip_config)
        return hub.fill(lambda: clip.Clip(self.clip_config), state)

    def read_decoder(self) -> llama.Llama:
        tensors = hub.Tensors(self.folders[0], self.device, self.dtype)
        state = llama.from_hub_names(tensors, self.decoder_config)
        return hub.fill(lambda: llama.Llama(self.decoder_config), state)
