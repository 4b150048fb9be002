"""skipqa eval: a system over a file of questions, measured."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from skipqa.cli.console import counting, err, out, prepare_process, print_json, working

SHOWN_BAD_ROWS = 10

app = typer.Typer(no_args_is_help=True, help="Measure a system on a file of questions.")


@app.callback()
def group() -> None:
    """Measure a system on a file of questions."""


@app.command("vqa")
def vqa(
    questions: Annotated[
        Path, typer.Option(help="JSON Lines: question_id, image, question, answers or answer.")
    ],
    images: Annotated[Path, typer.Option(help="The photos: a zip or a folder.")],
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder for the results; a stopped run goes on there.")
    ],
    system: Annotated[str, typer.Option(help="Which system; a wrong name lists all.")] = "skip",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask only so many, drawn by the seed.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of every draw.")] = 0,
    index: Annotated[
        str | None,
        typer.Option(help="An index: a folder or ENGINE:folder; the default corpus otherwise."),
    ] = None,
    components: Annotated[
        Path | None, typer.Option(help="A folder of trained components; none by default.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Which models and budgets.")] = "pocket",
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Ask every question, and write predictions.jsonl and summary.json.

    Examples:

      skipqa eval vqa --questions val.jsonl --images val.zip --out runs/skip

      skipqa eval vqa --questions val.jsonl --images photos --out runs/dense --system dense
    """
    from skipqa.evaluation import harness, systems
    from skipqa.pipeline import load

    systems.check_name(system)
    photos = harness.Photos(images)
    rows, bad = harness.read_rows(questions, photos)
    rows = harness.draw(rows, limit, seed)
    prepare_process()
    with working("reading the models") as report:
        base = load(preset, index=index, components=components, report=report)
        pipeline = systems.build(system, base, seed)
        run = {
            "system": system,
            "seed": seed,
            "questions": {"file": questions.name, "sha256": _sha256(questions)},
            "index": {"name": base.index.folder.name, "passages": len(base.index)},
            "components": _checksums(components),
            "config": dataclasses.asdict(pipeline.config),
        }
        harness.claim(out_folder, run)  # before the networks are read: a wrong folder fails fast
        systems.warm_up(pipeline)
    with counting() as bar:
        summary = harness.evaluate(
            pipeline,
            rows,
            photos,
            out_folder,
            run,
            bad,
            lambda done, total: bar(f"asking {system}", done, total),
        )
    _warn(summary["bad_rows"])
    if json:
        print_json(summary)
    else:
        show(summary)


def show(summary: Mapping[str, Any]) -> None:
    from rich.table import Table

    accuracy, latency = summary["accuracy"], summary["latency_ms"]
    low, high = 100 * accuracy["low"], 100 * accuracy["high"]
    rows = {
        "questions": f"{summary['num_questions']:,}",
        "accuracy %": f"{100 * accuracy['mean']:.1f} ({low:.1f} to {high:.1f})",
        "fast path %": f"{100 * summary['fast_path_rate']:.1f}",
        "V', K', edges": ", ".join(
            f"{summary[f'{name}_mean']:.1f}" for name in ("tokens", "passages", "edges")
        ),
        "GFLOPs": f"{summary['flops_mean'] / 1e9:.2f}",
        "latency p50, p95 ms": f"{latency['p50']:.0f}, {latency['p95']:.0f}",
    }
    if (peak := summary["peak_memory_bytes"]) is not None:
        rows["peak memory GB"] = f"{peak / 1e9:.2f}"
    table = Table("", summary["system"])
    for name, value in rows.items():
        table.add_row(name, value)
    for category, interval in summary["accuracy_by_category"].items():
        table.add_row(
            f"accuracy %, category {category}",
            f"{100 * interval['mean']:.1f} of {interval['count']}",
        )
    out.print(table)


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
    return {path.stem: _sha256(path) for path in sorted(components.glob("*.safetensors"))}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
