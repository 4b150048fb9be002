"""skipqa setup: downloads, converts and builds what the first question needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from skipqa.cli.console import (
    Json,
    counting,
    err,
    megabytes,
    prepare_process,
    print_json,
    working,
)

if TYPE_CHECKING:
    from skipqa.knowledge.default import IndexSize


def setup(json: Json = False) -> None:
    """Download the models, convert them, and build the default indexes, one for each corpus.

    Finished steps are skipped, so run it again after an interruption. It downloads about 250 MB and
    needs 1 GB in the cache folder (SKIPQA_HOME). The first question with --untrained adds 0.5 GB.
    GCIDE comes from Debian's archive; where it cannot be had, all else works without it.

    Example:

      skipqa setup
    """
    prepare()
    from skipqa import assets
    from skipqa.knowledge.default import built_default, built_size
    from skipqa.knowledge.sources import BUILT_IN

    indexes = built_default()
    sizes = {name: built_size(name) for name in indexes}
    if not json:
        _show("Indexes", sizes)
        return
    print_json(
        {
            "home": str(assets.home()),
            "indexes": {
                name: {
                    "folder": str(folder),
                    **asdict(sizes[name]),
                    "licence": BUILT_IN[name].licence,
                }
                for name, folder in indexes.items()
            },
        }
    )


def prepare() -> None:
    from skipqa.backbones.presets.pocket import FineTuned, Pocket
    from skipqa.components import bundled, load
    from skipqa.config import preset
    from skipqa.knowledge.default import expected_size, unbuilt

    if missing := unbuilt():
        _show("To be indexed, about", {name: expected_size(name) for name in missing})
    prepare_process()
    with working("checking the models") as report:
        folder = bundled("pocket")
        assert folder is not None
        trained = load(folder, preset="pocket")
        learned = FineTuned(trained.tagger, trained.vision, trained.question, trained.reader)
        Pocket(preset("pocket").encode, report, learned).prepare()
    if missing:
        _build_indexes(missing)
    err.print("ready")


def _build_indexes(names: Sequence[str]) -> None:
    from skipqa.knowledge.default import (
        build_default,
        built_size,
        fetch_sources,
        size_on_disk,
        superseded,
    )

    with working("checking the corpora") as report:
        failed = fetch_sources(names, report)
    for name, reason in failed.items():
        _say(f"{name} is left out: {reason}, then run `skipqa setup` again")
    fetched = [name for name in names if name not in failed]
    with counting() as progress:
        build_default(fetched, progress)
    if fetched:
        _show("Indexed", {name: built_size(name) for name in fetched})
    if (old := superseded()) is not None:
        size = megabytes(size_on_disk(old))
        _say(f"the index of an earlier release is not used any more: {old} ({size})")


def _show(title: str, sizes: Mapping[str, IndexSize]) -> None:
    """The passages, size and licence of some built-in corpora."""
    from skipqa.knowledge.sources import BUILT_IN

    table = Table("corpus", title=title, title_justify="left", box=None)
    for column in ("passages", "index"):
        table.add_column(column, justify="right")
    table.add_column("licence")
    for name, size in sizes.items():
        table.add_row(name, f"{size.passages:,}", megabytes(size.bytes), BUILT_IN[name].licence)
    err.print(table)


def _say(line: str) -> None:
    err.print(line, markup=False, highlight=False, soft_wrap=True)
