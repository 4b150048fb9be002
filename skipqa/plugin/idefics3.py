"""Idefics3 and SmolVLM.

A large image is cut into tiles, each with placeholders of its own between markers. To the model a
tile is an image, and so it is here: the same fraction of every tile stays. Frames of a video enter
as images too and are pruned like them. Positions: those of the unpruned prompt, as for LLaVA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from skipqa.plugin.family import Family


class SmolVlm(Family):
    markers = (2, 1)  # <fake_token_around_image><row_1_col_1> ... <fake_token_around_image>

    def __init__(self, model: Any) -> None:
        super().__init__(model, reader=model.model.text_model)

    def image_sizes(self, image_outputs: Any) -> Sequence[int] | None:
        # Features come row by row of the batch, each row's tiles in one piece.
        tile = self.merger.image_seq_len
        rows = [len(one) for one in image_outputs.pooler_output]
        if any(length % tile for length in rows):
            return None
        return [tile] * (sum(rows) // tile)


class Idefics3(SmolVlm):
    merging = "inputs_merger"

    def visual_masks(self, merged: Any, call: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        # This method fills the features in itself and returns no mask.
        input_ids, embeddings = call["input_ids"], call["inputs_embeds"]
        image_id = self.merger.config.image_token_id
        if input_ids is not None:
            images = (input_ids == image_id).to(embeddings.device)
        else:
            placeholder = self.merger.get_input_embeddings().weight[image_id]
            images = (embeddings == placeholder.to(embeddings)).all(-1)
        return images, images
