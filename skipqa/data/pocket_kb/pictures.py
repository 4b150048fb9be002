"""Pictures out of the data folder's zips, and flags that can be told apart."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import combinations
from pathlib import Path
from types import TracebackType

import numpy as np
from PIL import Image

from skipqa.data.pocket_kb.countries import Country
from skipqa.errors import UserError
from skipqa.image import open_image

SAME_FLAG = 10.0  # mean difference of grey levels below which people confuse two flags


class Archive:
    """A zip of photos, read by name."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError:
            raise UserError(f"{path} does not exist") from None
        except (zipfile.BadZipFile, OSError):
            raise UserError(f"{path} is no zip of photos") from None
        self._path = path
        self._names = frozenset(self._zip.namelist())

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def bytes(self, name: str) -> bytes:
        try:
            return self._zip.read(name)
        except KeyError:
            raise UserError(f"{self._path} holds no photo {name!r}") from None
        except zipfile.BadZipFile as error:
            raise UserError(f"{self._path} is damaged: {error}") from None


@dataclass(frozen=True, slots=True)
class Sources:
    """Every photo that pictures are made of, by the name that rows give it."""

    entities: Archive
    coco: Archive
    flags: Path

    def bytes(self, name: str) -> bytes:
        """Of a photo in a zip: "entities/…" or "coco/…"."""
        kind, _, photo = name.partition("/")
        return {"entities": self.entities, "coco": self.coco}[kind].bytes(photo)

    def image(self, name: str) -> Image.Image:
        """Also of "flags/…"."""
        kind, _, photo = name.partition("/")
        if kind == "flags":
            return open_image(self.flags / photo)
        return open_image(BytesIO(self.bytes(name)))

    def aspect(self, name: str) -> float:
        """Width by height, read without decoding."""
        kind, _, photo = name.partition("/")
        file = self.flags / photo if kind == "flags" else BytesIO(self.bytes(name))
        with Image.open(file) as picture:
            return picture.width / picture.height


def distinct_flags(countries: Sequence[Country], folder: Path) -> list[Country]:
    """The countries that have a flag which no other country's can be taken for."""
    found = [country for country in countries if (folder / f"{country.iso}.png").is_file()]
    small = {
        country.iso: np.asarray(
            open_image(folder / f"{country.iso}.png").resize((24, 16)), dtype=np.float32
        )
        for country in found
    }
    confused = {
        iso
        for pair in combinations(small, 2)
        if float(np.abs(small[pair[0]] - small[pair[1]]).mean()) < SAME_FLAG
        for iso in pair
    }
    return [country for country in found if country.iso not in confused]
