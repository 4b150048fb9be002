"""What is kept out of training is known by sight; what is trained on, and no gallery, is not."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from pathlib import Path

from PIL import Image

from skipqa.components import bundled
from skipqa.knowledge import photos
from skipqa.training.stage1.gallery import GALLERY, describe_gallery


def write_gallery(folder: Path, *rows: tuple[str, str, bool]) -> None:
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for name, colour, _ in rows:
            drawn = BytesIO()
            Image.new("RGB", (64, 64), colour).save(drawn, "webp")
            archive.writestr(f"gallery/{name}.webp", drawn.getvalue())
    listed = [
        {"name": name, "kind": "country", "image": f"gallery/{name}.webp", "unseen": unseen}
        for name, _, unseen in rows
    ]
    (folder / GALLERY).write_text("".join(json.dumps(row) + "\n" for row in listed))


def test_only_what_is_unseen_is_described(tmp_path: Path) -> None:
    folder = bundled("pocket")
    assert folder is not None
    vision = folder / "vision.safetensors"
    describe_gallery(tmp_path, vision, tmp_path, "pocket")
    assert photos.read(tmp_path) is None  # no gallery
    write_gallery(tmp_path, ("Redland", "red", False))
    describe_gallery(tmp_path, vision, tmp_path, "pocket")
    assert photos.read(tmp_path) is None
    write_gallery(tmp_path, ("Redland", "red", False), ("Blueland", "blue", True))
    describe_gallery(tmp_path, vision, tmp_path, "pocket")
    found = photos.read(tmp_path)
    assert found is not None
    assert (found.names, found.kinds) == (("blueland",), ("flag",))
    write_gallery(tmp_path, ("Greenland", "green", True))
    describe_gallery(tmp_path, vision, tmp_path, "pocket")
    again = photos.read(tmp_path)
    assert again is not None
    assert again.names == found.names  # a finished run leaves its files
