"""skipqa eval: systems over a file of questions or a benchmark, measured."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from skipqa.cli.console import err, out, print_json
from skipqa.cli.eval_run import RunOptions, fingerprint, run
from skipqa.cli.options import declared, grouped, option
from skipqa.errors import UserError, choices
from skipqa.tasks import TASKS, Example, Task

app = typer.Typer(no_args_is_help=True, help="Measure systems on questions about photos.")


@app.callback()
def group() -> None:
    """Measure systems on a file of questions or on a benchmark."""


Types = Annotated[
    Path | None,
    typer.Option(
        help="What each question needs, in JSON Lines: question_id, type. Accuracies and "
        "differences are then also given by type."
    ),
]


@dataclass(frozen=True, slots=True)
class OfficialFiles:
    data: Annotated[Path, typer.Option(help="Folder of the official files.")]
    split: str  # declared for each task, with its own default
    images: Annotated[
        Path | None,
        typer.Option(
            help="The photos: a zip or a folder in the official layout; default: images/ in the "
            "folder of the data (pocket-kb: photos.zip; fvqa: SPLIT.zip)."
        ),
    ] = None
    types: Types = None
    subset: Annotated[
        str | None, typer.Option(help="Ask only questions of this subset, such as crowded.")
    ] = None
    without: Annotated[
        str | None, typer.Option(help="Ask only questions that are not in this subset.")
    ] = None

    def chosen(self, examples: Sequence[Example]) -> list[Example]:
        """Those of the subset, and not of the one that is left out."""
        known = {name for example in examples for name in example.subsets}
        for name in (self.subset, self.without):
            if name is not None and name not in known:
                raise UserError(
                    f"no question is in a subset {name!r}; there is {choices(name, sorted(known))}"
                )
        return [
            example
            for example in examples
            if (self.subset is None or self.subset in example.subsets)
            and self.without not in example.subsets
        ]

    @property
    def part(self) -> str:
        """What is asked of the file, in words; empty for all."""
        left_out = "" if self.without is None else f"not {self.without}"
        return ", ".join(filter(None, (self.subset, left_out)))


@app.command("vqa")
@grouped
def vqa(
    questions: Annotated[
        Path, typer.Option(help="JSON Lines: question_id, image, question, answers or answer.")
    ],
    images: Annotated[Path, typer.Option(help="The photos: a zip or a folder.")],
    options: RunOptions,
    types: Types = None,
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

      skipqa eval vqa --questions val.jsonl --types val_types.jsonl --images val.zip --out runs
      --system skip --system dense --system no-retrieval

      skipqa eval vqa --questions val.jsonl --images val.zip --out runs/skip --index default
      --index my-index
    """
    from skipqa.evaluation import harness
    from skipqa.tasks import jsonl
    from skipqa.tasks.photos import Photos

    variants = options.variants()
    photos = Photos(images)
    examples, bad = jsonl.read(questions, photos)
    drawn = harness.draw(_typed(examples, types), options.limit, options.seed)
    asked = harness.EvalSet(drawn, photos, jsonl.JSONL, bad)
    run(asked, variants, {"questions": fingerprint([questions]), **_about(types)}, options)


def _typed(examples: list[Example], types: Path | None) -> list[Example]:
    """With the types of the file, if there is one; the questions it lacks are reported."""
    from skipqa.tasks.question_types import with_types

    if types is None:
        return examples
    typed, lacking = with_types(examples, types)
    if lacking:
        err.print(f"note: {lacking}", highlight=False, soft_wrap=True)
    return typed


def _about(types: Path | None) -> dict[str, Any]:
    """The types are in every record, so a run goes on with the same types only."""
    return {} if types is None else {"types": fingerprint([types])}


BENCHMARK_HELP = """Ask the questions of {title} and score the answers by its official rule.

Reads the official files in --data. As `skipqa eval vqa`, it writes predictions.jsonl and
summary.json, with the official scores in percent; official/ has the questions that were asked and
the predictions, in the official layouts.

Examples:

  skipqa eval {name} --data {name} --split {split} --out runs/{name}

  skipqa eval {name} --data {name} --images {images} --out runs --system skip --system dense
"""


def _benchmark(task: Task) -> Callable[..., None]:
    def ask(files: OfficialFiles, options: RunOptions, **own: Any) -> None:
        _ask(task.with_options(**own), files, options)

    split = option("split", str, "Split to ask.", task.default_split)
    own = (option(o.name, o.kind, f"{o.what}.", o.default) for o in declared(task.with_options))
    return grouped(ask, (split, *own))


def _help(task: Task) -> str:
    images = task.images(Path(task.name), task.default_split)
    return BENCHMARK_HELP.format(
        name=task.name, title=task.title, split=task.default_split, images=images
    )


for _task in TASKS.values():
    if _task.has_command:
        app.command(_task.name, help=_help(_task))(_benchmark(_task))


def _ask(task: Task, files: OfficialFiles, options: RunOptions) -> None:
    from skipqa.evaluation import harness
    from skipqa.evaluation.records import prediction_of, read_back
    from skipqa.tasks.photos import Photos, with_photos

    variants = options.variants()
    images = files.images or task.images(files.data, files.split)
    every = task.load(files.data, files.split, images)
    photos = Photos(images)
    examples, bad = with_photos(every, photos)
    typed = _typed(files.chosen(examples), files.types)
    drawn = harness.draw(typed, options.limit, options.seed)
    for example in drawn:
        task.check(example)
    about = {
        "task": task.name,
        "questions": fingerprint([p for p in task.files(files.data, files.split) if p.is_file()]),
        **_about(files.types),
        **({"subset": files.part} if files.part else {}),
    }
    for entrant in run(harness.EvalSet(drawn, photos, task, bad), variants, about, options):
        records = read_back(entrant.folder / "predictions.jsonl")
        predictions = {e.id: prediction_of(records[e.id]) for e in drawn if e.id in records}
        official = entrant.folder / "official"
        task.write([e for e in drawn if e.id in records], official, files.split)
        task.write_predictions(predictions, official / task.predictions_name)


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
        flag: {name: inspect.getdoc(make) or "" for name, make in named.items()}
        for flag, named in kinds.items()
    }
    if json:
        print_json(found)
        return
    for flag, named in found.items():
        table = Table(flag, "", show_lines=True)
        for name, what in named.items():
            table.add_row(name, " ".join(what.split()))
        out.print(table)
