"""`python -m skipqa.data`: list and fetch the official files, build and look at our own
benchmark."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from skipqa.errors import UserError, choices

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_collections(json: Json = False) -> None:
    """What can be fetched, and what has to be fetched by hand.

    Example: skipqa data list
    """
    from skipqa.data import download

    found = download.manifest().values()
    if json:
        urls = {c.name: [source.url for source in c.sources] for c in found}
        print(json_format.dumps(urls, indent=2))
        return
    for collection in found:
        print(f"{collection.name}  ({collection.page})")
        for source in collection.sources:
            print(f"  {source.url}")
        for what, where in collection.by_hand.items():
            print(f"  by hand: {what}: {where}")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A name from `list`.", show_default=False)],
    to: Annotated[Path, typer.Option(help="The folder for the files.", show_default=False)],
    json: Json = False,
) -> None:
    """Download a collection; a broken download continues where it stopped.

    A sha256 that the publisher states is enforced. Where none is stated, the sha256 of the
    first download is written into skipqa-data.lock and enforced from then on.

    Example: skipqa data fetch okvqa --to data/okvqa
    """
    from skipqa.data import download

    known = download.manifest()
    if name not in known:
        raise UserError(f"unknown collection {name!r}: use one of {choices(name, known)}")
    collection = known[name]
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file)
            bars.update(tasks[file], completed=done, total=total)

        new = download.fetch(collection, to, show)
    if json:
        print(json_format.dumps({"folder": str(to), "new": [source.name for source in new]}))
    else:
        print(f"{name} is in {to} ({len(new)} of {len(collection.sources)} files were new)")
    if collection.images:
        print(f"its images: skipqa data fetch {collection.images} --to DIR", file=sys.stderr)
    for what, where in collection.by_hand.items():
        print(f"by hand: {what}: {where}", file=sys.stderr)


@app.command("pocket-kb")
def pocket_kb(
    data: Annotated[
        Path, typer.Option(help="The folder with entities/ and coco/.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.", show_default=False)],
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 2026,
    json: Json = False,
) -> None:
    """Build Pocket-KB, knowledge questions about breeds, flowers, groceries and flags.

    Takes about two minutes, 2 GB of memory and 110 MB of disk. The same seed gives the same
    bytes; a stopped build leaves nothing behind.

    Example: skipqa data pocket-kb --data data --out pocket-kb
    """
    from skipqa.data.pocket_kb import build

    err = Console(stderr=True)
    build.check_places(data, out)
    err.print(f"about 15,000 questions, 110 MB in {out}, about two minutes")
    with _counting(err) as show:
        knowledge = build.Knowledge.default(err.print)
        manifest = build.build(data, out, seed, knowledge, show)
    if json:
        print(json_format.dumps(manifest, indent=2, ensure_ascii=False))
        return
    rows = manifest["counts"]["rows"]
    print(f"{rows['train']:,} questions to train on, {rows['val']:,} to check with, in {out}")
    print(f"sha256 {manifest['checksum']}")


@app.command("rendered-text")
def rendered_text(
    data: Annotated[Path, typer.Option(help="The folder with coco/.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The folder to make.", show_default=False)],
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 2026,
    json: Json = False,
) -> None:
    """Build the rendered-text set: signs, labels, bottles and buses composed into photos.

    Takes about a minute and 50 MB of disk. The same seed gives the same bytes; a stopped build
    leaves nothing behind.

    Example: skipqa data rendered-text --data data --out rendered-text
    """
    from skipqa.data.rendered_text import build

    err = Console(stderr=True)
    build.check_places(data, out)
    err.print(f"about 1,600 questions, 50 MB in {out}, about a minute")
    with _counting(err) as show:
        manifest = build.build(data, out, seed, build.Knowledge.default(err.print), show)
    if json:
        print(json_format.dumps(manifest, indent=2, ensure_ascii=False))
        return
    for split, counts in manifest["counts"].items():
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
        print(f"{split}: {sum(counts.values()):,} questions ({kinds})")
    print(f"sha256 {manifest['checksum']}")


@contextmanager
def _counting(console: Console) -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each part of the work, as it reports `(what, done, of how many)`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield show


@app.command()
def look(
    data: Annotated[
        Path, typer.Option(help="The folder that `pocket-kb` made.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(help="The PNG to write; several are numbered.", show_default=False)
    ],
    subset: Annotated[
        str | None, typer.Option(help="crowded, unseen, small … Default: all rows.")
    ] = None,
    split: Annotated[str, typer.Option(help="train or val.")] = "val",
    count: Annotated[int, typer.Option(min=1, help="How many rows.")] = 50,
    seed: Annotated[int, typer.Option(help="Decides which rows.")] = 0,
    json: Json = False,
) -> None:
    """Draw rows of Pocket-KB as sheets of a dozen: picture, asked box, question and answer.

    Takes about a second for each sheet.

    Example: skipqa data look --data pocket-kb --subset crowded --count 50 --out sheet.png
    """
    from rich.progress import track

    from skipqa.data.pocket_kb import look as sheets

    rows = sheets.draw_rows(data, split, subset, count, seed)
    names = sheets.write_sheets(rows, data / "photos.zip", out)
    total = -(-len(rows) // (sheets.COLUMNS * sheets.ROWS))
    written = [
        str(name) for name in track(names, "drawing sheets", total, console=Console(stderr=True))
    ]
    if json:
        print(json_format.dumps({"rows": len(rows), "sheets": written}))
    else:
        print("\n".join(written))


def run() -> None:
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    run()
