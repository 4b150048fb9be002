"""skipqa eval: systems over a file of questions, measured."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipqa.assets import sha256_of
from skipqa.cli.console import (
    ComponentsFolder,
    Index,
    Preset,
    Settings,
    Untrained,
    WeightsFolder,
    counting,
    err,
    out,
    prepare_process,
    print_json,
    working,
)

if TYPE_CHECKING:
    from skipqa.evaluation.systems import Variant
    from skipqa.pipeline import Pipeline

SHOWN_BAD_ROWS = 10

app = typer.Typer(no_args_is_help=True, help="Measure systems on a file of questions.")


@app.callback()
def group() -> None:
    """Measure systems on a file of questions."""


@app.command("vqa")
def vqa(
    questions: Annotated[
        Path, typer.Option(help="JSON Lines: question_id, image, question, answers or answer.")
    ],
    images: Annotated[Path, typer.Option(help="The photos: a zip or a folder.")],
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder for the results; a stopped run goes on there.")
    ],
    system: Annotated[
        list[str],
        typer.Option(help="System to measure; may be repeated. `skipqa eval systems` lists them."),
    ] = ["skip"],  # noqa: B006
    pruner: Annotated[
        list[str] | None,
        typer.Option(
            help="Method that chooses the visual tokens, in place of the system's own; may be "
            "repeated. `skipqa eval systems` lists them."
        ),
    ] = None,
    retention: Annotated[
        list[float] | None,
        typer.Option(
            help="Share of visual tokens to keep, such as 0.25; default: the preset's; may be "
            "repeated."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask only this many questions, drawn at random.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Number of processes; with several, latency is not measured."),
    ] = 1,
    index: Index = None,
    components: ComponentsFolder = None,
    preset: Preset = "pocket",
    weights: WeightsFolder = None,
    untrained: Untrained = False,
    settings: Settings = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Ask every question, and write predictions.jsonl and summary.json.

    Several systems are asked in turn, question by question; each has its own folder under --out.

    Examples:

      skipqa eval vqa --questions val.jsonl --images val.zip --out runs/skip

      skipqa eval vqa --questions val.jsonl --images photos --out runs --system skip --system dense

      skipqa eval vqa --questions val.jsonl --images photos --out runs --pruner tome --pruner random
      --retention 0.11 --retention 0.25

      skipqa eval vqa --questions val.jsonl --images photos --out runs --set regions.proposals=boxes

      skipqa eval vqa --questions val.jsonl --images val.zip --out runs/skip --jobs 16
    """
    from skipqa.config import read_settings
    from skipqa.evaluation import harness, systems
    from skipqa.pipeline import load

    variants = systems.variants(system, pruner or (), retention or ())
    photos = harness.Photos(images)
    rows, bad = harness.read_rows(questions, photos)
    rows = harness.draw(rows, limit, seed)
    read = partial(
        load,
        preset,
        index=index,
        components=components,
        trained=not untrained,
        weights=weights,
        overrides=read_settings(settings or ()),
    )
    prepare_process()
    with working("reading the models") as report:
        base = read(report=report)
        shared = {
            "seed": seed,
            "questions": {
                "file": f"{questions.absolute().parent.name}/{questions.name}",  # okvqa/val.jsonl
                "sha256": sha256_of(questions),
            },
            "index": {"name": base.index.folder.name, "passages": len(base.index)},
            "components": _checksums(base.components.folder),
        }
        pipelines = {variant: systems.build(variant, base, seed) for variant in variants}
        entrants = [
            harness.Entrant(
                pipeline,
                out_folder / variant.name if len(variants) > 1 else out_folder,
                {
                    **dataclasses.asdict(variant),
                    "retention": variant.fraction_kept(base.config),
                    **shared,
                    "config": dataclasses.asdict(pipeline.config),
                },
            )
            for variant, pipeline in pipelines.items()
        ]
        for entrant in entrants:  # before the networks are read: a wrong folder fails fast
            harness.claim(entrant.folder, entrant.run)
        if jobs == 1:
            workers = None
            for pipeline in pipelines.values():
                systems.warm_up(pipeline)
        else:
            workers = harness.Workers(jobs, partial(_build, read, variants, seed, jobs))
            systems.warm_up(base)  # what has to be converted is so once, not by each of them
    who = variants[0].name if len(variants) == 1 else f"{len(variants)} systems"
    with counting() as bar:
        summaries = harness.evaluate(
            entrants,
            rows,
            photos,
            bad,
            lambda done, total: bar(f"asking {who}", done, total),
            workers,
        )
    _warn(list(dict.fromkeys(line for summary in summaries for line in summary["bad_rows"])))
    if json:
        print_json(summaries if len(variants) > 1 else summaries[0])
    else:
        show({variant.name: summary for variant, summary in zip(variants, summaries, strict=True)})


def _build(
    read: Callable[[], Pipeline], variants: Sequence[Variant], seed: int, jobs: int
) -> list[Pipeline]:
    """The systems of one process of several, which has its share of the cores."""
    import torch

    from skipqa.costs.environment import available_cores
    from skipqa.evaluation import systems

    prepare_process()
    torch.set_num_threads(max(1, available_cores() // jobs))
    base = read()
    return [systems.build(variant, base, seed) for variant in variants]


@app.command("systems")
def list_systems(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """What --system and --pruner may name.

    Examples:

      skipqa eval systems
    """
    from rich.table import Table

    from skipqa.evaluation import systems

    kinds: dict[str, Mapping[str, Any]] = {"--system": systems.SYSTEMS, "--pruner": systems.PRUNERS}
    found = {
        option: {name: inspect.getdoc(make) or "" for name, make in named.items()}
        for option, named in kinds.items()
    }
    if json:
        print_json(found)
        return
    for option, named in found.items():
        table = Table(option, "", show_lines=True)
        for name, what in named.items():
            table.add_row(name, " ".join(what.split()))
        out.print(table)


def show(summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """One system with its categories and subsets, or several below each other."""
    from rich import box
    from rich.table import Column, Table

    if len(summaries) == 1:
        ((system, summary),) = summaries.items()
        table = Table("", system)
        for label, value in (_figures(summary) | _parts(summary)).items():
            table.add_row(label, value)
    else:
        figures = {system: _figures(summary) for system, summary in summaries.items()}
        named = dict.fromkeys(name for row in figures.values() for name in row)
        columns = [name for name in named if name not in ("asked", "edges")]  # a narrow screen
        first = Column("", min_width=max(map(len, figures)))
        table = Table(first, *columns, box=box.SIMPLE, padding=0, collapse_padding=True)
        for system, row in figures.items():
            table.add_row(system, *(row.get(name, "") for name in columns))
    out.print(table)


def _figures(summary: Mapping[str, Any]) -> dict[str, str]:
    def percent(interval: Mapping[str, Any]) -> str:
        low, high = 100 * interval["low"], 100 * interval["high"]
        return f"{100 * interval['mean']:.1f} ({low:.1f} to {high:.1f})"

    rows = {"asked": f"{summary['num_questions']:,}"}
    for label, name in (
        ("accuracy %", "accuracy"),
        ("recall@4 %", "recall@4"),
        ("recall of kept %", "recall_kept"),
    ):
        if (interval := summary[name]) is not None:
            rows[label] = percent(interval)
    rows |= {
        "fast %": f"{100 * summary['fast_path_rate']:.1f}",
        "V'": f"{summary['tokens_mean']:.1f}",
        "K'": f"{summary['passages_mean']:.1f}",
        "edges": f"{summary['edges_mean']:,.0f}",
        "GFLOPs": f"{summary['flops_mean'] / 1e9:.1f}",
    }
    if (latency := summary["latency_ms"]) is not None:
        rows |= {f"{name} ms": f"{ms:.0f}" for name, ms in latency.items()}
    if (peak := summary["peak_memory_bytes"]) is not None:
        rows["peak GB"] = f"{peak / 1e9:.2f}"
    return rows


def _parts(summary: Mapping[str, Any]) -> dict[str, str]:
    """Accuracy and recall by category and subset."""
    kinds = (("accuracy", "category"), ("accuracy", "subset"), ("recall", "subset"))
    return {
        f"{of} %, {by} {name}": f"{100 * interval['mean']:.1f} of {interval['count']:,}"
        for of, by in kinds
        for name, interval in summary[f"{of}_by_{by}"].items()
    }


def _warn(bad: list[str]) -> None:
    if not bad:
        return
    lines = [f"skipped rows: {len(bad)}", *bad[:SHOWN_BAD_ROWS]]
    if len(bad) > SHOWN_BAD_ROWS:
        lines.append("the others are in summary.json")
    err.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _checksums(components: Path | None) -> dict[str, str]:
    if components is None:
        return {}
    return {path.stem: sha256_of(path) for path in sorted(components.glob("*.safetensors"))}
