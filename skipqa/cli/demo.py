"""skipqa demo: runs the setup and asks one question about a photo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from skipqa.cli.console import Json, err, out, print_json, working

QUESTION = "How is this drink brewed?"


def demo(
    folder: Annotated[Path, typer.Option(help="Where to write the photo and the trace.")] = Path(
        "demo"
    ),
    json: Json = False,
) -> None:
    """Run the setup, then ask how the drink in a photo of a cup is brewed.

    Example:

      skipqa demo --folder demo
    """
    from skipqa import assets
    from skipqa.cli.ask import show
    from skipqa.cli.setup import prepare
    from skipqa.explain import draw
    from skipqa.pipeline import load

    with working("checking the demo photo") as report:
        photo = assets.fetch(assets.DEMO_PHOTO, report) / "coffee.png"
    prepare()
    with working("answering") as report:
        pipeline = load(report=report)
        answer = pipeline.answer(photo, QUESTION)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "coffee.png").write_bytes(photo.read_bytes())
    for name in ("trace.png", "trace.html"):
        draw(answer, pipeline.backbone.concepts, folder / name)
    if json:
        print_json(answer.as_dict())
        return
    where = folder / "coffee.png"
    out.print(Text.assemble("\n", ("Q.", "bold"), f" {QUESTION}   (a photo of a cup, {where})"))
    show(answer)
    err.print(f"\nThe trace as an image: {folder / 'trace.png'} and {folder / 'trace.html'}")
    err.print('Now try your own: skipqa ask PHOTO "QUESTION"')
