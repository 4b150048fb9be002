"""Everything that changes an index: build, add, delete, compact.

Each of them writes new files beside the old ones and ends with one replacement of the
manifest. Only one process may write at a time; readers are never disturbed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skipqa import __version__
from skipqa.errors import UserError
from skipqa.knowledge.chunk import MAX_TOKENS, OVERLAP, Chunk, chunk
from skipqa.knowledge.corpus import BadRow, Document, Source
from skipqa.knowledge.index.format import (
    BUILDING,
    CONTENT_MODULUS,
    MANIFEST,
    SEGMENTS,
    Segment,
    content_hash,
    describe_files,
    id_hash,
    open_segments,
    read_manifest,
    remove_unnamed,
    sole_writer,
    write_manifest,
)
from skipqa.knowledge.index.merge import merge
from skipqa.knowledge.index.parts import Journal, PartWriter, Progress, forget
from skipqa.knowledge.sparse_encoder import SparseEncoder, load_encoder

Embed = Callable[[list[str]], NDArray[np.floating]]
Report = Callable[[str, int, int | None], None]  # what, done, of how many where known

BATCH_DOCUMENTS = 4_096
PART_ROWS = 1 << 17
MAX_SEGMENTS = 8
MAX_DELETED = 0.25  # of the rows, before compaction pays


@dataclass(frozen=True, slots=True)
class Settings:
    """How an index is built; kept in its manifest."""

    max_tokens: int = MAX_TOKENS
    overlap: int = OVERLAP
    list_limit: int = 1 << 16  # rows kept of each list: no search reads further
    shards: int = 1  # segments, which workers of a cluster can share out


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
    report: Report = lambda *_: None,
    batch: int = BATCH_DOCUMENTS,
) -> Outcome:
    """A new index in `folder`; an old one there answers until the new one is complete."""
    settings = settings or Settings()
    with sole_writer(folder):
        manifest: dict[str, Any] = {
            "generation": _generation(folder) + 1,
            "release": __version__,
            "settings": {name: getattr(settings, name) for name in settings.__slots__},
            "segments": [],
        }
        segments, progress = _encode_and_merge(
            folder, "build", sources, encoder, settings, embed, batch, report
        )
        passages = sum(segment.rows for segment in segments)
        manifest["encoder"] = _save_encoder(folder, encoder, manifest["generation"])
        manifest["segments"] = [_entry(segment) for segment in segments]
        manifest["corpus"] = {
            "passages": passages,
            "hash": f"{_content(segments):032x}",
            "sources": [source.name for source in sources],
            "bad_rows": progress.bad_rows,
        }
        _commit(folder, manifest)
        return Outcome(passages, progress)


def add(
    folder: Path,
    sources: Sequence[Source],
    embed: Embed | None = None,
    report: Report = lambda *_: None,
    batch: int = BATCH_DOCUMENTS,
) -> Outcome:
    """More passages; one whose id is already there replaces the old one."""
    with changing(folder) as manifest:
        segments = open_segments(folder, manifest)
        encoder = load_encoder(
            manifest["encoder"]["config"], folder / manifest["encoder"]["folder"]
        )
        settings = Settings(**manifest["settings"])
        if any(s.has_embeddings for s in segments) != (embed is not None):
            has = "has" if embed is None else "has no"
            raise UserError(f"the index at {folder} {has} embeddings: add with the same setting")
        (segment,), progress = _encode_and_merge(
            folder, "add", sources, encoder, replace(settings, shards=1), embed, batch, report
        )
        replaced = list(_rows_with_hashes(segments, segment))
        manifest["segments"].append(_entry(segment))
        manifest["corpus"]["passages"] += segment.rows
        _change_hash(manifest, _content([segment]))
        manifest["corpus"]["bad_rows"] += progress.bad_rows
        known = manifest["corpus"]["sources"]
        known.extend(source.name for source in sources if source.name not in known)
        _mark_deleted(manifest, segments, replaced)
        _finish(folder, manifest, report)
        return Outcome(segment.rows, progress)


def delete(folder: Path, ids: Iterable[str], report: Report = lambda *_: None) -> int:
    """Drop passages by id; returns how many there were."""
    with changing(folder) as manifest:
        segments = open_segments(folder, manifest)
        found = [
            place for passage_id in set(ids) if (place := find(segments, passage_id)) is not None
        ]
        if found:
            _mark_deleted(manifest, segments, found)
            _finish(folder, manifest, report)
        return len(found)


def compact(folder: Path, report: Report = lambda *_: None) -> None:
    """One segment out of many, without the deleted rows."""
    with changing(folder) as manifest:
        _compact(folder, manifest, report)


@contextmanager
def changing(folder: Path) -> Iterator[dict[str, Any]]:
    """The manifest of an index that is there, for its only writer."""
    read_manifest(folder)  # before the lock, which would leave a folder where no index is
    with sole_writer(folder):
        yield read_manifest(folder)


def find(segments: Sequence[Segment], passage_id: str) -> tuple[int, int] | None:
    """(segment number, row) of a living passage."""
    wanted = np.uint64(id_hash(passage_id))
    for number, segment in enumerate(segments):
        hashes, rows = segment.ids
        low, high = (
            np.searchsorted(hashes, wanted, "left"),
            np.searchsorted(hashes, wanted, "right"),
        )
        for row in rows[low:high].tolist():
            alive = segment.deleted is None or not segment.deleted[row]
            if alive and json.loads(segment.record(row))[0] == passage_id:
                return number, row
    return None


def _encode_and_merge(
    folder: Path,
    verb: str,
    sources: Sequence[Source],
    encoder: SparseEncoder,
    settings: Settings,
    embed: Embed | None,
    batch: int,
    report: Report,
) -> tuple[list[Segment], Progress]:
    """The sources as new segments, which no manifest names yet."""
    fingerprint = hashlib.sha256(
        json.dumps(
            [
                verb,
                [s.fingerprint() for s in sources],
                encoder.config(),
                repr(settings),
                bool(embed),
            ]
        ).encode()
    ).hexdigest()
    journal = Journal(folder / BUILDING, fingerprint)
    _encode(journal, sources, encoder, settings, embed, batch, report)
    if not any(journal.rows_of_parts):
        forget(journal.folder)
        raise UserError(_why_nothing(sources, journal.progress))
    return _merge(folder, verb, journal.parts(), settings, report), journal.progress


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


def _encode(
    journal: Journal,
    sources: Sequence[Source],
    encoder: SparseEncoder,
    settings: Settings,
    embed: Embed | None,
    batch: int,
    report: Report,
) -> None:
    """Source rows that the journal does not cover yet, as further parts."""
    progress = journal.progress
    done = sum(journal.rows_of_parts)
    everything = itertools.chain.from_iterable(source.read() for source in sources)
    unread = itertools.islice(everything, progress.rows_read, None)
    writer: PartWriter | None = None
    for rows in _batches(unread, batch):
        documents: list[Document] = []
        for row in rows:
            if isinstance(row, BadRow):
                progress.skip(row)
            else:
                documents.append(row)
        progress.rows_read += len(rows)
        writer = writer or PartWriter(journal.next_part, encoder.ceiling, embed is not None)
        chunks = list(chunk(documents, encoder.tokenizer, settings.max_tokens, settings.overlap))
        if chunks:
            writer.append(chunks, *_vectors(chunks, encoder, embed))
        report("encoding", done + writer.rows, None)
        if writer.rows >= PART_ROWS:
            done += _close(journal, writer)
            writer = None
    if writer is not None:
        _close(journal, writer)


def _vectors(chunks: list[Chunk], encoder: SparseEncoder, embed: Embed | None) -> tuple[Any, ...]:
    passages = [c.passage for c in chunks]
    embeddings = embed([p.text for p in passages]) if embed else None
    return encoder.encode_passages(passages), embeddings


def _close(journal: Journal, writer: PartWriter) -> int:
    writer.close()
    journal.commit(writer.rows)
    return writer.rows


def _batches(rows: Iterable[Document | BadRow], size: int) -> Iterator[list[Document | BadRow]]:
    iterator = iter(rows)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _rows_with_hashes(segments: Sequence[Segment], new: Segment) -> Iterator[tuple[int, int]]:
    """Rows of the old segments whose id the new segment holds too."""
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
    """New deletion files, and their names in the manifest; what the old files say stays."""
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
    """Commit an addition or deletion, and compact when searches would start to feel it."""
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


def _content(segments: Iterable[Segment]) -> int:
    hashes = (content_hash(s.record(row)) for s in segments for row in range(s.rows))
    return sum(hashes) % CONTENT_MODULUS


def _change_hash(manifest: dict[str, Any], change: int) -> None:
    value = (int(manifest["corpus"]["hash"], 16) + change) % CONTENT_MODULUS
    manifest["corpus"]["hash"] = f"{value:032x}"


def _generation(folder: Path) -> int:
    """Of the index that is there, even where it is of another format; 0 where there is none."""
    if not (folder / MANIFEST).exists():
        return 0
    try:
        return int(read_manifest(folder)["generation"])
    except UserError:
        return secrets.randbelow(1 << 30)  # names must differ from the damaged index's
