"""A flag in the wind, drawn with NumPy for the README's trace.

The README shows a real trace, and no photo of anybody else's belongs in this repository.

    python docs/flag_in_the_wind.py docs/trace.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

QUESTION = "What money do people use in this country?"
WIDTH, HEIGHT = 720, 480
FINER = 2  # drawn so many times as large, then averaged
LEFT, TOP, LENGTH, DROP = 0.25, 0.11, 0.52, 0.33  # of the picture's width: where the flag flies
GREEN, RED = np.array([0.0, 0.42, 0.31]), np.array([0.96, 0.16, 0.25])

Array = NDArray[np.float64]


def cloth(u: Array, v: Array) -> Array:
    """Bangladesh's colours at u along and v down the flag: ten by six parts, the disc four wide."""
    disc = (10 * (u - 0.45)) ** 2 + (6 * (v - 0.5)) ** 2 < 2**2
    return np.where(disc[..., None], RED, GREEN)


def smooth_noise(shape: tuple[int, int], cell: int, rng: np.random.Generator) -> Array:
    small = rng.random((shape[0] // cell + 2, shape[1] // cell + 2))
    image = Image.fromarray((small * 255).astype(np.uint8))
    big = image.resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(big, dtype=np.float64) / 255


def landscape(x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Sky with clouds, hills that fade with distance, a meadow."""
    shape = x.shape
    clouds = sum(smooth_noise(shape, cell, rng) / n for n, cell in ((1, 220), (2, 90), (3, 36)))
    clouds = np.clip((clouds - 0.95) * 1.4, 0, 1)[..., None]
    blue = np.array([0.42, 0.63, 0.88]) + (y[..., None] / 0.66) * np.array([0.34, 0.22, 0.06])
    colour = blue * (1 - clouds) + clouds * np.array([0.96, 0.96, 0.97])
    for near, (height, swing) in enumerate(((0.46, 5.0), (0.50, 8.0), (0.55, 3.0))):
        ridge = height + 0.025 * np.sin(swing * x + near) + 0.008 * np.sin(31 * x + 2 * near)
        green = np.array([0.36, 0.50, 0.44]) - near * np.array([0.08, 0.04, 0.12])
        rough = 0.86 + 0.28 * smooth_noise(shape, 5 + 4 * near, rng)[..., None]
        colour = np.where((y > ridge)[..., None], green * rough, colour)
    return colour


def render() -> Image.Image:
    rng = np.random.default_rng(2026)
    across, down = (np.arange(size * FINER) / (WIDTH * FINER) for size in (WIDTH, HEIGHT))
    x, y = np.meshgrid(across, down, indexing="xy")
    colour = landscape(x, y, rng)

    u = (x - LEFT) / LENGTH
    wave = 2 * np.pi * 1.25 * u + 5 * (y - TOP)
    v = (y - TOP - 0.035 * np.clip(u, 0, 1) * np.sin(wave) - 0.02 * u**2) / DROP
    flag = (u > 0) & (u < 0.985 + 0.015 * np.sin(9 * v)) & (v > 0) & (v < 1)
    folds = 1 - 0.26 * np.clip(u, 0, 1) ** 0.5 * np.cos(wave + 0.6)
    weave = 0.97 + 0.06 * smooth_noise(x.shape, 3, rng)
    lit = cloth(u, v) * (folds * weave)[..., None] + 0.04
    colour = np.where(flag[..., None], lit, colour)

    small = np.clip(colour, 0, 1).reshape(HEIGHT, FINER, WIDTH, FINER, 3).mean((1, 3))
    small += rng.normal(0, 0.01, small.shape)
    return Image.fromarray((np.clip(small, 0, 1) * 255).astype(np.uint8))


def main() -> None:
    from skipqa.cli.console import prepare_process
    from skipqa.explain import draw
    from skipqa.pipeline import load

    prepare_process()
    target = Path(sys.argv[1])
    pipeline = load()
    picture = render()
    answer = pipeline.answer(picture, QUESTION)
    draw(answer, pipeline.backbone.concepts, target)
    print(f"{QUESTION} {answer.text}")


if __name__ == "__main__":
    main()
