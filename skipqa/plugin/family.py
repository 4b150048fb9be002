"""What the plugin has to know of a model family, and what most families have in common.

Enters: a model of transformers. Leaves: the modules to listen to, and how this family marks images
in a prompt. It does not choose tokens. Nothing of transformers is imported: whoever has a model has
the library.

The `merger` is the module that fills image features into the prompt's embeddings, by its method
`merging`; the `reader` is the language model that reads the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skipqa.plugin.selection import ShorterPrompt

# Ids that no question contains, by where a model's configuration has them.
OF_TEXT = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
OF_IMAGES = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


class Family:
    merging = "get_placeholder_mask"
    # Markers that the processor writes around every image: so many tokens before and behind it.
    markers = (0, 0)

    def __init__(self, model: Any, merger: Any = None, reader: nn.Module | None = None) -> None:
        self.model = model
        self.merger = model.model if merger is None else merger
        self.reader = self.merger.language_model if reader is None else reader
        # The decoder of an encoder-decoder, which attends to what the reader made of the prompt
        self.attends: nn.Module | None = None

    def visual_masks(self, merged: Any, call: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """[B, N] each: placeholders of images, and of anything that is not text.

        `merged` is what `merging` returned, `call` its arguments.
        """
        masks = merged if isinstance(merged, tuple) else (merged,)
        images, *others = (mask[..., 0] for mask in masks)
        not_text = images
        for other in others:
            not_text = not_text | other
        return images, not_text

    def question_mask(self, input_ids: Tensor | None, not_text: Tensor) -> Tensor:
        """[B, N]: text without special tokens and without the markers around images."""
        near = not_text.clone()
        before, behind = self.markers
        for shift in range(1, before + 1):
            near[:, :-shift] |= not_text[:, shift:]
        for shift in range(1, behind + 1):
            near[:, shift:] |= not_text[:, :-shift]
        if input_ids is None:
            return ~near
        special = torch.tensor(sorted(self._special_ids()), device=input_ids.device)
        return ~near & ~torch.isin(input_ids, special).to(near.device)

    def image_sizes(self, image_outputs: Any) -> Sequence[int] | None:
        """Visual tokens of each image, from what `get_image_features` returned."""
        features = getattr(image_outputs, "pooler_output", None)
        return None if features is None else [len(one) for one in features]

    def without_content(self, visual_VD: Tensor) -> Tensor | None:
        """[V] bool: visual tokens that show nothing and stay only where no other is left."""
        return None

    def next_positions(self, call: Mapping[str, Any], start: int) -> Tensor | None:
        """Positions of tokens that follow the prompt, if the merger would get them wrong.

        `start` is how many tokens came before, those included that were removed.
        """
        return None

    def text_positions(self, positions: Tensor) -> Tensor | None:
        """[B or 1, T]: how many tokens came before each, read off the reader's positions."""
        return positions

    def shorten_more(self, call: dict[str, Any], shorter: ShorterPrompt) -> None:
        """Whatever else of the reader's arguments has a column per token of the prompt."""

    def _special_ids(self) -> set[int]:
        config = self.model.config
        named = [(config, name) for name in OF_IMAGES]
        named += [
            (one, name)
            for one in (config.text_config, self.model.generation_config)
            for name in OF_TEXT
        ]
        found: set[int] = set()
        for one, name in named:
            ids = getattr(one, name, None)
            found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
        return found
