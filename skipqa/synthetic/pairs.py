"""What questions are written about: an entity that a photo shows, and a passage about it.

Enters: photos, with a file that names pairs or a pipeline that finds them. Leaves: the pairs of a
photo. It asks no endpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from PIL import Image

from skipqa.errors import UserError
from skipqa.files import check_rows, read_jsonl
from skipqa.image import FORMATS
from skipqa.knowledge import Library
from skipqa.language import all_forms, content_words, words_of
from skipqa.state import State
from skipqa.types import Passage

if TYPE_CHECKING:  # given pairs need no networks
    from skipqa.pipeline import Pipeline

QUESTION = "What is this?"  # asked of a photo whose questions are yet to be written
SUFFIXES = frozenset({".jpg", ".tif", *(f".{name.lower()}" for name in FORMATS)})


@dataclass(frozen=True, slots=True)
class Pair:
    entity: str
    passage: Passage


class PairFinder(Protocol):
    def __call__(self, name: str, image: Image.Image) -> Sequence[Pair]:
        """The pairs of the photo of this name, the best first."""
        ...


class GivenPairs:
    """From JSON Lines {image, entity, passage}, where `passage` is the id of one in the library; or
    {…, passage, text} with a passage that is in none."""

    def __init__(self, path: Path, library: Library | None) -> None:
        rows = check_rows(
            str(path), read_jsonl(path), dict.fromkeys(("image", "entity", "passage"), str)
        )
        found: dict[str, list[Pair]] = {}
        for number, row in enumerate(rows):
            passage = _passage(row, library, f"{path} row {number}")
            found.setdefault(row["image"], []).append(Pair(row["entity"], passage))
        self.pairs: Mapping[str, Sequence[Pair]] = found

    def __call__(self, name: str, image: Image.Image) -> Sequence[Pair]:
        return self.pairs.get(name, ())


class RetrievedPairs:
    """What the pipeline sees, and the passages that its regions find. A region's most probable
    concept names the entity; a passage that does not mention it is about something else."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._running = threading.Lock()  # its networks use every core as it is

    def __call__(self, name: str, image: Image.Image) -> Sequence[Pair]:
        with self._running:
            state = self.pipeline.run(State(image, QUESTION), stop="retrieve")
        concepts = self.pipeline.backbone.concepts
        found = [
            Pair(concepts[concept].name, one.passage)
            for one in state.retrieved.passages
            for concept, _ in state.regions[one.region].concepts[:1]
        ]
        return [pair for pair in found if mentions(pair.passage, pair.entity)]


def mentions(passage: Passage, entity: str) -> bool:
    """Whether it has all words of the name, in the singular or the plural."""
    said = all_forms(words_of(f"{passage.title} {passage.text}"))
    words = content_words(entity) or tuple(words_of(entity))
    return all(not said.isdisjoint(all_forms([word])) for word in words)


def photos_in(folder: Path) -> list[str]:
    """The names of all photos in a folder and below it, in order."""
    if not folder.is_dir():
        raise UserError(f"no folder of photos at {folder}")
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    names = sorted(path.relative_to(folder).as_posix() for path in paths if path.is_file())
    if not names:
        raise UserError(f"{folder} has no photos")
    return names


def _passage(row: Mapping[str, str], library: Library | None, where: str) -> Passage:
    if isinstance(text := row.get("text"), str):
        return Passage(row["passage"], row.get("title", row["entity"]), text, "given")
    number = None if library is None else library.row_of(row["passage"])
    if library is None or number is None:
        raise UserError(f"{where}: no index has the passage {row['passage']!r}; give its `text`")
    return library.passage(number)
