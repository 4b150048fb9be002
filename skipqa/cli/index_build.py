"""What `skipqa index build` and `add` print: what it will take first, what came of it last."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipqa.cli.console import err, megabytes, out, plural, print_json
from skipqa.errors import UserError

if TYPE_CHECKING:
    from skipqa.knowledge import Index
    from skipqa.knowledge.index.build import Outcome


def announce(folder: Path, corpus: list[str], timed: bool) -> int:
    """Prints what the build will need; returns the expected number of passages."""
    from skipqa.knowledge.estimate import estimate

    expected = estimate(corpus)
    parent = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(parent).free
    needed = 2 * expected.index_bytes  # the parts, and the index merged from them
    duration = f", about {max(1, round(expected.seconds))} s" if timed else ""
    err.print(
        f"about {plural(expected.passages, 'passage')}: {megabytes(expected.index_bytes)} of "
        f"index, {megabytes(needed)} while building{duration}",
        soft_wrap=True,
    )
    if needed > free:
        raise UserError(
            f"building {folder} needs {megabytes(needed)} and {megabytes(free)} is free there: "
            "choose a larger disk"
        )
    return expected.passages


def conclude(folder: Path, outcome: Outcome, seconds: float, json: bool, where: str = "in") -> None:
    """Prints the rows that were left out, and how many passages are now `where` the index is."""
    progress = outcome.progress
    if not json:
        for place, reason in progress.bad_rows_named:
            err.print(f"skipped {place}: {reason}", highlight=False, soft_wrap=True)
    if progress.bad_rows:
        named = len(progress.bad_rows_named)
        first = f"; the first {named} are named" if named < progress.bad_rows else ""
        read = plural(progress.rows_read, "document")
        err.print(f"{progress.bad_rows:,} of {read} left out{first}", soft_wrap=True)
    if json:
        summary: dict[str, Any] = {
            "folder": str(folder),
            "passages": outcome.passages,
            "seconds": round(seconds, 2),
            "bad_rows": progress.bad_rows,
            "bad_rows_named": [
                {"place": place, "reason": reason} for place, reason in progress.bad_rows_named
            ],
        }
        print_json(summary)
        return
    out.print(
        f"{plural(outcome.passages, 'passage')} {where} {folder} ({seconds:.1f} s)", soft_wrap=True
    )


def say_if_own(old: Index, new: Index) -> None:
    """That an index of general knowledge has become one of somebody's own documents, because its
    questions are answered differently from then on."""
    if new.own_sources and not old.own_sources:
        err.print(
            f"{new.folder} was general knowledge and now counts as your own documents, because of "
            f"{', '.join(new.own_sources)}",
            soft_wrap=True,
        )
