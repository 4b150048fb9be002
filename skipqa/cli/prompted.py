"""skipqa prompted: questions about photos, answered by a vision-language model elsewhere."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skipqa.cli.console import (
    Indexes,
    Json,
    Settings,
    counting,
    err,
    out,
    plural,
    print_json,
    working,
)
from skipqa.cli.endpoint import EndpointOptions, tokens
from skipqa.cli.options import grouped
from skipqa.errors import UserError

if TYPE_CHECKING:
    from skipqa.prompted import Prompted, PromptedAnswer


@grouped
def prompted(
    server: EndpointOptions,
    photo: Annotated[Path | None, typer.Argument(help="An image file.", show_default=False)] = None,
    question: Annotated[
        str | None, typer.Argument(help="The question.", show_default=False)
    ] = None,
    index: Indexes = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="skip, or a baseline that retrieves nothing: pica or promptcap.",
            show_default="skip",
        ),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            help="Worked examples for a baseline: JSON Lines (caption, question, answer)."
        ),
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="Captions for pica: JSON Lines (image, caption).")
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(help="Ask many: JSON Lines (image, question); images are relative to it."),
    ] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Answer questions about photos with any OpenAI-compatible vision-language model.

    The model names regions, writes search queries, judges what they find in your indexes and
    answers. No weights of skipqa are loaded. The API key is read from the environment. With
    --batch, --json prints one object per line.

    Examples:

      skipqa prompted cup.jpg "What is this?" --endpoint http://127.0.0.1:8000/v1 --model qwen-vl

      skipqa prompted tree.jpg "Who planted this tree?" --index my-index --json

      skipqa prompted cup.jpg "What is this?" --key-variable OPENAI_API_KEY --set hard.regions=6

      skipqa prompted --batch questions.jsonl --json --set endpoint.concurrency=8 > answers.jsonl

      skipqa prompted cup.jpg "What is this?" --method promptcap --examples train.jsonl
    """
    from skipqa.config import merged, override, read_settings
    from skipqa.knowledge import Library
    from skipqa.knowledge.default import DEFAULT
    from skipqa.prompted import Prompted, PromptedConfig
    from skipqa.prompted.baselines import read_captions, read_examples

    if (photo is None or question is None) if batch is None else photo is not None:
        raise UserError("give a photo and a question, or --batch FILE")
    _, model = server.named()
    chosen = {} if method is None else {"method": method}
    config = override(PromptedConfig(), merged(read_settings(settings or ()), chosen))
    known = None if captions is None else read_captions(captions)
    worked = () if examples is None else read_examples(examples)
    asked = [] if batch is None else read_batch(batch)
    endpoint = server.open(config.endpoint)
    library = Library.open(index or [DEFAULT]) if config.method == "skip" else None
    system = Prompted(endpoint, model, library, config, examples=worked, describe=known)
    if batch is not None:
        ask_all(system, asked, json=json)
        return
    assert photo is not None
    assert question is not None
    with working("asking") as report:
        answer = system.answer(photo, question, report=report)
    if json:
        print_json(answer.as_dict())
    else:
        show(answer)


def read_batch(path: Path) -> list[tuple[Path, str]]:
    from skipqa.files import check_rows, read_jsonl

    rows = check_rows(str(path), read_jsonl(path), {"image": str, "question": str})
    return [(path.parent / row["image"], row["question"]) for row in rows]


def ask_all(system: Prompted, asked: list[tuple[Path, str]], *, json: bool) -> None:
    """Prints every answer; exit code 1 if a question has none."""
    from skipqa.prompted import Usage

    with counting(len(asked)) as report:
        answers = system.answer_batch(
            [image for image, _ in asked],
            [question for _, question in asked],
            progress=lambda done, total: report("questions", done, total),
        )
    for (image, _), answer in zip(asked, answers, strict=True):
        if json:
            print(json_text.dumps({"image": str(image), **answer.as_dict()}, ensure_ascii=False))
        else:
            print(f"{image}\t{answer.question}\t{answer.text or answer.error}")
    spent = sum((answer.usage for answer in answers), Usage())
    err.print(tokens(spent), highlight=False)
    if failed := sum(bool(answer.error) for answer in answers):
        err.print(f"{plural(failed, 'question')} without an answer")
        raise typer.Exit(1)


def show(answer: PromptedAnswer) -> None:
    """The answer, its evidence, and what was asked for it."""
    from rich.table import Table
    from rich.text import Text

    out.print()
    out.print(Text(answer.text or "no answer", style="bold"))
    level = "" if answer.difficulty is None else f"{answer.difficulty}, "
    grounds = "the model's own draft" if answer.route == "draft" else "from a caption"
    if answer.route == "full":
        grounds = f"rests on {plural(len(answer.evidence), 'passage')}"
    out.print(Text(f"{level}{grounds}", style="dim"))
    out.print()
    if answer.queries:
        regions = Table("salience", "region", "query", title="Regions", title_justify="left")
        for region, query in zip(answer.regions, answer.queries, strict=True):
            regions.add_row(f"{region.salience:.2f}", Text(region.name), Text(query))
        out.print(regions)
    if answer.passages:
        passages = Table("score", "", "passage", title="Passages", title_justify="left")
        for passage in answer.passages:
            score = "?" if passage.score is None else f"{passage.score:.2f}"
            verdict = "cited" if passage.cited else "read" if passage.kept else "dropped"
            passages.add_row(score, verdict, Text(f"{passage.text}  [{passage.id}]"))
        out.print(passages)
    calls = Table("call", title="What was asked, and what it cost", title_justify="left")
    for name in ("tokens in", "tokens out", "seconds", "attempts"):
        calls.add_column(name, justify="right")
    for call in answer.calls:
        about = "~" if call.usage.estimated else ""
        counts = (call.usage.prompt_tokens, call.usage.completion_tokens)
        shown = (f"{about}{count:,}" for count in counts)
        calls.add_row(call.purpose, *shown, f"{call.seconds:.1f}", str(call.attempts))
    out.print(calls)
    out.print(Text(tokens(answer.usage)))
    for line in answer.fallbacks:
        out.print(Text(line, style="dim"))
