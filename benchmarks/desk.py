"""What SKIP saves next to the dense system on real weights: time, FLOPs, KV cache, answers.

`skip`, `dense` (all visual tokens, sixteen passages) and `no-retrieval` are asked the same
questions in one process. A question is put to all of them before the next one, and they take turns
in going first; whenever a batch of questions is complete, all of them answer it once more,
together. `skip` drafts as it ships, which `dense` never does, so everything is also given for
questions that took its full path and for those that it looked up, of all systems. Networks run
where SKIPQA_DEVICE says.

The KV cache is that of the prompt, fused tokens included, at two bytes per number
(`costs/systems.py`), as a GPU holds it; a draft has none. The score of an answer is the file's.

    SKIPQA_DEVICE=cuda python benchmarks/desk.py --questions okvqa/val.jsonl \
        --images okvqa/val.zip [--components runs/desk] [--limit 300] [--seconds 480]
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.box import SIMPLE
from rich.table import Table

from skipqa.backbones.device import chosen_device
from skipqa.backbones.networks.llama import LlamaConfig
from skipqa.backbones.presets.pocket import Pocket
from skipqa.cli.console import counting, err, out, plural, prepare_process, working
from skipqa.config import read_settings
from skipqa.costs.environment import write_results
from skipqa.costs.systems import kv_cache_bytes
from skipqa.errors import UserError
from skipqa.evaluation import systems
from skipqa.evaluation.harness import draw, in_turn
from skipqa.evaluation.records import make_record
from skipqa.evaluation.reports.markdown import ABSENT, percent, points
from skipqa.evaluation.statistics import Comparison, mean_interval, paired_bootstrap
from skipqa.evaluation.summary import UNIT_INTERVAL, quantiles, stage_means
from skipqa.pipeline import Pipeline, load
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.jsonl import JSONL, read
from skipqa.tasks.photos import Photos

SKIP, DENSE, NO_RETRIEVAL = SYSTEMS = ("skip", "dense", "no-retrieval")
DIFFERENCE = (-1.0, 1.0)  # the bounds of a difference of scores

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Reply:
    """To a question that was asked alone."""

    question_id: QuestionId
    answer: str
    score: float
    route: str
    tokens: int  # V'
    passages: int  # K'
    prompt_tokens: int  # that the decoder read, fused ones included
    flops: int
    cache_bytes: int
    latency_ms: float
    stage_ms: Mapping[str, float]


# Questions, by the reply of `skip`
PARTS: Mapping[str, Callable[[Reply], bool]] = {
    "all": lambda reply: True,
    "drafted": lambda reply: reply.route == "draft",
    "full path": lambda reply: reply.route == "full",
    "looked up": lambda reply: reply.passages > 0,  # where the budget allows passages
}


@dataclass(frozen=True, slots=True)
class Measured:
    """By system. What all have answered enters, so whenever asking ends, it is complete."""

    replies: dict[str, list[Reply]] = field(default_factory=lambda: {name: [] for name in SYSTEMS})
    batches: list[dict[str, float]] = field(default_factory=list)  # seconds of each
    # Answers that are the same together as alone
    same: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SYSTEMS, 0))
    bad: list[str] = field(default_factory=list)  # one line about each question that is left out

    @property
    def num_questions(self) -> int:
        return len(self.replies[SKIP])


@dataclass(frozen=True, slots=True)
class Asking:
    """The systems, and how long they may be asked."""

    pipelines: Mapping[str, Pipeline]
    decoder: LlamaConfig
    photos: Photos
    batch: int
    deadline: float

    def __call__(
        self,
        examples: Sequence[Example],
        measured: Measured,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Ask until the deadline; the question and batch that are begun are finished."""
        waiting: list[Example] = []  # for a batch
        for number, example in enumerate(examples):
            if time.monotonic() > self.deadline:
                return
            try:
                replies = {name: self.alone(name, example) for name in in_turn(SYSTEMS, number)}
            except UserError as error:  # a damaged photo
                measured.bad.append(f"{example.place}: {example.image}: {error}")
                continue
            for name, reply in replies.items():
                measured.replies[name].append(reply)
            waiting.append(example)
            if len(waiting) == self.batch:
                self.together(waiting, measured)
                waiting = []
            progress(number + 1)

    def alone(self, name: str, example: Example) -> Reply:
        photo = self.photos.open(example.image)
        answer, seconds = timed(partial(self.pipelines[name].answer, photo, example.question))
        record = make_record(example, answer, JSONL)
        return Reply(
            question_id=example.id,
            answer=answer.text,
            score=record["score"],
            route=answer.route,
            tokens=record["tokens"],
            passages=record["passages"],
            prompt_tokens=record["prompt_tokens"],
            flops=record["flops"],
            cache_bytes=kv_cache_bytes(self.decoder, record["prompt_tokens"]),
            latency_ms=1e3 * seconds,
            stage_ms=record["stage_ms"],
        )

    def together(self, examples: Sequence[Example], measured: Measured) -> None:
        """Questions that all systems have answered alone, the last ones of them."""
        seconds: dict[str, float] = {}
        same: dict[str, int] = {}
        texts = [example.question for example in examples]
        for name in in_turn(SYSTEMS, len(measured.batches)):
            photos = [self.photos.open(example.image) for example in examples]
            answer = partial(self.pipelines[name].answer_batch, photos, texts)
            answers, seconds[name] = timed(partial(answer, together=self.batch))
            alone = measured.replies[name][-len(examples) :]
            same[name] = sum(a.text == b.answer for a, b in zip(answers, alone, strict=True))
        measured.batches.append(seconds)
        for name in SYSTEMS:
            measured.same[name] += same[name]


def timed(run: Callable[[], Found]) -> tuple[Found, float]:
    """What it returns, and the seconds it took; a GPU works on after a call has returned."""
    synchronise()
    start = time.perf_counter()
    found = run()
    synchronise()
    return found, time.perf_counter() - start


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def summarise(measured: Measured, batch: int) -> dict[str, Any]:
    """By part of the questions and system: costs, scores; by system: throughput."""
    parts = {
        part: [number for number, reply in enumerate(measured.replies[SKIP]) if belongs(reply)]
        for part, belongs in PARTS.items()
    }
    found: dict[str, Any] = {"parts": {}, "throughput": throughput(measured, batch)}
    for part, numbers in parts.items():
        if not numbers:
            continue
        chosen = {name: [measured.replies[name][n] for n in numbers] for name in SYSTEMS}
        found["parts"][part] = {
            "questions": len(numbers),
            "systems": {
                name: costs(chosen[name], chosen[DENSE]) | scores(name, chosen) for name in SYSTEMS
            },
        }
    return found


def costs(replies: Sequence[Reply], dense: Sequence[Reply]) -> dict[str, Any]:
    """Of a system; ratios are to `dense` on the same questions."""
    latency, dense_latency = latencies(replies), latencies(dense)
    flops, dense_flops = (float(np.mean([r.flops for r in some])) for some in (replies, dense))
    cache, dense_cache = cache_bytes(replies), cache_bytes(dense)
    return {
        "latency_ms": latency,
        "times_faster": {name: dense_latency[name] / ms for name, ms in latency.items()},
        "stage_ms": stage_means([reply.stage_ms for reply in replies]),
        "flops": flops,
        "times_fewer_flops": dense_flops / flops,
        "cache_bytes": cache,
        "cache_saved": {name: saved(size, dense_cache[name]) for name, size in cache.items()},
        "tokens": float(np.mean([reply.tokens for reply in replies])),
        "passages": float(np.mean([reply.passages for reply in replies])),
        "drafted": float(np.mean([reply.route == "draft" for reply in replies])),
    }


def latencies(replies: Sequence[Reply]) -> dict[str, float]:
    ms = [reply.latency_ms for reply in replies]
    return {**quantiles(ms), "mean": float(np.mean(ms))}


def cache_bytes(replies: Sequence[Reply]) -> dict[str, float]:
    """A question's cache is largest when its prompt is read; `most` is that of the longest one."""
    sizes = [reply.cache_bytes for reply in replies]
    return {"mean": float(np.mean(sizes)), "most": float(max(sizes))}


def saved(size: float, whole: float) -> float:
    return 1 - size / whole if whole else 0.0  # text that was only quoted from the photo needs none


def scores(name: str, replies: Mapping[str, Sequence[Reply]]) -> dict[str, Any]:
    """The accuracy, and by how much it exceeds that of `dense` and of `no-retrieval`."""
    by_system = {system: [reply.score for reply in found] for system, found in replies.items()}
    return {
        "accuracy": asdict(mean_interval(by_system[name], bounds=UNIT_INTERVAL)),
        "differences": {
            other: asdict(paired_bootstrap(by_system[name], by_system[other], bounds=DIFFERENCE))
            for other in (DENSE, NO_RETRIEVAL)
            if other != name
        },
    }


def throughput(measured: Measured, batch: int) -> dict[str, Any] | None:
    """None if there was no whole batch."""
    if not measured.batches:
        return None
    questions = batch * len(measured.batches)
    seconds = {name: sum(one[name] for one in measured.batches) for name in SYSTEMS}
    return {
        "batch": batch,
        "questions": questions,
        "systems": {
            name: {
                "questions_per_second": questions / seconds[name],
                "times_more": seconds[DENSE] / seconds[name],
                "same_answers": measured.same[name],
            }
            for name in SYSTEMS
        },
    }


def show(summary: Mapping[str, Any]) -> None:
    for part, found in summary["parts"].items():
        title = f"{part}: {plural(found['questions'], 'question')}, times in ms"
        out.print(costs_table(title, found))
    out.print(accuracy_table(summary["parts"]["all"]["systems"]))
    if (batches := summary["throughput"]) is not None:
        out.print(throughput_table(batches))


def costs_table(title: str, found: Mapping[str, Any]) -> Table:
    columns = ("p50", "p95", "mean", "faster", "GFLOPs", "fewer", "KV, MB", "most", "saved")
    table = compact(title, "", *columns)
    for name, m in found["systems"].items():
        table.add_row(
            name,
            *(f"{m['latency_ms'][which]:,.0f}" for which in ("p50", "p95", "mean")),
            f"{m['times_faster']['mean']:.2f}x",
            f"{m['flops'] / 1e9:,.0f}",
            f"{m['times_fewer_flops']:.2f}x",
            *(f"{m['cache_bytes'][which] / 1e6:.2f}" for which in ("mean", "most")),
            f"{m['cache_saved']['mean']:.0%}",
        )
    return table


def accuracy_table(found: Mapping[str, Any]) -> Table:
    references = (DENSE, NO_RETRIEVAL)
    columns = ("drafted", "score, %", *(f"more than {name}" for name in references))
    table = compact("answers", "", *columns)
    for name, m in found.items():
        differences = (m["differences"].get(other) for other in references)
        told = (ABSENT if one is None else points(Comparison(**one)) for one in differences)
        table.add_row(name, f"{m['drafted']:.0%}", percent(m["accuracy"]), *told)
    return table


def throughput_table(batches: Mapping[str, Any]) -> Table:
    title = f"{plural(batches['questions'], 'question')}, {batches['batch']} together"
    table = compact(title, "", "questions per second", "more", "same answers as alone")
    for name, m in batches["systems"].items():
        pace = f"{m['questions_per_second']:.2f}"
        table.add_row(name, pace, f"{m['times_more']:.2f}x", f"{m['same_answers']}")
    return table


def compact(title: str, *columns: str) -> Table:
    """Fits in eighty columns."""
    table = Table(title=title, title_justify="left", box=SIMPLE, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=not column)
    table.padding = (0, 0, 0, 1)
    return table


def drawn(
    examples: Sequence[Example], limit: int, batch: int, seed: int
) -> tuple[list[Example], list[Example]]:
    """The questions of `skipqa eval --limit --seed`, shuffled, so that the first of them are a
    sample as well; and a batch of others to warm up with, where there are any."""
    asked = draw(examples, limit, seed)
    ids = {example.id for example in asked}
    random.Random(seed).shuffle(asked)
    others = [example for example in examples if example.id not in ids]
    return asked, (others or asked)[:batch]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, required=True, help="JSON Lines")
    parser.add_argument("--images", type=Path, required=True, help="a zip or a folder")
    parser.add_argument("--index", action="append", help="may be repeated; default: `default`")
    parser.add_argument("--components", type=Path, help="default: those shipped with the preset")
    parser.add_argument("--preset", default="desk")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.NAME=VALUE")
    parser.add_argument("--limit", type=int, default=300, help="questions, drawn at random")
    parser.add_argument("--batch", type=int, default=8, help="questions answered together")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="from the start; then no more is asked"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds

    prepare_process()
    photos = Photos(options.images)
    examples, bad = read(options.questions, photos)
    asked, others = drawn(examples, options.limit, options.batch, options.seed)
    with working("reading the models") as report:
        base = load(
            options.preset,
            index=options.index,
            components=options.components,
            overrides=read_settings(options.set),
            report=report,
        )
        pipelines = {name: systems.build(name, base, options.seed) for name in SYSTEMS}
        assert isinstance(base.backbone, Pocket)
        decoder = base.backbone.decoder.config
        ask = Asking(pipelines, decoder, photos, options.batch, deadline)
        report("warming up")
        for pipeline in pipelines.values():
            systems.warm_up(pipeline)
        ask(others, Measured())

    measured = Measured(bad=bad)
    with counting() as bar:
        try:
            ask(asked, measured, lambda done: bar("asking", done, len(asked)))
        except KeyboardInterrupt:  # what was measured so far is worth keeping
            err.print("stopped")
    for line in measured.bad:
        err.print(f"left out: {line}", highlight=False, soft_wrap=True)
    if not measured.num_questions:
        raise SystemExit("no question was answered by all systems: give it more --seconds")
    summary = summarise(measured, options.batch)
    show(summary)
    results = {
        "preset": options.preset,
        "device": str(chosen_device()),
        "weights": base.backbone.weights,  # as the device takes them
        "index": {name: len(index) for name, index in base.library.indexes.items()},
        "seed": options.seed,
        "asked": len(asked),
        "answered": measured.num_questions,
        "bad_rows": measured.bad,
        "summary": summary,
        "batch_seconds": measured.batches,
        "replies": {name: [row(reply) for reply in measured.replies[name]] for name in SYSTEMS},
    }
    subject = "desk" + ("" if options.preset == "desk" else f"_{options.preset}")
    path = write_results(results, subject, options.out, base.components.checksums())
    err.print(f"written to {path}")


def row(reply: Reply) -> dict[str, Any]:
    """Without the times of stages, of which the summary has the means."""
    return {name: value for name, value in asdict(reply).items() if name != "stage_ms"}


if __name__ == "__main__":
    main()
