"""When text in the image is read: the question may need it, and some token looks like it.

Enters: a question, the tokens of an image. Leaves: whether the question asks for text, whether the
text itself is the answer, and of each token how much it looks like text. `encode` asks the first
two, once. Where a question asks for text, `draft` does not answer an image that shows some without
reading it, `prune` keeps tokens that look like text, and `read_text` reads those. Where nothing can
read, there is no gate and nothing changes.

Text is many strokes: pixels at a strong edge that soon turns around. Their density in a token at
three scales of the image, for letters of all sizes, is what both gates go by. Untrained, the denser
of the two finer scales decides, and a question asks for text if it has a word for writing.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from skipqa.backbones import text_reader
from skipqa.config import ReadTextConfig
from skipqa.nn import text_gate as network
from skipqa.nn.text_gate import TextGateHeads
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.types import VisualTokens

_WRITING = re.compile(
    r"\b(?:says?|said|reads?|written|writing|words?|text|letters?|label(?:led|ed)?|titles?|"
    r"signs?|named?|names|brands?|logos?|numbers?|plates?|spell(?:s|ed)?|company|destination)\b"
)
_QUOTING = re.compile(r"\b(?:says?|written|reads?|words)\b")
EVEN = 0.5  # at which a probability decides
SIDE = 640  # pixels of the image, about, in which strokes are looked for
REDUCTIONS = (1, 2, 4)  # of it
STRONG_EDGE = 40.0  # grey levels between neighbours
STROKE = 3  # pixels from one side of a stroke to the other, at most
DENSE = 0.02  # of a token's pixels: where it looks as much like text as not
OPERATIONS = 16  # on each pixel, counted as FLOPs


class Asks(NamedTuple):
    for_text: bool  # it may need text in the image
    what_is_written: bool  # the text itself is the answer
    flops: int = 0


NO_TEXT = Asks(for_text=False, what_is_written=False)


class TextGate(Protocol):
    def asks(self, text: str, embedding: Tensor) -> Asks:
        """Of a question and its pooled embedding."""

    def likeness(self, image: Image.Image, grid: int) -> tuple[Tensor, int]:
        """[V] in [0, 1]: how much each token of a grid looks like text, and the FLOPs."""


class RuleGate:
    """Training-free."""

    def asks(self, text: str, embedding: Tensor) -> Asks:
        asked = text.lower()
        if _WRITING.search(asked) is None:
            return NO_TEXT
        return Asks(for_text=True, what_is_written=_QUOTING.search(asked) is not None)

    def likeness(self, image: Image.Image, grid: int) -> tuple[Tensor, int]:
        strokes_VS, flops = strokes(image, grid)
        density_V = strokes_VS[:, :2].amax(1)
        return density_V / (density_V + DENSE), flops


class TrainedGate:
    def __init__(self, heads: TextGateHeads, config: ReadTextConfig) -> None:
        self.heads, self.config = heads, config

    @torch.inference_mode()
    def asks(self, text: str, embedding: Tensor) -> Asks:
        needs, quotes = self.heads.asks_logits(embedding).sigmoid().tolist()
        for_text = needs >= self.config.min_question_prob
        flops = network.question_flops(self.heads.config)
        return Asks(for_text, for_text and quotes >= EVEN, flops)

    @torch.inference_mode()
    def likeness(self, image: Image.Image, grid: int) -> tuple[Tensor, int]:
        strokes_VS, flops = strokes(image, grid)
        flops += network.token_flops(self.heads.config, len(strokes_VS))
        return self.heads.shows_logits(strokes_VS).sigmoid(), flops


def build(parts: Parts) -> TextGate | None:
    """None where text is not read."""
    if not parts.config.read_text.enabled or not text_reader.installed():
        return None
    heads = parts.components.text_gate
    return RuleGate() if heads is None else TrainedGate(heads, parts.config.read_text)


def asked_likeness(
    gate: TextGate | None, state: State, tokens: VisualTokens
) -> tuple[Tensor | None, int]:
    """How much each token looks like text and the FLOPs; None where the question asks for none."""
    if gate is None or not state.question.asks_for_text or "image" not in state:
        return None, 0
    return gate.likeness(state.image, tokens.grid)


def shows_text(gate: TextGate | None, state: State, min_likeness: float) -> bool:
    """The question asks for text, and some token of the low-resolution view looks like it."""
    likeness_V, _ = asked_likeness(gate, state, state.low_res)
    return likeness_V is not None and float(likeness_V.max()) >= min_likeness


def strokes(image: Image.Image, grid: int) -> tuple[Tensor, int]:
    """[V, S]: how dense strokes are in each token at each scale, then in it and its neighbours; and
    what counting them costs."""
    coarsest = REDUCTIONS[-1]
    side = grid * coarsest * max(1, round(SIDE / grid / coarsest))
    grey = image.convert("L").resize((side, side), Image.Resampling.BILINEAR)
    maps = [density(np.asarray(grey.reduce(by), dtype=np.float32), grid) for by in REDUCTIONS]
    own_Sgg = torch.from_numpy(np.stack(maps))
    around_Sgg = F.avg_pool2d(own_Sgg[None], 3, stride=1, padding=1)[0]
    flops = sum(OPERATIONS * (side // by) ** 2 for by in REDUCTIONS)
    return torch.cat((own_Sgg, around_Sgg)).flatten(1).T, flops


def density(grey: NDArray[np.float32], grid: int) -> NDArray[np.float32]:
    """[grid, grid]: the fraction of pixels at which a strong edge turns around within the width of
    a stroke."""
    step = np.diff(grey, axis=1, append=grey[:, -1:])
    rises, falls = step > STRONG_EDGE, step < -STRONG_EDGE
    turns = np.zeros_like(rises)
    for apart in range(1, STROKE + 1):
        turns[:, :-apart] |= (rises[:, :-apart] & falls[:, apart:]) | (
            falls[:, :-apart] & rises[:, apart:]
        )
    side = len(grey) // grid
    cells: NDArray[np.float32] = turns.reshape(grid, side, grid, side).mean((1, 3), np.float32)
    return cells
