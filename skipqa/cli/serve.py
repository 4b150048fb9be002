"""skipqa serve: the pipeline over HTTP, and the page."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from skipqa.cli.console import (
    ComponentsFolder,
    Indexes,
    Json,
    KnowledgeSources,
    Preset,
    Settings,
    Untrained,
    WeightsFolder,
    err,
)
from skipqa.errors import MissingExtra, UserError

KEYS = "SKIPQA_API_KEYS"  # separated by commas or spaces
MIB = 1 << 20


def serve(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any that is free.")] = 8_000,
    index: Indexes = None,
    source: KnowledgeSources = None,
    preset: Preset = "pocket",
    components: ComponentsFolder = None,
    weights: WeightsFolder = None,
    untrained: Untrained = False,
    settings: Settings = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="Of each; 0: cores by processes.")] = 0,
    key_file: Annotated[
        Path | None, typer.Option(help=f"API keys, one per line. Also: {KEYS} in the environment.")
    ] = None,
    key: Annotated[
        bool, typer.Option(help="Ask for a key. Without any given, a new one is printed.")
    ] = True,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name the server goes by besides its address; `*`: any."),
    ] = None,
    allow_urls: Annotated[
        bool, typer.Option("--allow-urls", help="Fetch images that clients name by URL.")
    ] = False,
    citations: Annotated[bool, typer.Option(help="Passages in the text of answers.")] = True,
    store: Annotated[
        Path | None,
        typer.Option(help="Folder for uploaded documents. Default: in the cache folder."),
    ] = None,
    uploads: Annotated[bool, typer.Option(help="Let clients upload documents.")] = True,
    quota: Annotated[int, typer.Option(min=1, help="Of uploaded documents, in MiB.")] = 2_048,
    max_questions: Annotated[int, typer.Option(min=1, help="Taken on at a time.")] = 64,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for a question.")] = 120.0,
    grace: Annotated[int, typer.Option(min=0, help="Seconds to finish when stopped.")] = 60,
    ray: Annotated[bool, typer.Option("--ray", help="Serve by Ray: --workers replicas.")] = False,
    json: Json = False,
) -> None:
    """Answer over HTTP: the API that OpenAI's clients speak, our own, and a page at `/`.

    Needs `pip install 'skipqa[serve]'`. A key is asked for on every route but /health.

    Examples:

      skipqa serve

      skipqa serve --index default --index my-index --port 8080

      SKIPQA_API_KEYS=… skipqa serve --host 0.0.0.0 --allowed-host qa.example.org

      skipqa serve --ray --workers 4
    """
    try:
        from skipqa.serve.run import run, tell_address
        from skipqa.serve.settings import LOOPBACK, ServeSettings, new_key
    except ImportError as error:
        raise MissingExtra("skipqa serve", "serve") from error
    from skipqa import assets
    from skipqa.config import read_settings
    from skipqa.costs.environment import available_cores
    from skipqa.serve.engine import EngineSettings

    cores = available_cores()
    workers = workers or cores
    loaded = {
        "name": preset,
        "index": index,
        "components": None if components is None else str(components),
        "trained": not untrained,
        "weights": None if weights is None else str(weights),
        "overrides": read_settings(settings or ()),
        "sources": source or [],
    }
    keys = _keys(key_file) if key else ()
    if key and not keys:
        keys = (new_key(),)
    if not key and host not in LOOPBACK:
        err.print("anyone who reaches this port may ask: no key is needed", style="yellow")
    folder = None if not uploads or ray else store or assets.home() / "served"
    if ray:
        from skipqa.serve.ray import run
    served = ServeSettings(
        engine=EngineSettings(
            load=loaded,
            workers=workers,
            threads=threads or max(1, cores // workers),
            max_questions=max_questions,
            timeout_s=timeout,
        ),
        model=f"skipqa-{preset}",
        indexes=tuple(index or ()),
        keys=keys,
        hosts=(*LOOPBACK, host.lower(), *(name.lower() for name in allowed_host or ())),
        allow_urls=allow_urls,
        citations=citations,
        store=folder,
        quota_bytes=quota * MIB,
    )
    run(served, host, port, grace, partial(tell_address, served, json))


def _keys(file: Path | None) -> tuple[str, ...]:
    given = os.environ.get(KEYS, "").replace(",", " ").split()
    if file is not None:
        try:
            given += file.read_text(encoding="utf-8").split()
        except OSError as error:
            raise UserError(f"cannot read {file}: {error.strerror}") from None
    if any(len(key) < 8 or not key.isascii() for key in given):
        raise UserError("an API key has at least 8 characters, all of them ASCII")
    return tuple(given)
