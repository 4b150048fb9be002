"""Labelled photos as people have them: a folder of photos with telling names, or a list.

Enters: a folder, or a .jsonl with the zip or folder of its images. Leaves: photos with names. What
cannot be read is reported with its name; a hidden file is nobody's photo.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from skipqa.errors import UserError
from skipqa.files import check_rows, is_text, read_jsonl
from skipqa.image import open_image
from skipqa.knowledge.photos import LabelledPhoto
from skipqa.tasks.photos import Photos

SUFFIXES = frozenset(
    {
        *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"),
        *(".heic", ".heif"),  # of phones: cannot be opened, which is said
    }
)
FIELDS = {"name": str, "image": str}
_NUMBER = re.compile(r"[ _-]*\(?\d+\)?$")  # of several photos of one thing: "Rex 2", "Rex (2)"
Progress = Callable[[str, int, int | None], None]


def labelled_photos(
    source: Path, images: Path | None, progress: Progress
) -> Iterator[LabelledPhoto]:
    """Opened one after the other, as many as there are."""
    if source.is_dir():
        if images is not None:
            raise UserError("--images is for a .jsonl: a folder has its photos in it")
        listed = [
            (name_of(path), path.relative_to(source).as_posix(), "")
            for path in sorted(source.rglob("*"))
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
        ]
        photos = Photos(source)
    elif source.suffix.lower() in SUFFIXES:
        raise UserError(
            f"{source} is one photo: give the folder of all, or a .jsonl that lists them"
        )
    else:
        rows = check_rows(str(source), read_jsonl(source), FIELDS)
        listed = [(row["name"], row["image"], str(row.get("kind") or "")) for row in rows]
        photos = Photos(images or source.parent)
    if not listed:
        raise UserError(f"{source} has no photos")
    for done, (name, image, kind) in enumerate(listed, 1):
        if not is_text(name):
            raise UserError(f"the name of the photo {image!a} is not UTF-8: rename it")
        if image not in photos:
            raise UserError(f"{photos.folder} has no photo {image!r}")
        yield LabelledPhoto(name, open_image(photos.open(image)), kind)
        progress("looking at photos", done, len(listed))


def name_of(path: Path) -> str:
    """What a photo's file says that it shows."""
    words = re.sub(r"[_\s]+", " ", path.stem).strip()
    return _NUMBER.sub("", words).strip() or words
