"""Wrong answers to look at: a sample of a run's errors, each with its trace, as one HTML page.

Enters: a finished run, its questions and photos, and the system that answered them. The sampled
questions are asked again, because a trace is too large to be kept for every question; where the
answer is another one now, the page says so. Leaves: one page that needs nothing beside it.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from skipqa.errors import UserError
from skipqa.evaluation.records import Record
from skipqa.evaluation.reports.runs import Run
from skipqa.evaluation.summary import names_in
from skipqa.explain.overlay import overlay
from skipqa.explain.page import data_uri, parts, style
from skipqa.image import open_image
from skipqa.pipeline import Answer, Pipeline
from skipqa.tasks.example import Example
from skipqa.tasks.photos import Photos
from skipqa.trace import Trace

WRONG = 0.5  # a question with a lower score counts as answered wrongly
PHOTO_WIDTH = 440
Stratum = tuple[str, str]  # category, route
Progress = Callable[[int, int], None]


def sample(records: Sequence[Record], count: int, seed: int) -> list[Record]:
    """About the same share of the errors of every category and route, at random by the seed."""
    if count < 1:
        raise UserError(f"a sheet of {count} failures shows nothing")
    strata: dict[Stratum, list[Record]] = {}
    for record in records:
        if record["score"] < WRONG:
            strata.setdefault(stratum(record), []).append(record)
    if not strata:
        raise UserError("this run has no errors to show")
    generator = random.Random(seed)
    ranked = []
    for name in sorted(strata):
        errors = sorted(strata[name], key=lambda record: str(record["question_id"]))
        generator.shuffle(errors)
        # the i-th of n stands at its share of the stratum; ties are broken by the draw
        ranked += [
            ((place + generator.random()) / len(errors), record)
            for place, record in enumerate(errors)
        ]
    ranked.sort(key=lambda pair: pair[0])
    chosen = [record for _, record in ranked[:count]]
    return sorted(chosen, key=lambda record: (stratum(record), str(record["question_id"])))


def check_made_by(run: Run, system: Pipeline, *, trained: bool) -> None:
    """One clear line where `system` is not what made the run.

    A setting that one of the two does not know was added or dropped since, and is not compared.
    """
    if (name := system.index.folder.name) != run.trait("index"):
        raise UserError(f"{run.folder} was run over the index {run.trait('index')}, not {name}")
    if trained != bool(run.about.get("components")):
        had = "none of its components trained: add --untrained"
        if not trained:
            had = "some of its components trained: leave out --untrained"
        raise UserError(f"{run.folder} was run with {had}")
    was, now = _flat(run.about.get("config", {})), _flat(dataclasses.asdict(system.config))
    for setting in was.keys() & now.keys():
        if was[setting] != now[setting]:
            raise UserError(
                f"{run.folder} was run with --set {setting}={was[setting]}, not {now[setting]}"
            )


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names, as JSON keeps them."""
    stages = json.loads(json.dumps(config))
    return {
        f"{stage}.{name}": value
        for stage, settings in stages.items()
        if isinstance(settings, dict)
        for name, value in settings.items()
    }


def stratum(record: Record) -> Stratum:
    return str(record.get("category", "")), str(record["route"])


def render(
    run: Run,
    rows: Mapping[int | str, Example],
    photos: Photos,
    system: Pipeline,
    count: int,
    seed: int,
    progress: Progress = lambda done, total: None,
) -> str:
    """The page; every sampled question is asked again for its trace."""
    chosen = sample(list(run.records.values()), count, seed)
    unknown = [record["question_id"] for record in chosen if record["question_id"] not in rows]
    if unknown:
        raise UserError(f"the questions lack {len(unknown)} of the run's, first {unknown[0]}")
    cards = []
    for done, record in enumerate(chosen):
        progress(done, len(chosen))
        row = rows[record["question_id"]]
        image = open_image(photos.open(row.image))
        answer = system.answer(image, row.question)
        shown = parts(image, row.question, answer, system.backbone.concepts, PHOTO_WIDTH)
        shown["plain"] = data_uri(overlay(image, Trace(), PHOTO_WIDTH))
        cards.append(_card(row, record, answer, shown))
    progress(len(chosen), len(chosen))
    wrong = sum(record["score"] < WRONG for record in run.records.values())
    about = (
        f"{len(chosen)} of {wrong:,} wrong answers to {len(run.records):,} questions of "
        f"{run.about['questions'].get('file', '')}, drawn by category and route with seed {seed}; "
        f"wrong is a score below {WRONG:g}. Photos: kept patches bright in the colour of their "
        f"region, dropped ones dark; point at one to see it as it is. Traces were made by asking "
        f"again."
    )
    return _template("failures.html").substitute(
        title=escape(f"Failures of {run.variant}"),
        about=escape(about),
        style=style(),
        strata=_strata(list(run.records.values()), chosen),
        failures="\n".join(cards),
    )


def _template(name: str) -> Template:
    return Template(files("skipqa.evaluation.reports").joinpath(name).read_text(encoding="utf-8"))


def _card(row: Example, record: Record, answer: Answer, shown: Mapping[str, str]) -> str:
    ranked = sorted(row.answers.items(), key=lambda item: -item[1])
    wanted = ", ".join(
        f'<span class="gold">{escape(text)}</span>' + ("" if score == 1 else f" {score:g}")
        for text, score in ranked
    )
    tags = {
        "category": record.get("category"),
        "subset": ", ".join(names_in(record, "subset")) or None,
        "route": record["route"],
        "score": f"{record['score']:g}",
        "V'": record["tokens"],
        "K'": record["passages"],
        "took": _times(record),
    }
    changed = answer.text != record["answer"]
    return _template("failure.html").substitute(
        shown,
        id=escape(str(record["question_id"])),
        said=escape(record["answer"]) or "<i>nothing</i>",
        wanted=wanted,
        again=f"<dt>now says</dt><dd>{shown['answer']}</dd>\n" if changed else "",
        tags=" ".join(
            f'<span class="tag">{name} {escape(str(value))}</span>'
            for name, value in tags.items()
            if value is not None
        ),
    )


def _times(record: Record) -> str:
    """All milliseconds, and the three stages that took most of them."""
    if "stage_ms" not in record:
        return "not timed"
    longest = sorted(record["stage_ms"].items(), key=lambda item: -item[1])[:3]
    stages = ", ".join(f"{name} {ms:,.0f}" for name, ms in longest)
    return f"{record['latency_ms']:,.0f} ms: {stages}"


def _strata(records: Sequence[Record], chosen: Sequence[Record]) -> str:
    asked, shown = Counter(map(stratum, records)), Counter(map(stratum, chosen))
    wrong = Counter(stratum(record) for record in records if record["score"] < WRONG)
    return "\n".join(
        f"<tr><td>{escape(category) or '–'}</td><td>{escape(route)}</td><td>{asked[name]:,}</td>"
        f"<td>{wrong[name]:,}</td><td>{shown[name]:,}</td></tr>"
        for name in sorted(asked, key=_by_number)
        for category, route in [name]
    )


def _by_number(name: Stratum) -> tuple[float, Stratum]:
    """Categories that are numbers by their size."""
    return (float(name[0]) if name[0].isdecimal() else float("inf")), name
