"""`report.md` of finished runs, with its figures.

Enters: runs grouped by their questions. Leaves: a folder with one Markdown file and its figures.
Sections without data name the command that makes them, or are left out. Without matplotlib the
report has its tables and no figures. It judges no claim: `skipqa report claims` does, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from skipqa.errors import MissingExtra, UserError
from skipqa.evaluation.reports import figures, tables
from skipqa.evaluation.reports.markdown import table
from skipqa.evaluation.reports.runs import QuestionSet
from skipqa.evaluation.statistics import RESAMPLES
from skipqa.figures import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEANING = f"""\
Accuracies are in percent, with 95 % bootstrap intervals over questions in brackets (Clopper and
Pearson's interval where all scores are equal). Differences are taken question by question over the
questions that both runs answered; their intervals and two-sided p values come from a paired
bootstrap with {RESAMPLES:,} resamples. Ratios are of means over the same questions; FLOPs are
counted. V' and K' are means over all questions; questions on the fast path count as 0. CAS is
100 a² / (t + 2 r + 1): a the accuracy between 0 and 1, t thousands of tokens that the decoder
read, r rounds of retrieval, per question.
"""
ABLATE = "`skipqa eval vqa … --system skip-no-pruning`, and so on for each ablation"
SWEEP = "`skipqa eval vqa … --pruner random --retention 0.11`, at two retentions or more"


@dataclass(slots=True)
class Figures:
    """The figures of one report: drawn into its folder, or why not."""

    folder: Path
    files: list[str] = field(default_factory=list)
    missing: str = ""  # what to install where nothing can be drawn

    def show(self, stem: str, draw: Callable[[], Figure | None]) -> str:
        """Draw, and return the Markdown that shows it; empty where there is nothing to show."""
        try:
            figure = draw()
        except MissingExtra as error:
            self.missing = str(error)
            return ""
        if figure is None:
            return ""
        for kind in ("svg", "png"):
            save(figure, self.folder / f"{stem}.{kind}")
            self.files.append(f"{stem}.{kind}")
        return f"![{stem}]({stem}.svg)\n"


def write(sets: Sequence[QuestionSet], out: Path) -> Figures:
    """`report.md` and its figures in `out`."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder for the report")
    out.mkdir(parents=True, exist_ok=True)
    drawn = Figures(out)
    parts = ["# Results\n", MEANING]
    if len(sets) > 1:
        parts.append(f"There are {len(sets)} files of questions; runs are compared within one.\n")
    for number, found in enumerate(sets, 1):
        parts += _questions(found, drawn, f"-{number}" if len(sets) > 1 else "")
    parts += ["## Runs\n", _sources(sets)]
    (out / "report.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    return drawn


def _questions(found: QuestionSet, drawn: Figures, suffix: str) -> list[str]:
    """The sections on one file of questions; the names of its figures end in `suffix`."""
    counts = {len(run.records) for run in found.runs}
    asked = " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))

    def show(name: str, draw: Callable[[QuestionSet], Figure | None]) -> str:
        return drawn.show(f"{name}{suffix}", lambda: draw(found))

    swept = tables.sweep_table(found)
    sections = {
        f"## {found.title}\n\n{len(found.runs)} runs over {asked} questions.": (
            tables.main_table(found)
        ),
        "### Accuracy and compute": show("frontier", figures.frontier),
        "### Where the time goes": show("latency", figures.latency),
        "### Ablations": tables.ablation_table(found) or f"Not run: {ABLATE}.",
        "### Visual tokens kept": (
            f"{show('sweep', figures.sweep)}\n{swept}" if swept else f"Not run: {SWEEP}."
        ),
        "### By type": tables.type_table(found),
        "### By subset": tables.subset_table(found),
        "### By category": tables.category_table(found),
        "### By popularity": tables.popularity_table(found),
        "### Over seeds": tables.seed_table(found),
    }
    return [f"{heading}\n\n{body.strip()}\n" for heading, body in sections.items() if body]


def _sources(sets: Sequence[QuestionSet]) -> str:
    """Where each run's numbers come from. Folders by their last name: paths differ by machine."""
    rows = []
    for found in sets:
        for run in found.runs:
            header, machine = run.header, run.header["machine"]
            where = machine.get("gpu") or f"{machine.get('cpu')}, {machine.get('cores')} cores"
            rows.append(
                [
                    run.folder.name,
                    found.name(run),
                    found.title,
                    where,
                    str(header["versions"].get("torch", "none")),
                    str(header.get("commit")),
                    str(header.get("date")),
                ]
            )
    return table(["folder", "run", "questions", "machine", "torch", "commit", "date"], rows) + "\n"
