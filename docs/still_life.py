"""A still life of our own for the README: lemons on a table, ray-marched with NumPy.

The README shows a real trace, and no photo of anybody else's belongs in this repository.

    python docs/still_life.py docs/trace.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

QUESTION = "Where did the tree of this fruit originate?"
WIDTH, HEIGHT = 720, 480
# centre x, z, size, turn
LEMONS = ((-0.75, 0.1, 0.55, 0.5), (0.75, -0.3, 0.52, 2.3), (0.0, -1.5, 0.5, 0.1))
LIGHT = np.array([-0.45, 0.75, 0.5]) / np.linalg.norm([-0.45, 0.75, 0.5])

Array = NDArray[np.float64]


def lemon_distance(p: Array, x: float, z: float, size: float, turn: float) -> Array:
    """Signed distance, roughly: an ellipsoid on its side, drawn out at both ends."""
    q = (p - np.array([x, 0.95 * size, z])) / size
    axis = np.array([np.cos(turn), 0.12, np.sin(turn)])
    axis /= np.linalg.norm(axis)
    radius = np.linalg.norm(q, axis=-1) + 1e-9
    cosine = np.clip(q @ axis / radius, -1, 1)
    ellipsoid = 1 / np.sqrt((cosine / 1.3) ** 2 + 1 - cosine**2)
    tips = 0.24 * np.exp(-((np.arccos(np.abs(cosine)) / 0.22) ** 2))
    return 0.6 * size * (radius - ellipsoid - tips)


def distances(p: Array) -> Array:
    """[things, …]: the lemons, then the table y = 0."""
    return np.stack([*(lemon_distance(p, *lemon) for lemon in LEMONS), p[..., 1]])


def march(origin: Array, direction: Array, steps: int = 90) -> tuple[Array, NDArray[np.intp]]:
    travelled = np.zeros(direction.shape[:-1])
    for _ in range(steps):
        near = distances(origin + travelled[..., None] * direction).min(0)
        travelled = np.minimum(travelled + near, 30.0)
    return travelled, distances(origin + travelled[..., None] * direction).argmin(0)


def normal_at(p: Array) -> Array:
    eps = 1e-3
    rows = [
        distances(p + eps * axis).min(0) - distances(p - eps * axis).min(0) for axis in np.eye(3)
    ]
    gradient = np.stack(rows, axis=-1)
    return gradient / (np.linalg.norm(gradient, axis=-1, keepdims=True) + 1e-12)


def smooth_noise(shape: tuple[int, int], cell: int, rng: np.random.Generator) -> Array:
    small = rng.random((shape[0] // cell + 2, shape[1] // cell + 2))
    image = Image.fromarray((small * 255).astype(np.uint8))
    big = image.resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(big, dtype=np.float64) / 255


def render() -> Image.Image:
    rng = np.random.default_rng(2026)
    u, v = np.meshgrid(np.linspace(-1.5, 1.5, WIDTH), np.linspace(1.0, -1.0, HEIGHT), indexing="xy")
    eye = np.array([0.0, 1.75, 4.2])
    direction = np.stack([u * 0.62, v * 0.62 - 0.32, -np.full_like(u, 1.6)], axis=-1)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    travelled, thing = march(eye, direction)
    point = eye + travelled[..., None] * direction
    normal = normal_at(point)
    away = travelled >= 29
    pores = np.stack([smooth_noise(u.shape, 3, rng) - 0.5 for _ in range(3)], axis=-1)
    normal = np.where((thing < len(LEMONS))[..., None], normal + 0.35 * pores, normal)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)

    lit, _ = march(point + 0.02 * normal, np.broadcast_to(LIGHT, point.shape).copy(), 40)
    shade = np.clip(normal @ LIGHT, 0, 1) * np.where(lit > 12, 1.0, 0.25)
    sheen = np.clip(np.sum((LIGHT - direction) / 2 * normal, axis=-1), 0, 1) ** 60

    patchy = smooth_noise(u.shape, 24, rng)[..., None]
    peel = np.array([0.93, 0.78, 0.10]) * (0.88 + 0.2 * patchy)
    grain = 0.5 + 0.5 * np.sin(9 * point[..., 2] + 3 * np.sin(2 * point[..., 0]))
    grain = 0.85 + 0.12 * grain + 0.06 * smooth_noise(u.shape, 4, rng)
    wood = np.array([0.62, 0.42, 0.25]) * grain[..., None]

    fruit = (thing < len(LEMONS))[..., None]
    occlusion = np.clip(0.35 + 0.9 * point[..., 1:2], 0.35, 1.0)
    colour = np.where(fruit, peel, wood) * (
        0.4 * np.where(fruit, occlusion, 1.0) + 0.8 * shade[..., None]
    )
    colour += np.where(fruit, 0.3, 0.02) * sheen[..., None]
    wall = np.array([0.80, 0.78, 0.73]) * (0.75 + 0.2 * (v[..., None] + 1) / 2)
    fog = np.clip((travelled - 7) / 8, 0, 1)[..., None]
    colour = np.where(away[..., None], wall, colour * (1 - fog) + wall * fog)
    colour = np.clip(colour, 0, 1) ** (1 / 1.25)
    colour += rng.normal(0, 0.012, colour.shape)
    return Image.fromarray((np.clip(colour, 0, 1) * 255).astype(np.uint8))


def main() -> None:
    from skipqa.cli.console import prepare_process
    from skipqa.explain import draw
    from skipqa.pipeline import load

    prepare_process()
    target = Path(sys.argv[1])
    pipeline = load()
    picture = render()
    answer = pipeline.answer(picture, QUESTION)
    draw(picture, QUESTION, answer, pipeline.backbone.concepts, target)
    print(f"{QUESTION} {answer.text}")


if __name__ == "__main__":
    main()
