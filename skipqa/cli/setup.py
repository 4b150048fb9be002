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
    from skipqa.knowledge.default import IndexSummary


def setup(json: Json = False) -> None:
    """Download the models, convert them, and build the default indexes, one for each corpus.

    Finished steps are skipped, so run it again after an interruption. It downloads about 260 MB and
    needs 1.1 GB in the cache folder (SKIPQA_HOME). The first question with --untrained adds 0.5 GB.
    GCIDE comes from Debian's archive; where it cannot be had, all else works without it.

    Example:

      skipqa setup
    """
    from skipqa import assets
    from skipqa.knowledge.default import built_default, built_index

    prepare()
    folders = built_default()
    indexes = {name: built_index(name) for name in folders}
    if json:
        described = {
            name: {"folder": str(folders[name]), **asdict(index)} for name, index in indexes.items()
        }
        print_json({"home": str(assets.home()), "indexes": described})
    else:
        _show("The default corpora", indexes)


def prepare() -> None:
    from skipqa.backbones.presets.pocket import FineTuned, Pocket
    from skipqa.components import bundled, load
    from skipqa.config import preset
    from skipqa.knowledge.default import unbuilt

    prepare_process()
    with working("checking the models") as report:
        folder = bundled("pocket")
        assert folder is not None
        trained = load(folder, preset="pocket")
        learned = FineTuned(trained.tagger, trained.vision, trained.question, trained.reader)
        Pocket(preset("pocket").encode, report, learned).prepare()
    if missing := unbuilt():
        _build_indexes(missing)
    err.print("ready")


def _build_indexes(names: Sequence[str]) -> None:
    from skipqa.knowledge.default import (
        build_default,
        expected_index,
        fetch_sources,
        size_on_disk,
        superseded,
    )
    from skipqa.knowledge.estimate import estimate

    seconds = max(1, round(estimate(names).seconds))
    _show(f"To be indexed in about {seconds} s", {name: expected_index(name) for name in names})
    with working("checking the corpora") as report:
        failed = fetch_sources(names, report)
    for name, reason in failed.items():
        _say(f"{name} is left out: {reason}; run `skipqa setup` again once it is there")
    if fetched := [name for name in names if name not in failed]:
        with counting() as progress:
            build_default(fetched, progress)
    if (old := superseded()) is not None:
        size = megabytes(size_on_disk(old))
        _say(f"the index of an earlier release is not used any more: {old} ({size})")


def _show(title: str, indexes: Mapping[str, IndexSummary]) -> None:
    table = Table("corpus", title=title, title_justify="left", box=None)
    for column in ("passages", "index"):
        table.add_column(column, justify="right")
    table.add_column("licence")
    for name, index in indexes.items():
        table.add_row(name, f"{index.passages:,}", megabytes(index.bytes), index.licence)
    err.print(table)


def _say(line: str) -> None:
    err.print(line, markup=False, highlight=False, soft_wrap=True)
