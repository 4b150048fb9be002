"""An ablation: SKIP against the same pipeline with a pruner of your own.

python examples/ablation.py
"""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw
from skipqa.state import State

import skipqa
from skipqa.stages.prune import Prune
from skipqa.types import Question, VisualTokens

QUESTION = "What is the capital of this country?"
LEFT, TOP, RIGHT, BOTTOM = 0.5, 0.25, 0.875, 0.625  # the flag, as fractions of the image


class Chance:
    """Scores tokens at random: the baseline that any pruner has to beat."""

    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[torch.Tensor, int]:
        return torch.rand(len(tokens), generator=torch.Generator().manual_seed(0)), 0

    def why(self, question: Question) -> str:
        return "chance"


def draw_scene() -> Image.Image:
    """A small flag of Japan over a meadow."""
    image = Image.new("RGB", (640, 640), "#8cb4e6")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 460, 640, 640), "#3f7a3a")
    draw.rectangle((640 * LEFT, 640 * TOP, 640 * RIGHT, 640 * BOTTOM), "white")
    draw.ellipse((368, 208, 512, 352), "#bc002d")
    return image


def fraction_on_flag(state: State) -> float:
    """Of the kept tokens, those whose centre lies on the flag."""
    grid = state.tokens.grid
    y, x = (state.kept.positions // grid + 0.5) / grid, (state.kept.positions % grid + 0.5) / grid
    return ((x > LEFT) & (x < RIGHT) & (y > TOP) & (y < BOTTOM)).float().mean().item()


def main() -> None:
    skip = skipqa.load()
    image = draw_scene()
    chance = skip.with_stages(prune=lambda parts: Prune(Chance()))
    for name, pipeline in (("QVS", skip), ("chance", chance)):
        answer = pipeline.answer(image, QUESTION, fast_path=False)
        pruned = pipeline.run(State(image, QUESTION), stop="prune")
        kept, on_flag = answer.trace["prune"].kept, fraction_on_flag(pruned)
        print(f"{name:7} {answer.text:12} V' {kept}, {on_flag:.0%} of them on the flag")


if __name__ == "__main__":
    main()
