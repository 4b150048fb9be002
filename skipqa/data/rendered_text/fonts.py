"""Typefaces to write with: Pillow's own, and a few free ones out of package archives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from PIL import ImageFont

from skipqa import assets
from skipqa.assets import Asset, Report

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Face = Callable[[int], Font]  # of a size in pixels

ARCHIVES = (
    Asset(
        "font-caladea",
        "font-caladea",
        "0.0.2",
        "eab5b77f1da830226524f419d16d4bc4cb5b68d2de0f47ef83760a8b202e94bc",
        1,
        "Apache-2.0",
        {
            "font_caladea/files/Caladea-Bold.ttf": (
                "74eda4fc5ffba0d8dc4aa76d41499f5ab76168d9ed6141c6417064c6244db9b6"
            ),
            "font_caladea/files/Caladea-Regular.ttf": (
                "d2f6cad33f191e65b68bd74e6d4f7708080a41b32db635866109df3090265d91"
            ),
        },
    ),
    Asset(
        "font-fredoka-one",
        "font-fredoka-one",
        "0.0.4",
        "f177fdb46dcb7be565a68ece3a7b353a92cf038554a037f57b6303f6a5478ff8",
        1,
        "SIL OFL 1.1",
        {
            "font_fredoka_one/files/FredokaOne-Regular.ttf": (
                "a2fbb1416510efe20330272bc182d667efe1507db5faecde893084fb15953973"
            )
        },
    ),
    Asset(
        "font-manrope",
        "font-manrope",
        "0.0.2",
        "2ca9192f3602a3459323dfd7447c8c5ffa0795696c62fac465ef7c9b0521d292",
        1,
        "SIL OFL 1.1",
        {
            "font_manrope/files/Manrope-ExtraBold.ttf": (
                "24454f098114668e002b020d640fa905d34d1f130356996fb6cb253bdd2377b4"
            ),
            "font_manrope/files/Manrope-Medium.ttf": (
                "0b773002799663fa57a5b80c7256e9f3e9b8b62d7d55f07640db345089af9a8b"
            ),
        },
    ),
)


def fetch(report: Report = lambda _: None) -> dict[str, Face]:
    """Every face by name, in a fixed order; what is not there yet is downloaded."""
    faces: dict[str, Face] = {"Aileron": _own}
    for archive in ARCHIVES:
        folder = assets.fetch(archive, report)
        for file in archive.files:
            path = folder / Path(file).name
            faces[path.stem] = partial(ImageFont.truetype, str(path))
    return faces


def own() -> Mapping[str, Face]:
    """Pillow's alone: nothing is downloaded."""
    return {"Aileron": _own}


def _own(size: int) -> Font:
    return ImageFont.load_default(size)
