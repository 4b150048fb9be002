"""Photos by name, in a folder or a zip. It opens files and decodes nothing."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from skipqa.errors import UserError
from skipqa.tasks.example import Example


class Photos:
    def __init__(self, path: Path) -> None:
        self.folder = path
        self.zip: zipfile.ZipFile | None = None
        if path.is_file():
            try:
                self.zip = zipfile.ZipFile(path)
            except zipfile.BadZipFile:
                raise UserError(f"{path} is neither a folder of photos nor a zip") from None
        elif not path.is_dir():
            raise UserError(f"no photos at {path}")
        self.names = frozenset(self.zip.namelist() if self.zip else ())

    def __contains__(self, name: str) -> bool:
        return name in self.names if self.zip else (self.folder / name).is_file()

    def open(self, name: str) -> Path | BytesIO:
        if self.zip is None:
            return self.folder / name
        try:
            return BytesIO(self.zip.read(name))
        except zipfile.BadZipFile as error:
            raise UserError(f"damaged in the zip: {error}") from None

    def __reduce__(self) -> tuple[type[Photos], tuple[Path]]:
        return Photos, (self.folder,)  # another process opens the zip for itself


def with_photos(examples: Sequence[Example], photos: Photos) -> tuple[list[Example], list[str]]:
    """The examples whose photo is there, and one line about each of the others."""
    present = [example for example in examples if example.image in photos]
    absent = [example for example in examples if example.image not in photos]
    bad = [f"{example.place}: no photo {example.image!r}" for example in absent]
    if bad and not present:
        raise UserError(f"{photos.folder} has no photo of any question; {bad[0]}")
    return present, bad
