"""The decoder's matrices in fewer bits: time, memory, log-probabilities, answers and scores.

Every question that is looked up goes up to fusion once; then the decoders answer it in turn, from
the same passages, so that whatever else the machine does hits all of them alike. Log-probabilities
are those of the drafter's best answers after the prompt of the float32 decoder.

    python benchmarks/decoder_weights.py --questions okvqa/val.jsonl --images okvqa/val.zip \
        [--preset pocket] [--limit 100]
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from common import opened
from rich.progress import Progress
from rich.table import Table

from skipqa.backbones.presets.pocket import Pocket
from skipqa.cli.console import err, out, prepare_process
from skipqa.config import Weights
from skipqa.costs.environment import write_results
from skipqa.files import read_jsonl
from skipqa.pipeline import Pipeline, load
from skipqa.state import State
from skipqa.tasks.okvqa import normalise
from skipqa.trace import Trace

SCORED = 8  # of the drafter's answers
WARM_UP = 2  # questions


@dataclass(frozen=True, slots=True)
class Reply:
    answer: str
    score: float  # by the answers that the question comes with
    before_ms: float  # up to fusion, the same for all
    decode_ms: float
    log_probs: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, required=True, help="JSON Lines")
    parser.add_argument("--images", type=Path, required=True, help="a zip")
    parser.add_argument("--preset", default="pocket")
    parser.add_argument(
        "--weights", nargs="+", default=get_args(Weights), choices=get_args(Weights)
    )
    parser.add_argument("--limit", type=int, default=100, help="questions that are looked up")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    pipelines = {
        weights: load(options.preset, overrides={"decode": {"weights": weights}})
        for weights in options.weights
    }
    replies = looked_up(pipelines, options)
    reference = options.weights[0]
    measured = {
        weights: compared(found, replies[reference])
        | {"decoder_bytes": decoder_bytes(pipelines[weights])}
        for weights, found in replies.items()
    }
    show(measured, reference)
    results = {"preset": options.preset, "seed": options.seed, "weights": measured}
    subject = "decoder_weights" + ("" if options.preset == "pocket" else f"_{options.preset}")
    err.print(f"written to {write_results(results, subject, options.out)}")


def looked_up(
    pipelines: Mapping[str, Pipeline], options: argparse.Namespace
) -> dict[str, list[Reply]]:
    """Replies to the same questions, those that are not drafted; the first ones load networks and
    are not counted."""
    rows = list(read_jsonl(options.questions))
    random.Random(options.seed).shuffle(rows)
    first, total = next(iter(pipelines.values())), options.limit + WARM_UP
    asked: list[dict[str, Reply]] = []
    with opened(options.images) as photos, Progress(console=err) as progress:
        task = progress.add_task("answering", total=total)
        for row in rows:
            trace, entering = Trace(), State(photos[row["image"]](), row["question"])
            drafted = first.run(entering, stop="draft", trace=trace)
            if drafted.draft.accepted:
                continue
            fused = first.run(drafted, start="budget", stop="fuse", trace=trace)
            right = {normalise(text): score for text, score in row["answers"].items()}
            asked.append(answered(pipelines, fused, right, trace.latency_ms))
            progress.advance(task)
            if len(asked) == total:
                break
    return {weights: [found[weights] for found in asked[WARM_UP:]] for weights in pipelines}


def answered(
    pipelines: Mapping[str, Pipeline], fused: State, right: Mapping[str, float], before_ms: float
) -> dict[str, Reply]:
    found: dict[str, Reply] = {}
    prompt = ""
    candidates = [answer for answer, _ in fused.draft.candidates[:SCORED]]
    for weights, pipeline in pipelines.items():
        trace = Trace()
        state = pipeline.run(fused, start="decode", trace=trace)
        prompt = prompt or state.prompt
        log_probs, _ = pipeline.backbone.loglikelihood(prompt, candidates)
        text = state.answer.text
        score = right.get(normalise(text), 0.0)
        found[weights] = Reply(text, score, before_ms, trace.latency_ms, log_probs)
    return found


def compared(found: Sequence[Reply], reference: Sequence[Reply]) -> dict[str, Any]:
    """Medians in ms and their ratios to the reference's; by how much log-probabilities differ."""
    whole = [[one.before_ms + one.decode_ms for one in replies] for replies in (found, reference)]
    decode = [[one.decode_ms for one in replies] for replies in (found, reference)]
    differences = np.abs(
        np.concatenate([one.log_probs for one in found])
        - np.concatenate([one.log_probs for one in reference])
    )
    both = list(zip(found, reference, strict=True))
    points = [100 * (one.score - other.score) for one, other in both]
    return {
        "questions": len(found),
        "decode_p50_ms": statistics.median(decode[0]),
        "decode_ratio": statistics.median(decode[0]) / statistics.median(decode[1]),
        "looked_up_p50_ms": statistics.median(whole[0]),
        "looked_up_ratio": statistics.median(whole[0]) / statistics.median(whole[1]),
        "nats_mean": float(differences.mean()),
        "nats_p95": float(np.quantile(differences, 0.95)),
        "nats_max": float(differences.max()),
        "score": 100 * statistics.mean(one.score for one in found),
        "points": statistics.mean(points),  # that the reference does not have
        "points_standard_error": float(np.std(points) / np.sqrt(len(points))),
        "same_answers": sum(one.answer == other.answer for one, other in both),
        "replies": [asdict(one) for one in found],
    }


def decoder_bytes(pipeline: Pipeline) -> int:
    assert isinstance(pipeline.backbone, Pocket)
    return sum(parameter.nbytes for parameter in pipeline.backbone.decoder.parameters())


def show(measured: Mapping[str, Mapping[str, Any]], reference: str) -> None:
    columns = ("decode, ms", "ratio", "looked up, ms", "ratio", "nats off, mean", "95 %", "max")
    table = Table("weights", *columns, f"same as {reference}", "score", "points", "MB")
    for weights, m in measured.items():
        table.add_row(
            weights,
            f"{m['decode_p50_ms']:.0f}",
            f"{m['decode_ratio']:.2f}",
            f"{m['looked_up_p50_ms']:.0f}",
            f"{m['looked_up_ratio']:.2f}",
            *(f"{m[name]:.3f}" for name in ("nats_mean", "nats_p95", "nats_max")),
            f"{m['same_answers']} of {m['questions']}",
            f"{m['score']:.1f}",
            f"{m['points']:+.2f} ± {m['points_standard_error']:.2f}",
            f"{m['decoder_bytes'] / 1e6:.0f}",
        )
    out.print(table)


if __name__ == "__main__":
    main()
