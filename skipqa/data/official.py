"""Finding an official file in a folder, and saying how to get it when it is not there."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from skipqa.errors import UserError, choices


def official_file(data_set: str, folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: fetch it with `skipqa data fetch {data_set} "
            f"--to {folder}` or set the folder that holds it"
        )
    return path


def require_split(data_set: str, split: str, splits: Collection[str]) -> None:
    if split not in splits:
        raise UserError(f"{data_set} has no split {split!r}: use {choices(split, splits)}")
