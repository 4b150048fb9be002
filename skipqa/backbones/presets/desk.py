"""The desk backbone: the pocket's encoders with Qwen2.5-Coder-1.5B-Instruct as the decoder.

Enters and leaves: as `pocket.py`. It differs in the decoder's weights, and in that a prompt is the
user's turn of a chat. On a CPU an answer takes seconds, so how many is said before the first one.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from skipqa.backbones.backbone import Completion, Decoding
from skipqa.backbones.networks import llama
from skipqa.backbones.presets.pocket import Pocket, PromptForm
from skipqa.backbones.weights import gguf_decoder
from skipqa.backbones.weights.gguf_decoder import PublishedDecoder

CHAT = (
    "<|im_start|>system\nYou answer questions about a photo.<|im_end|>\n"
    "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
)
STEPS = 4  # passes after the prompt's, where candidates were read together with it


class Desk(Pocket):
    published: ClassVar[PublishedDecoder] = gguf_decoder.QWEN
    form: ClassVar[PromptForm] = PromptForm(CHAT, before_answer="")  # the reply to the user's turn
    _said_how_long = False

    @cached_property
    def decoder(self) -> llama.Llama:
        self.report(f"reading {self.published.asset.name}")
        return super().decoder

    def generate_embedded(
        self, prompt_1TD: Tensor, decoding: Decoding, past: llama.KVCache | None = None
    ) -> Completion:
        if not self._said_how_long and prompt_1TD.device.type == "cpu":
            self._said_how_long = True
            steps = STEPS if decoding.candidates else decoding.max_new_tokens // 2
            seconds = expected_seconds(self.decoder, prompt_1TD, steps)
            self.report(f"answering, in about {max(1, round(seconds))} s")
        return super().generate_embedded(prompt_1TD, decoding, past)


@torch.inference_mode()
def expected_seconds(decoder: llama.Llama, prompt_1TD: Tensor, steps: int) -> float:
    """Of reading the prompt and then `steps` tokens, from the time that the first layer takes."""
    layer = decoder.layers[0]
    assert isinstance(layer, llama.Layer)

    def of_layer(x_1TD: Tensor) -> float:
        positions = torch.arange(x_1TD.shape[1])
        start = time.perf_counter()
        layer.without_cache(x_1TD, llama.rotation(decoder.config, positions, x_1TD.dtype))
        return time.perf_counter() - start

    return decoder.config.layers * (of_layer(prompt_1TD) + steps * of_layer(prompt_1TD[:, :1]))
