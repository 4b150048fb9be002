"""The default library, built by `skipqa setup`: one index for each corpus of `DEFAULT_SOURCES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from skipqa import assets
from skipqa.errors import UserError
from skipqa.knowledge.index.build import build
from skipqa.knowledge.index.encode import Execution, Report, silent
from skipqa.knowledge.index.format import MANIFEST, VERSION
from skipqa.knowledge.sources import BUILT_IN
from skipqa.knowledge.sparse_encoder import LexicalEncoder

DEFAULT = "default"  # names the library wherever an index is named
DEFAULT_SOURCES = ("wordnet", "factbook")  # of BUILT_IN, in this order
# Says of a corpus that not every machine can have whether this one can
AVAILABLE: Mapping[str, Callable[[], bool]] = {}
POOLED = "wordnet-factbook-1"  # the default index of earlier releases: all corpora in one


def default_indexes() -> dict[str, Path]:
    """Where the index of each default corpus lies, or will: all but those `left_out`."""
    absent = left_out()
    return {name: _folder(name) for name in DEFAULT_SOURCES if name not in absent}


def left_out() -> tuple[str, ...]:
    """Default corpora that are neither built nor available here."""
    return tuple(
        name
        for name in DEFAULT_SOURCES
        if name in AVAILABLE and not _is_built(_folder(name)) and not AVAILABLE[name]()
    )


def unbuilt() -> tuple[str, ...]:
    """Default corpora that `build_default` would index now."""
    return tuple(name for name, folder in default_indexes().items() if not _is_built(folder))


def built_default() -> dict[str, Path]:
    """The same as `default_indexes`, all of them built."""
    if missing := unbuilt():
        names = " and ".join(missing)
        raise UserError(f"the default index of {names} is not built yet: run `skipqa setup` once")
    return default_indexes()


def build_default(progress: Report = silent) -> None:
    """Build what is not there yet, one index after another. `progress` is called with the current
    step, how many passages or steps are done, and their total."""
    encoder = LexicalEncoder.default()
    for name in unbuilt():
        execution = Execution(_named(name, progress))
        build(_folder(name), [BUILT_IN[name].open()], encoder, execution=execution)


def superseded() -> Path | None:
    """The default index of an earlier release, which nothing reads any more."""
    folder = _indexes() / POOLED
    return folder if folder.is_dir() else None


def _named(name: str, progress: Report) -> Report:
    """With the corpus before each step, and about how many passages it has."""
    expected = BUILT_IN[name].passages
    return lambda step, done, total: progress(
        f"{name}: {step}", done, max(done, expected) if total is None else total
    )


def _is_built(folder: Path) -> bool:
    """An interrupted build leaves a folder without a manifest."""
    return (folder / MANIFEST).is_file()


def _folder(name: str) -> Path:
    return _indexes() / f"{name}-{VERSION}"


def _indexes() -> Path:
    return assets.home() / "indexes"
