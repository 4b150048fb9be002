"""LLaVA-1.5 and LLaVA-NeXT (1.6).

Positions: a token that stays has the position it had in the unpruned prompt, so the decoder sees
visual tokens as far from each other and from the question as in training, and where in the raster a
token was can still be read off its position.
"""

from __future__ import annotations

from torch import Tensor

from skipqa.plugin.family import Family


class Llava(Family):
    pass


class LlavaNext(Family):
    def without_content(self, visual_VD: Tensor) -> Tensor:
        # One learned vector ends every row of patches: all of them have one score, and would win
        # or lose together.
        newline_D = self.merger.image_newline.to(visual_VD)
        return (visual_VD == newline_D).all(-1)
