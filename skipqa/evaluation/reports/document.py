"""One Markdown document and its figures, from run folders and results files.

Sections whose data are missing say which command makes them, or are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from skipqa.claims.claims import claims_table, judge
from skipqa.claims.verdict import Evidence
from skipqa.errors import UserError
from skipqa.evaluation.reports import figures, tables
from skipqa.evaluation.reports.runs import QuestionSet, read_runs
from skipqa.evaluation.results import table
from skipqa.evaluation.statistics import RESAMPLES
from skipqa.plot.canvas import Canvas

MEANING = f"""\
Accuracies are in percent, in brackets their 95 % bootstrap intervals over questions (where all
scores are equal: by what may have gone unseen, Clopper and Pearson). Differences are taken
question by question on what both runs answered; their intervals and two-sided p come from a
paired bootstrap with {RESAMPLES:,} resamples. Ratios are of means over the same questions; FLOPs
are counted. V' and K' are means over all questions, fast-path ones count as 0.
"""
VERDICTS = """\
The paper's figures are its own and were measured on other models. A claim about accuracies holds
where its whole interval does, does not hold where none of it does, and is undecided between.
"""
ABLATE = "`skipqa eval vqa … --system skip-no-pruning`, and so on for each ablation"
SWEEP = "`skipqa eval vqa … --pruner random --retention 0.11`, at two retentions or more"


def write(
    folders: Sequence[Path], out: Path, results: Path, reference: str | None = None
) -> dict[str, Any]:
    """`report.md` and its figures in `out`; returns what was written and the verdicts."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder for the report")
    sets = read_runs(folders, reference)
    out.mkdir(parents=True, exist_ok=True)
    drawn: list[str] = []

    def show(stem: str, canvas: Canvas | None) -> str:
        if canvas is None:
            return ""
        canvas.save(out / stem)
        drawn.extend(f"{stem}.{kind}" for kind in ("svg", "png"))
        return f"![{stem}]({stem}.svg)\n"

    judged = judge(Evidence(sets, results))
    parts = ["# Results\n", MEANING]
    if len(sets) > 1:
        parts.append(f"There are {len(sets)} files of questions; runs are compared within one.\n")
    for number, found in enumerate(sets, 1):
        parts += _questions(found, show, f"-{number}" if len(sets) > 1 else "")
    counts = Counter(str(finding.verdict) for _, finding in judged)
    summed = ", ".join(f"{verdict} {counts[verdict]}" for verdict in sorted(counts))
    parts += ["## The paper's claims\n", f"{VERDICTS}Of {len(judged)}: {summed}.\n"]
    parts += [claims_table(judged) + "\n", "## Runs\n", _sources(sets)]
    (out / "report.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    return {
        "report": str(out / "report.md"),
        "figures": drawn,
        "claims": [
            {"number": number, "verdict": str(finding.verdict), "measured": finding.said}
            for number, (_, finding) in enumerate(judged, 1)
        ],
    }


def _questions(
    found: QuestionSet, show: Callable[[str, Canvas | None], str], suffix: str
) -> list[str]:
    """The sections about one file of questions; figures end in `suffix`."""
    counts = {len(run.records) for run in found.runs}
    asked = " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))
    ablations, swept = tables.ablation_table(found), tables.sweep_table(found)
    sections = {
        f"## {found.title}\n\n{len(found.runs)} runs over {asked} questions.": (
            tables.main_table(found)
        ),
        "### Accuracy and compute": show(f"frontier{suffix}", figures.frontier(found)),
        "### Where the time goes": show(f"latency{suffix}", figures.latency(found)),
        "### Ablations": ablations or f"Not run: {ABLATE}.",
        "### Visual tokens kept": (
            f"{show(f'sweep{suffix}', figures.sweep(found))}\n{swept}"
            if swept
            else f"Not run: {SWEEP}."
        ),
        "### By subset": tables.subset_table(found),
        "### By category": tables.category_table(found),
        "### By popularity": tables.popularity_table(found),
        "### Over seeds": tables.seed_table(found),
    }
    return [f"{heading}\n\n{body.rstrip()}\n" for heading, body in sections.items() if body]


def _sources(sets: Sequence[QuestionSet]) -> str:
    """Where each run's numbers come from; folders by their last name, machines differ in paths."""
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
