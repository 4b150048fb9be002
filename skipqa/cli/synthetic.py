"""skipqa data synthetic: questions about your photos, written by a model elsewhere and filtered.

It is a verb of `data`, and stands here because `skipqa.data` knows no endpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skipqa.cli.console import (
    Indexes,
    Json,
    Settings,
    counting,
    err,
    plural,
    prepare_process,
    print_json,
    working,
)
from skipqa.cli.endpoint import EndpointOptions, tokens
from skipqa.cli.options import grouped

if TYPE_CHECKING:
    from skipqa.synthetic.pairs import PairFinder

SHOWN_FAILURES = 10


@grouped
def synthetic(
    server: EndpointOptions,
    images: Annotated[Path, typer.Option(help="Folder of photos.", show_default=False)],
    out_folder: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder for the rows; a stopped run goes on there.", show_default=False
        ),
    ],
    index: Indexes = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="What to write about: JSON Lines (image, entity, passage: an id, or with its "
            "text). Default: what the pipeline sees and finds."
        ),
    ] = None,
    clip: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a published CLIP, which then judges whether a photo shows the entity. "
            "Default: the endpoint does."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many photos, for a trial.")
    ] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Have a vision-language model write questions about photos and passages, and filter them.

    A question is kept if its answer stands verbatim in the passage, it is grammatical, and the
    photo shows what it is about. Writes rows.jsonl, which `skipqa eval vqa` reads, with the gold
    passage and the values of the filters, and rejected.jsonl with the reason. Costs up to three
    calls for each pair, at most `pairs` (4) of them for each photo.

    Examples:

      skipqa data synthetic --images photos --index my-index --endpoint http://127.0.0.1:8000/v1
      --model qwen-vl --out synthetic

      skipqa data synthetic --images photos --pairs pairs.jsonl --index my-index --out synthetic
      --clip clip-vit-large-patch14 --set endpoint.concurrency=8

      skipqa eval vqa --questions synthetic/rows.jsonl --images photos --index my-index --out runs
    """
    from dataclasses import asdict

    from skipqa.assets import sha256_of
    from skipqa.config import override, read_settings
    from skipqa.prompted.answer import as_dict
    from skipqa.synthetic import Generator, SyntheticConfig
    from skipqa.synthetic.filters import all_three
    from skipqa.synthetic.pairs import photos_in

    _, model = server.named()
    config = override(SyntheticConfig(), read_settings(settings or ()))
    names = photos_in(images)[:limit]
    endpoint = server.open(config.endpoint)
    filters = all_three(config, clip)
    find = _finder(pairs, index)
    generator = Generator(endpoint, model, find, filters, config)
    about = {
        "images": str(images),
        "pairs": None if pairs is None else sha256_of(pairs),
        "index": index,
        "clip": None if clip is None else str(clip),
    }
    with counting(len(names)) as report:
        outcome = generator.run(
            images, names, out_folder, about, lambda done, total: report("photos", done, total)
        )
    err.print(tokens(outcome.usage), highlight=False)
    for line in outcome.failed[:SHOWN_FAILURES]:
        err.print(line, highlight=False, soft_wrap=True)
    if json:
        print_json({**asdict(outcome), "usage": as_dict(outcome.usage), "folder": str(out_folder)})
    else:
        rejected = "".join(f", {count} not {name}" for name, count in outcome.rejected.items())
        kept = plural(outcome.rows, "question")
        print(f"{kept} about {plural(outcome.photos, 'photo')} in {out_folder}{rejected}")
    if outcome.failed:
        failed = plural(len(outcome.failed), "photo")
        err.print(f"{failed} failed: the same command tries again", highlight=False)
        raise typer.Exit(1)


def _finder(pairs: Path | None, index: list[str] | None) -> PairFinder:
    from skipqa.synthetic.pairs import GivenPairs, RetrievedPairs

    if pairs is not None:
        from skipqa.knowledge import Library

        return GivenPairs(pairs, None if index is None else Library.open(index))
    from skipqa.pipeline import load

    prepare_process()
    with working("reading the models") as report:
        return RetrievedPairs(load(index=index, report=report))
