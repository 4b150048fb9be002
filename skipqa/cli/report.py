"""skipqa report: finished runs as tables, figures, verdicts on the paper's claims, and failures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skipqa.cli.console import (
    Indexes,
    Json,
    KnowledgeSources,
    Settings,
    Untrained,
    counting,
    err,
    out,
    plural,
    prepare_process,
    print_json,
    working,
)
from skipqa.cli.eval_run import fingerprint
from skipqa.cli.options import grouped
from skipqa.errors import UserError, choices
from skipqa.tasks import TASKS

if TYPE_CHECKING:
    from skipqa.evaluation.reports.runs import Run
    from skipqa.tasks import Example
    from skipqa.tasks.photos import Photos

app = typer.Typer(no_args_is_help=True, help="Turn finished runs into reports.")

RESULTS = Path("benchmarks/results")
RUNS = Path("benchmarks/runs")
Results = Annotated[Path, typer.Option(help="Folder with the benchmarks' results files.")]


@app.command("runs")
def runs(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders that `skipqa eval` wrote.", show_default=False),
    ],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for report.md and figures.")],
    reference: Annotated[
        str | None,
        typer.Option(help="System to compare with; default: dense, else that of the first run."),
    ] = None,
    types: Annotated[
        Path | None,
        typer.Option(help="Types of the questions, as for `skipqa eval`, if the runs have none."),
    ] = None,
    json: Json = False,
) -> None:
    """Tables and figures from finished runs.

    Two runs are compared on the questions that both answered; each file of questions has its own
    section. Figures need the extra `plot`.

    Examples:

      skipqa report runs runs/skip runs/dense runs/no-retrieval --out report

      skipqa report runs runs/* --out report --reference no-retrieval

      skipqa report runs runs/* --out report --types val_types.jsonl
    """
    with working("reading the runs"):
        from skipqa.evaluation.reports.runs import read_runs
        from skipqa.evaluation.reports.runs_report import write
        from skipqa.tasks.question_types import read_types

        sets = read_runs(folders, reference, {} if types is None else read_types(types))
        figures = write(sets, out_folder)
    if figures.missing:
        err.print(f"no figures: {figures.missing}", highlight=False, soft_wrap=True)
    report = out_folder / "report.md"
    if json:
        print_json({"report": str(report), "figures": figures.files})
    else:
        err.print(f"written: {report} and {plural(len(figures.files) // 2, 'figure')}")


@app.command("claims")
def claims(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs.", show_default="all in benchmarks/runs"),
    ] = None,
    results: Results = RESULTS,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="A page in Markdown to write as well.")
    ] = None,
    json: Json = False,
) -> None:
    """The paper's claims, each judged once from the strongest measurement of what ships.

    Examples:

      skipqa report claims

      skipqa report claims runs/okvqa runs/pocket-kb --results benchmarks/results --out claims.md
    """
    if not folders and not RUNS.is_dir():
        raise UserError(f"no runs in {RUNS}: name their folders, or run this in the repository")
    with working("reading the runs"):
        from skipqa.claims.registry import gather, judge, page

        judged = judge(*gather(folders or sorted(RUNS.glob("*")), results))
    if out_file is not None:
        out_file.write_text(f"# The paper's claims\n\n{page(judged)}", encoding="utf-8")
        err.print(f"written: {out_file}")
    if json:
        claims = [
            {
                "number": one.number,
                "verdict": str(one.finding.verdict),
                "measured": one.finding.said,
                "questions": one.finding.count,
                "source": one.finding.source,
            }
            for one in judged
        ]
        print_json({"claims": claims})
        return
    from rich.table import Table

    table = Table("", "measured here", "verdict", title="The paper's claims")
    for one in judged:
        table.add_row(str(one.number), one.finding.said, str(one.finding.verdict))
    out.print(table)


@app.command("coverage")
def coverage(
    asked: Annotated[
        Path,
        typer.Argument(
            help="A folder that `skipqa eval` wrote, or a file of names and questions: one per "
            "line, or JSON Lines with `name` or `question`.",
            show_default=False,
        ),
    ],
    index: Indexes = None,
    covered: Annotated[
        int | None,
        typer.Option(
            min=1, help="Passages that make a thing well covered.", show_default="consult.covered"
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many things to show at most.")] = 20,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Write all of them into FILE.jsonl or FILE.csv.")
    ] = None,
    json: Json = False,
) -> None:
    """Which things to write passages about first: asked about, and hardly in the indexes.

    Ranked by what a passage about each is expected to gain: how often it was asked about, how
    unsure the answers were, and how little the indexes have. No labels are read.

    Examples:

      skipqa report coverage runs/skip --index default --index my-index --out thin.jsonl

      skipqa report coverage questions.txt --index my-index --json
    """
    from skipqa.config import ConsultConfig
    from skipqa.evaluation.reports import thin_coverage
    from skipqa.evaluation.reports.runs import read_run
    from skipqa.knowledge.default import DEFAULT
    from skipqa.knowledge.library import Library

    if out_file is not None:
        thin_coverage.check_format(out_file)
    with working("reading the titles of the indexes"):
        passages = Library.open(index or [DEFAULT]).coverage.passages
        if asked.is_dir():
            mentions = thin_coverage.of_records(read_run(asked).records.values())
        else:
            mentions = thin_coverage.of_file(asked, lambda title: passages(title) > 0)
        least = ConsultConfig().covered if covered is None else covered
        things = thin_coverage.thin_things(mentions, passages, least)
    if out_file is not None:
        thin_coverage.write(things, out_file)
        err.print(f"written: {out_file}", highlight=False)
    if json:
        print_json([asdict(thing) for thing in things])
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("thing", title=f"{plural(len(things), 'thing')} with thin coverage")
    for name in ("asked", "doubt", "passages", "expected gain"):
        table.add_column(name, justify="right")
    for thing in things[:count]:
        numbers = (f"{thing.asked:.1f}", f"{thing.doubt:.2f}", str(thing.passages))
        table.add_row(Text(thing.name), *numbers, f"{thing.expected_gain:.2f}")
    out.print(table)


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions of a run: a file in JSON Lines, or the official files of a task."""

    questions: Annotated[
        Path | None, typer.Option(help="The questions of a run of `skipqa eval vqa`.")
    ] = None
    images: Annotated[
        Path | None,
        typer.Option(help="The photos: a zip or a folder; with --data as in `skipqa eval`."),
    ] = None
    data: Annotated[
        Path | None, typer.Option(help="Folder of the official files of any other run.")
    ] = None
    split: Annotated[
        str | None, typer.Option(help="The split of --data; default: as in `skipqa eval`.")
    ] = None
    task: Annotated[
        str | None, typer.Option(help="The task of --data; default: the one that the run names.")
    ] = None

    def read(self, run: Run) -> tuple[list[Example], Photos]:
        """Refuses files that are not those of the run."""
        match self.questions, self.data:
            case Path() as questions, None:
                rows, photos, files = self._json_lines(questions)
            case None, Path() as data:
                rows, photos, files = self._official(data, run)
            case _:
                raise UserError("give either --questions and --images, or --data")
        if run.about["questions"].get("sha256") != fingerprint(files)["sha256"]:
            raise UserError(f"{files[0]} is not the file of questions that {run.folder} answered")
        return rows, photos

    def _json_lines(self, questions: Path) -> tuple[list[Example], Photos, list[Path]]:
        from skipqa.tasks import jsonl
        from skipqa.tasks.photos import Photos

        if self.images is None:
            raise UserError("--questions needs --images")
        photos = Photos(self.images)
        rows, _ = jsonl.read(questions, photos)
        return rows, photos, [questions]

    def _official(self, data: Path, run: Run) -> tuple[list[Example], Photos, list[Path]]:
        from skipqa.tasks.photos import Photos

        name = self.task or run.task
        if name not in TASKS:
            told = f"unknown task {name!r}" if name else f"{run.folder} names no task"
            raise UserError(f"{told}: give --task, one of {choices(name, TASKS)}")
        task = TASKS[name]
        split = self.split or task.default_split
        images = self.images or task.images(data, split)
        rows = task.load(data, split, images)
        files = [path for path in task.files(data, split) if path.is_file()]
        return rows, Photos(images), files


@app.command("failures")
@grouped
def failures(
    folder: Annotated[Path, typer.Argument(help="A folder that `skipqa eval` wrote.")],
    asked: Questions,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="A page with pictures to write, an .html file.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many failures to show at most.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    index: Annotated[
        list[str] | None,
        typer.Option(
            help="The index that the run used, repeated if it used several.", show_default="default"
        ),
    ] = None,
    source: KnowledgeSources = None,
    components: Annotated[
        Path | None,
        typer.Option(help="Trained components that the run used; default: the preset's own."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Published models that the run used, if any.")
    ] = None,
    untrained: Untrained = False,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Wrong answers by what went wrong: a table and, with --out, a page of pictures and traces.

    For the page, errors are drawn by bucket and category, and asked again for their traces: give
    the same index, components and settings as to the run.

    Examples:

      skipqa report failures runs/skip --questions val.jsonl --images val.zip

      skipqa report failures runs/okvqa --data okvqa --out failures.html

      skipqa report failures runs/crowded --data pocket-kb --out f.html --count 20
    """
    from skipqa.config import read_settings
    from skipqa.evaluation import systems
    from skipqa.evaluation.reports.failures import assigned, table
    from skipqa.evaluation.reports.failures_page import AnsweredRun, check_made_by, render
    from skipqa.evaluation.reports.runs import read_run
    from skipqa.explain import check_format
    from skipqa.pipeline import load

    if out_file is not None:
        check_format(out_file, ".html")
    run = read_run(folder)
    rows, photos = asked.read(run)
    by_id = {row.id: row for row in rows}
    buckets = table(assigned(run.records, by_id), len(run.records))
    if out_file is not None:
        variant = systems.Variant(run.system, run.about.get("pruner"), run.about.get("retention"))
        prepare_process()
        with working("reading the models") as report:
            base = load(
                run.trait("preset"),
                index=index,
                components=components,
                trained=not untrained,
                weights=weights,
                overrides=read_settings(settings or ()),
                sources=source or (),
                report=report,
            )
            system = systems.build(variant, base, run.seed)
            check_made_by(run, system, trained=base.components.folder is not None)
        with counting() as bar:
            answered = AnsweredRun(run, by_id, photos, system)
            shown = render(answered, count, seed, lambda done, of: bar("asking again", done, of))
        out_file.write_text(shown, encoding="utf-8")
        err.print(f"written: {out_file}")
    if json:
        page = None if out_file is None else str(out_file)
        print_json({"page": page, "asked": len(run.records), "buckets": buckets})
        return
    from rich.table import Table

    printed = Table("what went wrong", "wrong", "of these", "", title=f"Failures of {run.variant}")
    for row in buckets:
        fraction = f"{100 * row['of_wrong']:.1f} %"
        printed.add_row(row["bucket"], f"{row['wrong']:,}", fraction, row["meaning"])
    out.print(printed)
