"""skipqa setup: downloads, converts and builds what the first question needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
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
from skipqa.errors import UserError

if TYPE_CHECKING:
    from skipqa.knowledge.default import IndexSummary


def setup(
    preset: Annotated[str, typer.Option(help="Whose models: pocket or desk.")] = "pocket",
    json: Json = False,
) -> None:
    """Download the models, convert them, and build the default indexes, one for each corpus.

    Finished steps are skipped, so run it again after an interruption. It downloads about 260 MB and
    needs 1.1 GB in the cache folder (SKIPQA_HOME). The first question with --untrained adds 0.5 GB.
    GCIDE comes from Debian's archive; where it cannot be had, all else works without it. With
    --preset desk the decoder of that preset comes as well; its size is said first.

    Examples:

      skipqa setup

      skipqa setup --preset desk
    """
    from skipqa import assets
    from skipqa.knowledge.default import built_default, built_index

    prepare(preset)
    folders = built_default()
    indexes = {name: built_index(name) for name in folders}
    if json:
        described = {
            name: {"folder": str(folders[name]), **asdict(index)} for name, index in indexes.items()
        }
        print_json({"home": str(assets.home()), "indexes": described})
    else:
        _show("The default corpora", indexes)


def prepare(name: str = "pocket") -> None:
    """The models of a preset that fetches its own weights, and the default indexes."""
    from skipqa.backbones.presets.build import SMALL
    from skipqa.backbones.presets.pocket import FineTuned
    from skipqa.components import load_for
    from skipqa.config import preset
    from skipqa.knowledge.default import unbuilt

    if name not in SMALL:
        raise UserError(
            f"setup fetches {' and '.join(SMALL)}; other presets read the Hugging Face cache, or "
            "what --weights names"
        )
    decoder = SMALL[name].published
    if name != "pocket":
        _say(f"{name} needs {decoder.asset.name}: {decoder.asset.about}, and more once converted")
    prepare_process()
    with working("checking the models") as report:
        trained = load_for(name)
        config = preset(name, trained.settings)
        learned = FineTuned(trained.tagger, trained.vision, trained.question, trained.reader)
        SMALL[name](config.encode, report, learned, config.decode.weights).prepare()
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
    err.print(line, highlight=False, soft_wrap=True)
