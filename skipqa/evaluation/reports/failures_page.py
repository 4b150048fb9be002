"""A sample of a run's wrong answers by what went wrong, each with its trace, as one HTML page.

Enters: a finished run, its questions and photos, and the system that answered them. The sampled
questions are asked again, because a trace is too large to be kept for every question; if the answer
has changed, the page says so. Leaves: one self-contained page, a part for each bucket
(`failures.py`).
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from skipqa.answer import Answer
from skipqa.errors import UserError
from skipqa.evaluation.records import Record
from skipqa.evaluation.reports.failures import MEANING, WRONG, Bucket, assigned
from skipqa.evaluation.reports.runs import Run
from skipqa.evaluation.summary import names_in
from skipqa.explain.overlay import scaled
from skipqa.explain.page import data_uri, parts, style
from skipqa.pipeline import Pipeline
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.photos import Photos

PHOTO_WIDTH = 440
Stratum = tuple[Bucket, str]  # with the category
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class AnsweredRun:
    """A finished run and what is needed to ask its questions again."""

    run: Run
    rows: Mapping[int | str, Example]  # by question
    photos: Photos
    system: Pipeline


def sample(
    records: Sequence[Record], buckets: Mapping[QuestionId, Bucket], count: int, seed: int
) -> list[Record]:
    """About the same fraction of the errors of each bucket and category, drawn by the seed."""
    if count < 1:
        raise UserError(f"a page of {count} failures shows nothing")
    order = list(Bucket)

    def stratum(record: Record) -> Stratum:
        return buckets[record["question_id"]], str(record.get("category", ""))

    strata: dict[Stratum, list[Record]] = {}
    for record in records:
        if record["question_id"] in buckets:
            strata.setdefault(stratum(record), []).append(record)
    if not strata:
        raise UserError("this run has no errors to show")
    generator = random.Random(seed)
    ranked = []
    for name in sorted(strata):
        errors = sorted(strata[name], key=lambda record: str(record["question_id"]))
        generator.shuffle(errors)
        # the i-th of n gets a random rank in [i/n, (i+1)/n), so every stratum is thinned alike
        ranked += [
            ((place + generator.random()) / len(errors), record)
            for place, record in enumerate(errors)
        ]
    ranked.sort(key=lambda pair: pair[0])
    chosen = [record for _, record in ranked[:count]]

    def place(record: Record) -> tuple[int, str, str]:
        bucket, category = stratum(record)
        return order.index(bucket), category, str(record["question_id"])

    return sorted(chosen, key=place)


def check_made_by(run: Run, system: Pipeline, *, trained: bool) -> None:
    """Refuse a system that did not make the run.

    A setting that only one of the two has was added or dropped since, and is not compared.
    """
    if (names := " + ".join(system.library.names)) != run.trait("index"):
        raise UserError(f"{run.folder} was run over the index {run.trait('index')}, not {names}")
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


def render(
    answered: AnsweredRun,
    count: int,
    seed: int,
    progress: Progress = lambda done, total: None,
) -> str:
    """The page; every sampled question is asked again for its trace."""
    run, system = answered.run, answered.system
    buckets = assigned(run.records, answered.rows)
    chosen = sample(list(run.records.values()), buckets, count, seed)
    cards: dict[Bucket, list[str]] = {}
    for done, record in enumerate(chosen):
        progress(done, len(chosen))
        row = answered.rows[record["question_id"]]
        answer = system.answer(answered.photos.open(row.image), row.question)
        shown = parts(answer, system.backbone.concepts, PHOTO_WIDTH)
        shown["plain"] = data_uri(scaled(answer.state.image, PHOTO_WIDTH))
        cards.setdefault(buckets[row.id], []).append(_card(row, record, answer, shown))
    progress(len(chosen), len(chosen))
    about = (
        f"{len(chosen)} of {len(buckets):,} wrong answers to {len(run.records):,} questions of "
        f"{run.title}, drawn by bucket and category with seed {seed}. "
        f"An answer is wrong if it scores below {WRONG:g}. In the photos, kept patches are bright "
        f"and have the colour of their region, dropped patches are dark; hover to see the photo "
        f"itself. For the traces the questions were asked again."
    )
    return _template("failures.html").substitute(
        title=escape(f"Failures of {run.variant}"),
        about=escape(about),
        style=style(),
        buckets=_table(buckets, cards),
        failures="\n".join(_part(bucket, shown) for bucket, shown in cards.items()),
    )


def _template(name: str) -> Template:
    return Template(files("skipqa.evaluation.reports").joinpath(name).read_text(encoding="utf-8"))


def _card(row: Example, record: Record, answer: Answer, shown: Mapping[str, str]) -> str:
    ranked = sorted(row.answers.items(), key=lambda item: -item[1])
    correct = ", ".join(
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
        correct=correct,
        again=f"<dt>now says</dt><dd>{shown['answer']}</dd>\n" if changed else "",
        tags=" ".join(
            f'<span class="tag">{name} {escape(str(value))}</span>'
            for name, value in tags.items()
            if value is not None
        ),
    )


def _times(record: Record) -> str:
    """The latency, and the three slowest stages."""
    if "stage_ms" not in record:
        return "not timed"
    longest = sorted(record["stage_ms"].items(), key=lambda item: -item[1])[:3]
    stages = ", ".join(f"{name} {ms:,.0f}" for name, ms in longest)
    return f"{record['latency_ms']:,.0f} ms: {stages}"


def _table(buckets: Mapping[QuestionId, Bucket], cards: Mapping[Bucket, Sequence[str]]) -> str:
    wrong = Counter(buckets.values())
    return "\n".join(
        f'<tr><td><a href="#{_anchor(bucket)}">{escape(bucket)}</a></td>'
        f"<td>{escape(MEANING[bucket])}</td><td>{count:,}</td>"
        f"<td>{count / len(buckets):.0%}</td><td>{len(cards.get(bucket, ()))}</td></tr>"
        for bucket in Bucket
        if (count := wrong[bucket])
    )


def _part(bucket: Bucket, cards: Sequence[str]) -> str:
    heading = f'<h2 class="bucket" id="{_anchor(bucket)}">{escape(bucket.capitalize())}</h2>'
    return "\n".join([heading, f"<p>{escape(MEANING[bucket])}</p>", *cards])


def _anchor(bucket: Bucket) -> str:
    return bucket.replace(" ", "-")
