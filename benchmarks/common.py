"""What the benchmarks on photos have in common: reading the photos, encoding image and question.

None of the photos are in this repository. An entities folder holds `photos.zip` and `photos.jsonl`
with rows {"image", "domain", "label", "split"}; in the domain "imagenet" a label is
`n07920052_espresso`. Designs are chosen on the photos of that domain in the split "train".
"""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from skipqa.backbones.presets.pocket import Pocket
from skipqa.image import open_image
from skipqa.language import content_words
from skipqa.types import Question, VisualTokens


class Photo(NamedTuple):
    name: str
    synset: str


def imagenet_photos(folder: Path, seed: int) -> list[Photo]:
    """All training photos, shuffled by the seed."""
    rows = map(json.loads, (folder / "photos.jsonl").open())
    photos = [
        Photo(row["image"], row["label"].partition("_")[0])
        for row in rows
        if row["domain"] == "imagenet" and row["split"] == "train"
    ]
    random.Random(seed).shuffle(photos)
    return photos


@contextmanager
def opened(*archives: Path) -> Iterator[dict[str, Callable[[], Image.Image]]]:
    """A function per photo in the zips, by name, that reads it."""

    def reader(archive: zipfile.ZipFile, name: str) -> Callable[[], Image.Image]:
        return lambda: open_image(io.BytesIO(archive.read(name)))

    with ExitStack() as stack:
        zips = [stack.enter_context(zipfile.ZipFile(path)) for path in archives]
        yield {name: reader(archive, name) for archive in zips for name in archive.namelist()}


def look(pocket: Pocket, image: Image.Image) -> VisualTokens:
    """The tokens of the high-resolution image."""
    low_res, _ = pocket.encode_low_res(image)
    return pocket.encode_high_res(image, low_res)[0]


def ask(pocket: Pocket, text: str) -> Question:
    encoded = pocket.encode_texts([text])
    return Question(text, encoded.embeddings[0], content_words(text), encoded.states[0])
