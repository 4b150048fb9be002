"""An ablation: SKIP against the same pipeline with a pruner of your own.

python examples/ablation.py
"""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw

import skipqa
from skipqa.stages.prune import Prune
from skipqa.types import Question, VisualTokens

QUESTION = "What is the capital of this country?"


class Chance:
    """Scores tokens at random: the baseline that any pruner has to beat."""

    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[torch.Tensor, int]:
        """A score per token, at least 0, and the FLOPs of scoring."""
        return torch.rand(len(tokens), generator=torch.Generator().manual_seed(0)), 0

    def why(self, question: Question) -> str:
        return "chance"


def japan() -> Image.Image:
    image = Image.new("RGB", (640, 480), "#8cb4e6")
    draw = ImageDraw.Draw(image)
    draw.rectangle((80, 70, 560, 390), "white")
    draw.ellipse((224, 134, 416, 326), "#bc002d")
    return image


def germany() -> Image.Image:
    image = Image.new("RGB", (640, 480), "#8cb4e6")
    draw = ImageDraw.Draw(image)
    for i, colour in enumerate(("black", "red", "#ffce00")):
        draw.rectangle((80, 70 + 107 * i, 560, 70 + 107 * (i + 1)), colour)
    return image


def main() -> None:
    skip = skipqa.load()
    chance = skip.with_stages(prune=lambda parts: Prune(Chance()))
    for name, pipeline in (("QVS", skip), ("chance", chance)):
        for image in (japan(), germany()):
            answer = pipeline.answer(image, QUESTION, fast_path=False)
            read = answer.evidence[0].title if answer.evidence else "nothing"
            print(f"{name:7} V' {answer.trace['prune'].kept:3}  {answer.text:10} from {read}")


if __name__ == "__main__":
    main()
