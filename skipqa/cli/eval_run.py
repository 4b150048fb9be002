"""Asking systems from the command line: the options of a run, and the run itself.

Enters: what is asked (`EvalSet`), and the options. Leaves: a folder per system, a table or JSON.
Which questions are asked is the business of `eval.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipqa.assets import sha256_of
from skipqa.cli.console import (
    ComponentsFolder,
    Indexes,
    KnowledgeSources,
    Preset,
    Settings,
    Untrained,
    WeightsFolder,
    counting,
    err,
    plural,
    prepare_process,
    print_json,
    working,
)
from skipqa.cli.eval_table import show, show_by_type

if TYPE_CHECKING:
    from skipqa.evaluation.harness import Entrant, EvalSet
    from skipqa.evaluation.systems import Variant
    from skipqa.pipeline import Pipeline

SHOWN_BAD_ROWS = 10


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is run, with what, and where the results go."""

    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder for the results; a stopped run goes on there.")
    ]
    system: Annotated[
        list[str] | None,
        typer.Option(
            help="System to measure; may be repeated. `skipqa eval systems` lists them.",
            show_default="skip",
        ),
    ] = None
    pruner: Annotated[
        list[str] | None,
        typer.Option(
            help="Method that chooses the visual tokens, in place of the system's own; may be "
            "repeated. `skipqa eval systems` lists them."
        ),
    ] = None
    retention: Annotated[
        list[float] | None,
        typer.Option(
            help="Fraction of visual tokens to keep, such as 0.25; default: the preset's; may be "
            "repeated."
        ),
    ] = None
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask only this many questions, drawn at random.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Number of processes; with several, latency is not measured."),
    ] = 1
    index: Indexes = None
    source: KnowledgeSources = None
    components: ComponentsFolder = None
    preset: Preset = "pocket"
    weights: WeightsFolder = None
    untrained: Untrained = False
    settings: Settings = None
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False

    def variants(self) -> list[Variant]:
        from skipqa.evaluation import systems

        return systems.variants(self.system or ["skip"], self.pruner or (), self.retention or ())

    def pipeline_loader(self) -> Callable[..., Pipeline]:
        """Loads the pipeline that the systems are made of, here or in another process."""
        from skipqa.config import read_settings
        from skipqa.pipeline import load

        return partial(
            load,
            self.preset,
            index=self.index,
            components=self.components,
            trained=not self.untrained,
            weights=self.weights,
            overrides=read_settings(self.settings or ()),
            sources=self.source or (),
        )


def run(
    asked: EvalSet, variants: Sequence[Variant], about: Mapping[str, Any], options: RunOptions
) -> list[Entrant]:
    """Ask, write and show; `about` is what else an answer and its score depend on."""
    from skipqa.evaluation import harness, records, systems

    load, seed, jobs = options.pipeline_loader(), options.seed, options.jobs
    prepare_process()
    with working("reading the models") as report:
        base = load(report=report)
        shared = {
            "seed": seed,
            **about,
            "index": [
                {"name": name, "passages": len(one)} for name, one in base.library.indexes.items()
            ],
            "components": base.components.checksums(),
            **({"sources": list(base.sources.identities)} if base.sources else {}),
        }
        pipelines = {variant: systems.build(variant, base, seed) for variant in variants}
        out_folder = options.out_folder
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
            records.claim_folder(entrant.folder, entrant.run)
        if jobs == 1:
            workers = None
            for pipeline in pipelines.values():
                systems.warm_up(pipeline)
        else:
            workers = harness.Workers(jobs, partial(_build, load, variants, seed, jobs))
            systems.warm_up(base)  # what has to be converted is so once, not by each of them
    who = variants[0].name if len(variants) == 1 else f"{len(variants)} systems"
    with counting() as bar:
        pace = _Pace(lambda done, total: bar(f"asking {who}", done, total))
        summaries = harness.evaluate(entrants, asked, pace, workers)
    err.print(pace.told(jobs), highlight=False)
    _warn(list(dict.fromkeys(line for summary in summaries for line in summary["bad_rows"])))
    if options.json:
        print_json(summaries if len(variants) > 1 else summaries[0])
    else:
        show({variant.name: summary for variant, summary in zip(variants, summaries, strict=True)})
        _show_by_type(asked, variants, entrants)
    return entrants


class _Pace:
    """Shows progress, and tells how fast this command was; what it found answered does not count.

    A question counts once all systems have answered it.
    """

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self._show, self._started = show, time.perf_counter()
        self._before: int | None = None
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        self._before = done if self._before is None else self._before
        self._done = done
        self._show(done, total)

    def told(self, jobs: int) -> str:
        asked, seconds = self._done - (self._before or 0), time.perf_counter() - self._started
        if not asked:
            return "all questions were answered before"
        took = f"{plural(asked, 'question')} in {seconds:,.0f} s with {plural(jobs, 'job')}"
        return f"{took}: {asked / seconds:.2f} questions per second"


def _show_by_type(asked: EvalSet, variants: Sequence[Variant], entrants: Sequence[Entrant]) -> None:
    if all(example.type is None for example in asked.examples):
        return
    from skipqa.evaluation.reports.by_type import rows_by_type
    from skipqa.evaluation.reports.runs import read_run

    ids = {example.id for example in asked.examples}  # the folder may hold answers to others
    show_by_type(
        *rows_by_type(
            {
                variant.name: read_run(entrant.folder).only(lambda r: r["question_id"] in ids)
                for variant, entrant in zip(variants, entrants, strict=True)
            }
        )
    )


def fingerprint(files: Sequence[Path]) -> dict[str, str]:
    """The name of the first, as in okvqa/val.jsonl, and a checksum of all."""
    sums = [sha256_of(path) for path in files]
    whole = sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
    return {"file": f"{files[0].absolute().parent.name}/{files[0].name}", "sha256": whole}


def _build(
    load: Callable[[], Pipeline], variants: Sequence[Variant], seed: int, jobs: int
) -> list[Pipeline]:
    """The systems of one process of several, which has its part of the cores."""
    import torch

    from skipqa.costs.environment import available_cores
    from skipqa.evaluation import systems

    prepare_process()
    torch.set_num_threads(max(1, available_cores() // jobs))
    base = load()
    return [systems.build(variant, base, seed) for variant in variants]


def _warn(bad: list[str]) -> None:
    if not bad:
        return
    lines = [f"skipped rows: {len(bad)}", *bad[:SHOWN_BAD_ROWS]]
    if len(bad) > SHOWN_BAD_ROWS:
        lines.append("the others are in summary.json")
    err.print("\n".join(lines), highlight=False, soft_wrap=True)
