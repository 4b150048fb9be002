"""Merges parts or segments into one new segment: copies the live rows and inverts them into lists.

All lists are made here: build and add merge their parts, compaction merges segments. Lists are made
for a range of terms at a time, so that memory stays at about 1.5 GB, in addition to the mapped
files, for a corpus of any size. Legend: N rows, P postings, V terms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from skipqa.knowledge.index.format import DTYPES, Segment, describe_files
from skipqa.knowledge.vectors import NUM_TERMS, spans

BLOCK_ROWS = 1 << 16
SORTED_AT_ONCE = 1 << 26  # postings; 8 bytes each while sorting
COPIED = (
    ("forward.offsets", ("forward.terms", "forward.impacts")),
    ("texts.offsets", ("texts.json",)),
)

Report = Callable[[int, int], None]  # steps done, of how many


def merge(
    inputs: Sequence[Segment],
    target: Path,
    list_limit: int,
    report: Report,
    shard: tuple[int, int] = (0, 1),
) -> Segment:
    """The live rows of `inputs`, in order; if an id repeats, its last row is kept. Shard (i, n) is
    the i-th of n equal ranges of these rows."""
    target.mkdir(parents=True)
    hashes = [_hashes_by_row(part) for part in inputs]
    live = _live_rows(inputs, hashes)
    num_rows = _keep_stretch(live, *shard)
    for offsets_name, data_names in COPIED:
        _copy_ragged(inputs, live, target, offsets_name, data_names)
    if inputs and all(part.has_embeddings for part in inputs):
        with (target / "embeddings").open("wb") as out:
            for part, mask in zip(inputs, live, strict=True):
                assert part.embeddings is not None
                for rows in _blocks(part.rows):
                    out.write(part.embeddings[rows][mask[rows]].data)
    kept = np.concatenate(
        [np.zeros(0, np.uint64), *(h[m] for h, m in zip(hashes, live, strict=True))]
    )
    order = np.argsort(kept, kind="stable")
    _save(target / "ids.hashes", kept[order])
    _save(target / "ids.rows", order)
    _invert(Segment(target, num_rows, {}), list_limit, report)
    return Segment(target, num_rows, describe_files(target))


def _hashes_by_row(part: Segment) -> NDArray[np.uint64]:
    hashes = part.array("ids.hashes")
    if not (part.folder / "ids.rows").exists():
        return hashes
    by_row = np.empty_like(hashes)
    by_row[part.array("ids.rows")] = hashes
    return by_row


def _live_rows(
    inputs: Sequence[Segment], hashes: Sequence[NDArray[np.uint64]]
) -> list[NDArray[np.bool_]]:
    """Masks of rows that are not deleted and are the last with their id (hashes may collide)."""
    live = [np.ones(part.rows, bool) if part.deleted is None else ~part.deleted for part in inputs]
    bases = np.concatenate([[0], np.cumsum([part.rows for part in inputs])])
    flat = np.concatenate([np.zeros(0, np.uint64), *hashes])
    order = np.argsort(flat, kind="stable")
    repeats = np.flatnonzero(flat[order[1:]] == flat[order[:-1]])
    seen: dict[str, tuple[int, int]] = {}
    for position in np.unique(np.concatenate([repeats, repeats + 1])):  # rows ascend within a hash
        number = int(np.searchsorted(bases, order[position], "right")) - 1
        row = int(order[position] - bases[number])
        if live[number][row]:
            passage_id = json.loads(inputs[number].record(row))[0]
            if passage_id in seen:
                earlier, earlier_row = seen[passage_id]
                live[earlier][earlier_row] = False
            seen[passage_id] = (number, row)
    return live


def _keep_stretch(live: Sequence[NDArray[np.bool_]], number: int, of: int) -> int:
    """Clears, in place, the live rows outside the range; returns how many are left."""
    total = sum(int(mask.sum()) for mask in live)
    low, high = total * number // of, total * (number + 1) // of
    before = 0
    for mask in live:
        rows = np.flatnonzero(mask)
        mask[rows[: max(0, low - before)]] = False
        mask[rows[max(0, high - before) :]] = False
        before += len(rows)
    return high - low


def _copy_ragged(
    inputs: Sequence[Segment],
    live: Sequence[NDArray[np.bool_]],
    target: Path,
    offsets_name: str,
    data_names: Sequence[str],
) -> None:
    end = 0
    with (target / offsets_name).open("wb") as out_offsets:
        outs = [(target / name).open("wb") for name in data_names]
        out_offsets.write(np.zeros(1, "<i8").data)
        for part, mask in zip(inputs, live, strict=True):
            offsets = part.array(offsets_name)
            arrays = [part.array(name) for name in data_names]
            for rows in _blocks(part.rows):
                starts, stops = offsets[:-1][rows], offsets[1:][rows]
                lengths = (stops - starts)[mask[rows]]
                whole = slice(starts[0], stops[-1])
                chosen = whole if mask[rows].all() else spans(starts[mask[rows]], lengths)
                for out, array in zip(outs, arrays, strict=True):
                    out.write(np.ascontiguousarray(array[chosen]).data)
                ends = np.cumsum(lengths, dtype="<i8") + end
                end = int(ends[-1]) if len(ends) else end
                out_offsets.write(ends.data)
        for out in outs:
            out.close()


def _blocks(num_rows: int) -> Iterator[slice]:
    for start in range(0, num_rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, num_rows))


def _invert(segment: Segment, list_limit: int, report: Report) -> None:
    """The list of rows of each term, highest impact first, cut off at `list_limit`.

    A posting becomes one 64-bit key, term | 31 - level | row, so that sorting integers puts a range
    of terms in its final order. Lists distinguish 32 levels of impact, not 255: they only propose
    candidates, and fewer levels make shorter tables of runs.
    """
    offsets, terms, _ = segment.forward
    frequencies = np.zeros(NUM_TERMS, np.int64)
    for rows in _blocks(segment.rows):
        part = terms[offsets[rows.start] : offsets[rows.stop]]
        frequencies += np.bincount(part, minlength=NUM_TERMS)
    list_lengths: list[NDArray[np.int64]] = []
    run_counts: list[NDArray[np.int64]] = []
    ranges = list(_term_ranges(frequencies))
    names = ("lists.rows", "runs.impacts", "runs.lengths")
    out: dict[str, IO[bytes]] = {name: (segment.folder / name).open("wb") for name in names}
    for step, (low, high) in enumerate(ranges):
        report(step, len(ranges))
        keys = _keys(segment, low, high, int(frequencies[low:high].sum()))
        keys.sort()
        counts = frequencies[low:high]
        if counts.max(initial=0) > list_limit:
            rank = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
            keys = keys[rank < list_limit]
        list_lengths.append(np.minimum(counts, list_limit))
        out["lists.rows"].write((keys & np.uint64(0xFFFFFFFF)).astype("<u4").data)
        keys >>= np.uint64(32)  # term | 31 - level, equal along a run
        starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1]))
        run_keys = keys[starts]
        level = 31 - (run_keys & np.uint64(31))
        out["runs.impacts"].write(((level << np.uint64(3)) + np.uint64(4)).astype("<u1").data)
        out["runs.lengths"].write(np.diff(starts, append=len(keys)).astype("<u4").data)
        run_terms = (run_keys >> np.uint64(5)).astype(np.int64) - low
        run_counts.append(np.bincount(run_terms, minlength=high - low))
    for file in out.values():
        file.close()
    report(len(ranges), len(ranges))
    _save(segment.folder / "frequencies", frequencies)
    _save(segment.folder / "lists.offsets", _running_total(list_lengths))
    _save(segment.folder / "runs.offsets", _running_total(run_counts))


def _term_ranges(frequencies: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of terms with at most SORTED_AT_ONCE postings each (or a single term)."""
    ends = np.cumsum(frequencies)
    low = 0
    while low < NUM_TERMS:
        before = ends[low - 1] if low else 0
        high = max(low + 1, int(np.searchsorted(ends, before + SORTED_AT_ONCE, "right")))
        yield low, high
        low = high


def _keys(segment: Segment, low: int, high: int, total: int) -> NDArray[np.uint64]:
    offsets, terms, impacts = segment.forward
    keys = np.empty(total, np.uint64)
    filled = 0
    for rows in _blocks(segment.rows):
        part = slice(offsets[rows.start], offsets[rows.stop])
        lengths = np.diff(offsets[rows.start : rows.stop + 1])
        row = np.repeat(np.arange(rows.start, rows.stop, dtype=np.uint64), lengths)
        term = terms[part]
        key = (term.astype(np.uint64) << np.uint64(5)) | (31 - (impacts[part] >> 3))
        key = (key << np.uint64(32)) | row
        if (low, high) != (0, NUM_TERMS):
            key = key[(term >= low) & (term < high)]
        keys[filled : filled + len(key)] = key
        filled += len(key)
    assert filled == total
    return keys


def _running_total(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.concatenate(parts))])


def _save(path: Path, values: NDArray) -> None:
    path.write_bytes(np.ascontiguousarray(values, DTYPES[path.name]).data)
