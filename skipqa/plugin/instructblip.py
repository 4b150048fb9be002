"""InstructBLIP: the query tokens of its Q-Former, pruned after the language projection.

With a decoder-only language model (Vicuna) tokens that stay keep their positions. With an
encoder-decoder (Flan-T5) the encoder's prompt shrinks and with it what every decoder step attends
to; T5 has no positions, only distances between the tokens it gets, so there the gaps close.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skipqa.plugin.family import Family


class InstructBlip(Family):
    def __init__(self, model: Any) -> None:
        super().__init__(model, merger=model)
        if not model.config.use_decoder_only_language_model:
            language_model = model.language_model
            self.reader, self.attends = language_model.get_encoder(), language_model.get_decoder()

    def image_sizes(self, image_outputs: Any) -> Sequence[int] | None:
        return None  # one image per prompt, as one run of placeholders
