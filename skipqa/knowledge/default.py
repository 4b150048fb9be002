"""The default library, built by `skipqa setup`: one index for each corpus of `DEFAULT_SOURCES`.

Enters: the built-in corpora. Leaves: a folder with the index of each. A corpus that not every
machine can have (`OPTIONAL`) belongs to the library once its index is built, so that nothing but
`skipqa setup` ever asks whether it can be had. It does not know how progress is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from skipqa import assets
from skipqa.errors import UserError
from skipqa.knowledge.estimate import estimate
from skipqa.knowledge.index.build import build
from skipqa.knowledge.index.encode import Execution, Report, silent
from skipqa.knowledge.index.format import MANIFEST, VERSION, read_manifest
from skipqa.knowledge.sources import BUILT_IN
from skipqa.knowledge.sparse_encoder import LexicalEncoder

DEFAULT = "default"  # names the library wherever an index is named
DEFAULT_SOURCES = ("wordnet", "factbook", "conceptnet", "gcide")  # of BUILT_IN, in this order
OPTIONAL = ("gcide",)  # of these: where it cannot be had, the others are the default library
POOLED = "wordnet-factbook-1"  # the default index of earlier releases: all corpora in one


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What to know of an index before it is built, and after."""

    passages: int
    bytes: int  # on disk
    licence: str  # of its corpus


def default_indexes() -> dict[str, Path]:
    """Where the index of each default corpus lies, or will; an optional one only if built."""
    return {
        name: _folder(name)
        for name in DEFAULT_SOURCES
        if name not in OPTIONAL or _is_built(_folder(name))
    }


def unbuilt() -> tuple[str, ...]:
    """Default corpora without an index, the optional ones included."""
    return tuple(name for name in DEFAULT_SOURCES if not _is_built(_folder(name)))


def built_default() -> dict[str, Path]:
    """The same as `default_indexes`, all of them built."""
    indexes = default_indexes()
    if missing := [name for name, folder in indexes.items() if not _is_built(folder)]:
        names = " and ".join(missing)
        raise UserError(f"the default index of {names} is not built yet: run `skipqa setup` once")
    return indexes


def fetch_sources(names: Iterable[str], report: assets.Report) -> dict[str, str]:
    """Download what these corpora are read from. An optional one may fail: its name, and why."""
    failed = {}
    for name in names:
        try:
            BUILT_IN[name].fetch(report)
        except UserError as error:
            if name not in OPTIONAL:
                raise
            failed[name] = str(error)
    return failed


def build_default(names: Iterable[str], progress: Report = silent) -> None:
    """Build the indexes of these corpora, one after another. `progress` is called with the current
    step, how many passages or steps are done, and their total."""
    encoder = LexicalEncoder.default()
    for name in names:
        execution = Execution(_named(name, progress))
        build(_folder(name), [BUILT_IN[name].open()], encoder, execution=execution)


def expected_index(name: str) -> IndexSummary:
    expected = estimate([name])
    return IndexSummary(expected.passages, expected.index_bytes, BUILT_IN[name].licence)


def built_index(name: str) -> IndexSummary:
    folder = _folder(name)
    passages = read_manifest(folder)["corpus"]["passages"]
    return IndexSummary(passages, size_on_disk(folder), BUILT_IN[name].licence)


def superseded() -> Path | None:
    """The default index of an earlier release, which nothing reads any more."""
    folder = _indexes() / POOLED
    return folder if folder.is_dir() else None


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
