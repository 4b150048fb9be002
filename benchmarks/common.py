"""What the benchmarks on photos share: photos from folders that the user names, and questions.

None of those photos are in this repository. An entities folder holds `photos.zip` and
`photos.jsonl` with rows {"image", "domain", "label", "split"}; in the domain "imagenet" a label
is `n07920052_espresso`, and such photos of the split "train" are what designs are chosen on.
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
    """All of them, in an order that depends on the seed alone."""
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
    """Every photo in the zips by its name, read when it is called."""

    def reader(archive: zipfile.ZipFile, name: str) -> Callable[[], Image.Image]:
        return lambda: open_image(io.BytesIO(archive.read(name)))

    with ExitStack() as stack:
        zips = [stack.enter_context(zipfile.ZipFile(path)) for path in archives]
        yield {name: reader(archive, name) for archive in zips for name in archive.namelist()}


def look(pocket: Pocket, image: Image.Image) -> VisualTokens:
    """As closely as its scales allow."""
    low_res, _ = pocket.encode_low_res(image)
    return pocket.encode_high_res(image, low_res)[0]


def ask(pocket: Pocket, text: str) -> Question:
    encoded = pocket.encode_texts([text])
    return Question(text, encoded.embeddings[0], content_words(text), encoded.states[0])
