"""Qwen2.5-VL and Qwen3-VL.

Positions: M-RoPE's (time, height, width) are computed by the model for the whole grid, before
anything is removed, and a token that stays keeps its own. Videos are left unpruned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from skipqa.plugin.family import Family
from skipqa.plugin.selection import ShorterPrompt


class QwenVl(Family):
    def next_positions(self, call: Mapping[str, Any], start: int) -> Tensor | None:
        # Where none are given, the model counts from the length of the cache, which is too short.
        delta_B1, mask = self.merger.rope_deltas, call.get("attention_mask")
        if delta_B1 is None:
            return None
        tokens = call["input_ids"] if call.get("input_ids") is not None else call["inputs_embeds"]
        num_rows, num_new = tokens.shape[:2]
        if mask is not None:
            text = (mask.long().cumsum(-1) - 1)[:, -num_new:]
        else:
            text = torch.arange(start, start + num_new, device=tokens.device).expand(num_rows, -1)
        delta_B1 = delta_B1.repeat_interleave(num_rows // len(delta_B1), 0)
        return (text + delta_B1.to(text.device)).expand(3, -1, -1)

    def text_positions(self, positions: Tensor) -> Tensor | None:
        if positions.ndim == 2:
            return positions
        if len(positions) == 1:  # a conversation that goes on: one number for all three axes
            return positions[0] - self.merger.rope_deltas.to(positions.device)
        return positions[0] if len(positions) == 4 else None  # (text, time, height, width)


class Qwen3Vl(QwenVl):
    def shorten_more(self, call: dict[str, Any], shorter: ShorterPrompt) -> None:
        # DeepStack adds features of the image encoder's layers to the visual tokens of the first
        # decoder layers: one row per visual token, in the prompt's order.
        visual_BN, layers = call.get("visual_pos_masks"), call.get("deepstack_visual_embeds")
        if visual_BN is None or layers is None:
            return
        place_BN = visual_BN.flatten().cumsum(0).view_as(visual_BN) - 1
        visual_BL = shorter.of(visual_BN) & ~shorter.added.to(visual_BN.device)
        places = shorter.of(place_BN)[visual_BL]
        call["visual_pos_masks"] = visual_BL
        call["deepstack_visual_embeds"] = [layer[places.to(layer.device)] for layer in layers]
