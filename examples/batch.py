"""Many photos at once: `answer_batch` takes images and questions and gives an answer to each.

For questions in files, with several processes or machines, there is `skipqa batch`.

python examples/batch.py
"""

from __future__ import annotations

from collections import Counter

from PIL import Image, ImageDraw

import skipqa

FLAGS = {  # stripes from top to bottom or from left to right
    "Germany": ("down", ["black", "red", "#ffce00"]),
    "Italy": ("across", ["#008c45", "white", "#cd212a"]),
}
QUESTIONS = ("What is the capital of this country?", "What color is this?")


def draw_flag(direction: str, colours: list[str]) -> Image.Image:
    """Three stripes before a blue sky."""
    image = Image.new("RGB", (640, 480), "#8cb4e6")
    draw = ImageDraw.Draw(image)
    for i, colour in enumerate(colours):
        if direction == "down":
            draw.rectangle((80, 70 + 107 * i, 560, 70 + 107 * (i + 1)), colour)
        else:
            draw.rectangle((80 + 160 * i, 70, 80 + 160 * (i + 1), 390), colour)
    return image


def main() -> None:
    pairs = [(country, question) for country in FLAGS for question in QUESTIONS]
    images = [draw_flag(*FLAGS[country]) for country, _ in pairs]
    pipeline = skipqa.load()
    answers = pipeline.answer_batch(images, [question for _, question in pairs])
    for (country, question), answer in zip(pairs, answers, strict=True):
        print(f"{country:8} {question:38} {answer.text:10} {answer.trace.flops / 1e9:5.1f} GFLOPs")
    routes = Counter(answer.route for answer in answers)
    print(f"{routes['draft']} answered by the drafter, {routes['full']} with passages")


if __name__ == "__main__":
    main()
