"""The `skipqa` command. Each subcommand has its own file and imports heavy modules on use."""

from __future__ import annotations

import errno
import io
import sys
from typing import Annotated

import typer

from skipqa import __version__
from skipqa.cli import (
    ask,
    batch,
    costs,
    demo,
    fvqa,
    index,
    judge,
    pathvqa,
    prompted,
    report,
    score,
    serve,
    setup,
    synthetic,
    theory,
    train,
)
from skipqa.cli import eval as evaluation
from skipqa.cli.console import Json, print_json
from skipqa.data.__main__ import app as data
from skipqa.errors import UserError

# A given path cannot be read or written: a file instead of a folder, no permission, ...
NO_PLACE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)
INTERRUPTED = 130  # the exit code that typer makes of a KeyboardInterrupt

app = typer.Typer(
    name="skipqa",
    help="Answer knowledge questions about images with sparse pathways.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("ask")(ask.ask)
app.command("serve")(serve.serve)
app.command("batch")(batch.batch)
app.command("prompted")(prompted.prompted)
app.command("judge")(judge.judge)
app.command("setup")(setup.setup)
app.command("demo")(demo.demo)
app.add_typer(index.app, name="index")
app.add_typer(evaluation.app, name="eval")
app.command("score")(score.score)
data.command("fvqa")(fvqa.fvqa)
data.command("pathvqa")(pathvqa.pathvqa)
data.command("synthetic")(synthetic.synthetic)
app.add_typer(data, name="data", help="List and fetch benchmarks; build Pocket-KB.")
app.command("train")(train.train)
app.command("costs")(costs.costs)
app.add_typer(theory.app, name="theory")
app.add_typer(report.app, name="report")


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Of the command itself; its help is that of `app`."""


@app.command("version")
def version(json: Json = False) -> None:
    """Print the version.

    Example:

      skipqa version
    """
    if json:
        print_json({"version": __version__})
    else:
        print(__version__)


def run() -> None:
    """The entry point. A `UserError` is printed as one line with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without "ü" is no reason to fail
            stream.reconfigure(errors="replace")
    try:
        app()
    except UserError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            print("interrupted; run the same command again to continue", file=sys.stderr)
        raise
    except BrokenPipeError:  # `skipqa … | head`
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            print("error: no space left on the disk", file=sys.stderr)
        elif error.errno in NO_PLACE and error.filename is not None:
            print(f"error: cannot use {error.filename}: {error.strerror}", file=sys.stderr)
        else:
            raise
        sys.exit(2)
