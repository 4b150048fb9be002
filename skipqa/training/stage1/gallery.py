"""Things that are kept out of training, known by sight all the same.

Enters: Pocket-KB with its gallery, the exported vision encoder. Leaves: `photos.safetensors` next
to the components, prototypes of the unseen entities from one labelled photo each
(`skipqa/knowledge/photos.py`). Nothing is trained with them.
"""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

from skipqa.backbones.presets.pocket import FineTuned, Pocket
from skipqa.config import preset
from skipqa.files import read_jsonl
from skipqa.image import open_image
from skipqa.knowledge import photos
from skipqa.knowledge.photos import LabelledPhoto

GALLERY = "gallery.jsonl"


def describe_gallery(pocket_kb: Path, vision: Path, folder: Path, preset_name: str) -> None:
    """Once; a folder without a gallery has nothing to describe."""
    listed = pocket_kb / GALLERY
    if not listed.is_file() or (folder / photos.FILE).exists():
        return
    unseen = [row for row in read_jsonl(listed) if row["unseen"]]
    if not unseen:
        return
    encoder = Pocket(preset(preset_name).encode, learned=FineTuned(vision=vision)).vision
    with zipfile.ZipFile(pocket_kb / "photos.zip") as archive:
        labelled = (
            LabelledPhoto(row["name"], open_image(BytesIO(archive.read(row["image"]))), row["kind"])
            for row in unseen
        )
        photos.write(folder, photos.describe(labelled, encoder))
