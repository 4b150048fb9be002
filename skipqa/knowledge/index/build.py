"""Everything that changes an index: build, add, delete, compact.

Each operation writes new files next to the old ones and ends by replacing the manifest. Only one
process may write at a time; readers are never disturbed.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from skipqa import __version__
from skipqa.errors import UserError
from skipqa.knowledge.encoder_reader import EncoderReader
from skipqa.knowledge.index.encode import (
    Embed,
    Execution,
    Job,
    Report,
    Settings,
    encode,
    silent,
)
from skipqa.knowledge.index.format import (
    BUILDING,
    CONTENT_MODULUS,
    MANIFEST,
    SEGMENTS,
    Segment,
    content_hash,
    describe_files,
    find,
    open_segments,
    read_manifest,
    remove_unnamed,
    sole_writer,
    write_manifest,
)
from skipqa.knowledge.index.merge import merge
from skipqa.knowledge.index.parts import Journal, Progress, forget
from skipqa.knowledge.sources import Source
from skipqa.knowledge.sparse_encoder import SparseEncoder

MAX_SEGMENTS = 8
MAX_DELETED = 0.25  # fraction of the rows; beyond it the index is compacted


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a build or an addition did."""

    passages: int
    progress: Progress


def build(
    folder: Path,
    sources: Sequence[Source],
    encoder: SparseEncoder,
    settings: Settings | None = None,
    embed: Embed | None = None,
    execution: Execution | None = None,
    *,
    general: bool = False,
) -> Outcome:
    """A new index in `folder`. An old one there stays in use until the new one is complete.
    `embed` adds a dense embedding of each passage. `general` says that the sources hold general
    knowledge, whatever their names, and not somebody's own documents."""
    settings = settings or Settings()
    job = Job("build", sources, encoder, settings, embed, execution or Execution())
    with sole_writer(folder):
        manifest: dict[str, Any] = {
            "generation": _generation(folder) + 1,
            "release": __version__,
            "settings": {name: getattr(settings, name) for name in settings.__slots__},
            "segments": [],
        }
        segments, progress = _encode_and_merge(folder, job)
        passages = sum(segment.rows for segment in segments)
        manifest["encoder"] = _save_encoder(folder, encoder, manifest["generation"])
        manifest["segments"] = [_entry(segment) for segment in segments]
        manifest["corpus"] = {
            "passages": passages,
            "hash": f"{_content(segments):032x}",
            "sources": [source.name for source in sources],
            # Not one flag for the index: sources added later may be somebody's own documents.
            "general": [source.name for source in sources] if general else [],
            "bad_rows": progress.bad_rows,
        }
        _commit(folder, manifest)
        return Outcome(passages, progress)


def add(
    folder: Path,
    sources: Sequence[Source],
    embed: Embed | None = None,
    execution: Execution | None = None,
    *,
    general: bool = False,
) -> Outcome:
    """Adds passages; one whose id already exists replaces the old passage. `general` is as for
    `build`, of the sources that are added."""
    execution = execution or Execution()
    with changing(folder) as manifest:
        segments = open_segments(folder, manifest)
        encoder = EncoderReader().read(
            manifest["encoder"]["config"], folder / manifest["encoder"]["folder"]
        )
        settings = replace(Settings(**manifest["settings"]), shards=1)
        if any(s.has_embeddings for s in segments) != (embed is not None):
            has = "has" if embed is None else "has no"
            raise UserError(f"the index at {folder} {has} embeddings: add with the same setting")
        job = Job("add", sources, encoder, settings, embed, execution)
        (segment,), progress = _encode_and_merge(folder, job)
        replaced = list(_rows_with_hashes(segments, segment))
        manifest["segments"].append(_entry(segment))
        manifest["corpus"]["passages"] += segment.rows
        _change_hash(manifest, _content([segment]))
        manifest["corpus"]["bad_rows"] += progress.bad_rows
        names = [source.name for source in sources]
        _extend(manifest["corpus"]["sources"], names)
        if general:
            _extend(manifest["corpus"].setdefault("general", []), names)
        _mark_deleted(manifest, segments, replaced)
        _finish(folder, manifest, execution.report)
        return Outcome(segment.rows, progress)


def delete(folder: Path, ids: Iterable[str], report: Report = silent) -> int:
    """Deletes passages by id; returns how many of them existed."""
    with changing(folder) as manifest:
        segments = open_segments(folder, manifest)
        found = [
            place for passage_id in set(ids) if (place := find(segments, passage_id)) is not None
        ]
        if found:
            _mark_deleted(manifest, segments, found)
            _finish(folder, manifest, report)
        return len(found)


def compact(folder: Path, report: Report = silent) -> None:
    """Merges all segments into new ones without the deleted rows."""
    with changing(folder) as manifest:
        _compact(folder, manifest, report)


@contextmanager
def changing(folder: Path) -> Iterator[dict[str, Any]]:
    """The manifest of an existing index, locked for this writer."""
    read_manifest(folder)  # fails before the lock would create a folder
    with sole_writer(folder):
        yield read_manifest(folder)


def _encode_and_merge(folder: Path, job: Job) -> tuple[list[Segment], Progress]:
    """The sources as new segments, which no manifest names yet."""
    journal = Journal(folder / BUILDING, job.fingerprint())
    encode(journal, job)
    if not any(journal.rows_of_parts):
        forget(journal.folder)
        raise UserError(_why_nothing(job.sources, journal.progress))
    segments = _merge(folder, job.verb, journal.parts(), job.settings, job.execution.report)
    return segments, journal.progress


def _why_nothing(sources: Sequence[Source], progress: Progress) -> str:
    if not progress.bad_rows:
        names = ", ".join(source.name for source in sources)
        return f"no document found in {names}: nothing was indexed"
    place, reason = progress.bad_rows_named[0]
    more = f", and {progress.bad_rows - 1:,} more" if progress.bad_rows > 1 else ""
    return f"no document could be read, nothing was indexed: {place}: {reason}{more}"


def _merge(
    folder: Path, verb: str, parts: Sequence[Segment], settings: Settings, report: Report
) -> list[Segment]:
    def steps(shard: int) -> Callable[[int, int], None]:
        return lambda done, total: report(
            "inverting", shard * total + done, settings.shards * total
        )

    return [
        merge(
            parts,
            folder / SEGMENTS / f"{verb}-{secrets.token_hex(4)}",
            settings.list_limit,
            steps(shard),
            (shard, settings.shards),
        )
        for shard in range(settings.shards)
    ]


def _rows_with_hashes(segments: Sequence[Segment], new: Segment) -> Iterator[tuple[int, int]]:
    """Rows of the old segments whose id also occurs in the new segment."""
    for old in segments:
        shared = np.intersect1d(old.ids[0], new.ids[0])
        at = np.searchsorted(new.ids[0], shared)
        for row in new.ids[1][at].tolist():
            place = find(segments, json.loads(new.record(row))[0])
            if place is not None:
                yield place


def _mark_deleted(
    manifest: dict[str, Any], segments: Sequence[Segment], places: Iterable[tuple[int, int]]
) -> None:
    """Writes new deletion files, which include the old ones, and enters them in the manifest."""
    removed = 0
    by_segment: dict[int, set[int]] = {}
    for number, row in places:
        by_segment.setdefault(number, set()).add(row)
    for number, rows in by_segment.items():
        segment, entry = segments[number], manifest["segments"][number]
        mask = np.zeros(segment.rows, bool) if segment.deleted is None else segment.deleted.copy()
        mask[list(rows)] = True
        if segment.deleted_file is not None:
            del entry["files"][segment.deleted_file]
        name = f"deleted-{manifest['generation'] + 1}"
        (segment.folder / name).write_bytes(np.packbits(mask).tobytes())
        entry["files"][name] = describe_file(segment.folder / name)
        entry["deleted"] = name
        removed += len(rows)
        for row in rows:
            _change_hash(manifest, -content_hash(segment.record(row)))
    manifest["corpus"]["passages"] -= removed


def describe_file(path: Path) -> dict[str, Any]:
    return describe_files(path.parent)[path.name]


def _finish(folder: Path, manifest: dict[str, Any], report: Report) -> None:
    """Commits an addition or deletion, and compacts if searches would become slow."""
    manifest["generation"] += 1
    _commit(folder, manifest)
    rows = sum(entry["rows"] for entry in manifest["segments"])
    gone = rows - manifest["corpus"]["passages"]
    many = MAX_SEGMENTS + manifest["settings"]["shards"]
    if len(manifest["segments"]) > many or gone > MAX_DELETED * rows:
        _compact(folder, manifest, report)


def _compact(folder: Path, manifest: dict[str, Any], report: Report) -> None:
    settings = Settings(**manifest["settings"])
    segments = _merge(folder, "compact", open_segments(folder, manifest), settings, report)
    assert sum(segment.rows for segment in segments) == manifest["corpus"]["passages"]
    manifest["segments"] = [_entry(segment) for segment in segments]
    manifest["generation"] += 1
    _commit(folder, manifest, keep_building=True)


def _commit(folder: Path, manifest: dict[str, Any], keep_building: bool = False) -> None:
    write_manifest(folder, manifest)
    if not keep_building:
        forget(folder / BUILDING)
    remove_unnamed(folder, manifest)


def _entry(segment: Segment) -> dict[str, Any]:
    return {"name": segment.name, "rows": segment.rows, "files": dict(segment.files)}


def _save_encoder(folder: Path, encoder: SparseEncoder, generation: int) -> dict[str, Any]:
    target = folder / f"encoder-{generation}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    encoder.save(target)
    return {
        "config": encoder.config(),
        "ceiling": encoder.ceiling,
        "folder": target.name,
        "files": describe_files(target),
    }


def _extend(known: list[str], names: Iterable[str]) -> None:
    known.extend(name for name in names if name not in known)


def _content(segments: Iterable[Segment]) -> int:
    hashes = (content_hash(s.record(row)) for s in segments for row in range(s.rows))
    return sum(hashes) % CONTENT_MODULUS


def _change_hash(manifest: dict[str, Any], change: int) -> None:
    value = (int(manifest["corpus"]["hash"], 16) + change) % CONTENT_MODULUS
    manifest["corpus"]["hash"] = f"{value:032x}"


def _generation(folder: Path) -> int:
    """The generation of the existing index, or 0. It is random if the index cannot be read."""
    if not (folder / MANIFEST).exists():
        return 0
    try:
        return int(read_manifest(folder)["generation"])
    except UserError:
        return secrets.randbelow(1 << 30)  # file names must differ from those of the old index
