"""skipqa ask: one photo, one question, an answer with its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    out,
    prepare_process,
    print_json,
    working,
)

if TYPE_CHECKING:
    from skipqa.answer import Answer


def ask(
    photo: Annotated[Path, typer.Argument(help="An image file.", show_default=False)],
    question: Annotated[str, typer.Argument(help="The question.", show_default=False)],
    index: Indexes = None,
    source: KnowledgeSources = None,
    components: ComponentsFolder = None,
    preset: Preset = "pocket",
    weights: WeightsFolder = None,
    untrained: Untrained = False,
    settings: Settings = None,
    draft: Annotated[bool, typer.Option(help="Answer easy questions without searching.")] = True,
    style: Annotated[
        str | None,
        typer.Option(
            help="short, or sentence: with the numbers of the passages it rests on, so every "
            "question is looked up.",
            show_default="short",
        ),
    ] = None,
    explain: Annotated[
        Path | None, typer.Option(help="Draw how the answer was found into FILE.png or FILE.html.")
    ] = None,
    json: Json = False,
) -> None:
    """Answer a question about a photo from the passages of one index or several.

    Examples:

      skipqa ask cup.jpg "How is this drink brewed?"

      skipqa ask dog.jpg "Which country is this dog from?" --explain trace.html

      skipqa ask cup.jpg "What is this?" --json

      skipqa ask tree.jpg "Who planted this tree?" --index my-index

      skipqa ask tree.jpg "Who planted this tree?" --index default --index my-index

      skipqa ask cat.jpg "Where is this cat from?" --source wikidata

      skipqa ask cup.jpg "How is this drink brewed?" --set regions.proposals=boxes

      skipqa ask cup.jpg "How is this drink brewed?" --preset desk --style sentence
    """
    from skipqa.config import merged, read_settings
    from skipqa.explain import check_format
    from skipqa.pipeline import load

    if explain is not None:
        check_format(explain)
    overrides = read_settings(settings or ())
    if style is not None:
        overrides = merged(overrides, {"decode": {"style": style}})
    prepare_process()
    with working("reading the models") as report:
        pipeline = load(
            preset,
            index=index,
            components=components,
            trained=not untrained,
            weights=weights,
            overrides=overrides,
            sources=source or (),
            report=report,
        )
        short = pipeline.config.decode.style == "short"  # a draft has no passage to refer to
        answer = pipeline.answer(photo, question, fast_path=draft and short)
    if json:
        print_json(answer.as_dict())
    else:
        show(answer)
    if explain is not None:  # last: a full disk does not take the answer with it
        from skipqa.explain import draw

        draw(answer, pipeline.backbone.concepts, explain)
        err.print(f"trace drawn into {explain}", highlight=False, soft_wrap=True)


def show(answer: Answer) -> None:
    """The answer, what it rests on, what was kept at each stage and what that cost."""
    from rich.table import Table
    from rich.text import Text

    out.print()
    out.print(Text(answer.text, style="bold"))
    out.print(Text(answer.certainty, style="dim"))
    out.print()
    if answer.evidence:
        columns = ("", "score", "region", "evidence")
        evidence = Table(*columns, title="Evidence", title_justify="left")
        for number, e in enumerate(answer.evidence, 1):
            told = e.id if e.origin is None else f"{e.origin.address}, asked {e.origin.asked}"
            row = (str(number), f"{e.score:.2f}", str(e.region + 1), Text(f"{e.text}  [{told}]"))
            evidence.add_row(*row)
        out.print(evidence)
    stages = Table("stage", title="What was kept, and what it cost", title_justify="left")
    for name in ("kept", "dropped", "ms", "GFLOPs"):
        stages.add_column(name, justify="right")
    stages.add_column("why")
    for s in answer.trace.stages:
        counts = ("" if n is None else str(n) for n in (s.kept, s.dropped))
        stages.add_row(s.name, *counts, f"{s.ms:.0f}", f"{s.flops / 1e9:.2f}", Text(s.why))
    total = answer.trace
    stages.add_section()
    stages.add_row("total", "", "", f"{total.latency_ms:.0f}", f"{total.flops / 1e9:.2f}")
    out.print(stages)
