"""The budget that ships against fixed ones at equal FLOPs, on questions whose photos nothing saw.

Held-out training questions of OK-VQA, FVQA and Pocket-KB are answered with every fixed number of
passages; the budget that ships chooses one of these for each question. Drafts are accepted as they
ship, by all alike. The best fixed budget is that with hindsight, or a random mixture of two. Name
indexes of general knowledge only: next to somebody's own documents no budget closes retrieval, so
Pocket-KB's passages need `skipqa index build --general`. What is answered is kept in a file, so a
stopped run goes on there.

    python benchmarks/adaptive_budget.py --data DATA --pocket-kb FOLDER --index default \\
        --index FOLDER/general --answers adaptive_budget.jsonl
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from rich.progress import track
from rich.table import Table

from skipqa.claims.shipping import shipped
from skipqa.cli.console import err, out, prepare_process
from skipqa.config import read_settings
from skipqa.costs.environment import write_results
from skipqa.errors import UserError
from skipqa.evaluation.systems.budgets import with_budget
from skipqa.files import read_jsonl
from skipqa.image import open_image
from skipqa.pipeline import Pipeline, load
from skipqa.state import State
from skipqa.tasks.okvqa import normalise
from skipqa.trace import Trace
from skipqa.training.pathway.budget_quality import over_fixed
from skipqa.training.pathway.gather import Gathered, draw

FIXED = (0, 2, 6, 16)  # K'
SOURCES = ("okvqa", "fvqa", "pocket-kb", "crowded")
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--index", action="append", required=True, help="of general knowledge")
    parser.add_argument("--answers", type=Path, required=True, help="JSON Lines; goes on there")
    parser.add_argument("--limit", type=int, default=250, help="questions of each data set")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.NAME=VALUE")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    torch.set_num_threads(1)
    counts = {f"{source}/held-out": options.limit for source in SOURCES}
    questions = draw(options.data, options.pocket_kb, counts, options.seed)
    rows = answered(questions, options)
    results: dict[str, Any] = {"seed": options.seed, "all": compared(rows)}
    for source in SOURCES:
        results[source] = compared([row for row in rows if row["source"] == source])
    show(results)
    path = write_results(results, "adaptive_budget", options.out, shipped())
    err.print(f"written to {path}")


def answered(questions: Sequence[Gathered], options: argparse.Namespace) -> list[Row]:
    path: Path = options.answers
    rows = {row["id"]: row for row in (read_jsonl(path) if path.exists() else [])}
    names = [f"{one.source}/{one.id}" for one in questions]
    todo = [pair for pair in zip(names, questions, strict=True) if pair[0] not in rows]
    if todo:
        skip = load(index=options.index, overrides=read_settings(options.set))
        skip = skip.with_components(reading_choice=None)  # what is read is read as in all others
        if skip.library.has_own_documents:
            raise UserError(
                "a budget never closes retrieval next to own documents: build the index with "
                "--general"
            )
        fixed = [with_budget(skip, passages=number) for number in FIXED]
        archives = {one.archive: zipfile.ZipFile(one.archive) for _, one in todo}
        with path.open("a", encoding="utf-8") as file:
            for name, one in track(todo, "asking", console=err):
                with archives[one.archive].open(one.image) as photo:
                    image = open_image(photo)
                rows[name] = {"id": name, "source": one.source, **asked(skip, fixed, image, one)}
                file.write(json.dumps(rows[name]) + "\n")
                file.flush()
    return [rows[name] for name in names]


def asked(skip: Pipeline, fixed: Sequence[Pipeline], image: Image, one: Gathered) -> Row:
    """The score and the FLOPs with every fixed K', and which of them the budget chooses."""
    before = Trace()
    drafted = skip.run(State(image, one.question, fast_path=True), stop="draft", trace=before)
    if drafted.draft.accepted:
        chosen, found = 0, [(_score(one, drafted.draft.answer), 0)] * len(FIXED)
    else:
        chosen = skip.run(drafted, start="budget", stop="budget").budget.passages
        found = [_finished(system, drafted, one) for system in fixed]
    return {
        "chosen": chosen,
        "drafted": drafted.draft.accepted,
        "score": [score for score, _ in found],
        "flops": [before.flops + flops for _, flops in found],
    }


def _finished(system: Pipeline, drafted: State, one: Gathered) -> tuple[float, int]:
    trace = Trace()
    state = system.run(drafted, start="budget", trace=trace)
    return _score(one, state.answer.text), trace.flops


def _score(one: Gathered, answer: str) -> float:
    return one.answers.get(normalise(answer), 0.0)


def compared(rows: Sequence[Row]) -> dict[str, Any]:
    value_nP = torch.tensor([row["score"] for row in rows])
    giga_nP = torch.tensor([row["flops"] for row in rows]) / 1e9
    chosen_n1 = torch.tensor([[FIXED.index(row["chosen"])] for row in rows])
    score_n, giga_n = (table.gather(1, chosen_n1)[:, 0] for table in (value_nP, giga_nP))
    fixed = zip(FIXED, value_nP.mean(0).tolist(), giga_nP.mean(0).tolist(), strict=True)
    return {
        **over_fixed(score_n, giga_n, value_nP, giga_nP),
        "fixed": [{"passages": p, "score": v, "giga_flops": c} for p, v, c in fixed],
        "drafted": sum(row["drafted"] for row in rows) / len(rows),
        "no_retrieval": sum(row["chosen"] == 0 and not row["drafted"] for row in rows) / len(rows),
    }


def show(results: dict[str, Any]) -> None:
    fixed = [f"K' = {number}" for number in FIXED]
    table = Table("", "questions", "drafted", "closed", *fixed, "ships", "at equal FLOPs", "points")
    for name in ("all", *SOURCES):
        one = results[name]
        gain = {key: 100 * value for key, value in one["gain"].items()}
        table.add_row(
            name,
            str(one["questions"]),
            f"{100 * one['drafted']:.0f} %",
            f"{100 * one['no_retrieval']:.0f} %",
            *(f"{100 * row['score']:.1f} ({row['giga_flops']:.0f})" for row in one["fixed"]),
            f"{100 * one['adaptive']['score']:.1f} ({one['adaptive']['giga_flops']:.0f})",
            f"{100 * one['fixed_at_equal_flops']:.1f}",
            f"{gain['mean']:+.1f} ({gain['low']:+.1f} to {gain['high']:+.1f})",
        )
    out.print(table)


if __name__ == "__main__":
    main()
