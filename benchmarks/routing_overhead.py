"""The cost of deciding: the fraction of a question's time that goes into routing.

Routing is the budget controller, saliency scoring, k-means and the verifier's head. It is counted
with and without the verifier's encoding of passages: fusion needs their states too. Variants A and
B have random weights at the pocket preset's widths, since time does not depend on training; the
training-free pipeline and the one that ships are timed next to them.

    python benchmarks/routing_overhead.py [--photo FILE --question TEXT] [--runs 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from rich.progress import track
from rich.table import Table

from skipqa import assets
from skipqa.cli.console import err, out, prepare_process
from skipqa.cli.demo import QUESTION
from skipqa.costs.environment import write_results
from skipqa.nn.budget import DifficultyBudgetConfig, DiscreteBudgetConfig, build_budget
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.saliency import SaliencyConfig, build_saliency
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.pipeline import Pipeline, load

WIDTH, HEADS = 384, 12
ROUTING = ("budget", "prune", "regions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photo", type=Path, help="default: the demo's photo")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    photo = options.photo or assets.fetch(assets.DEMO_PHOTO) / "coffee.png"

    prepare_process()
    results = {}
    table = Table("components", "pipeline, ms", "routing, ms", "fraction", "with encoding")
    shipped = {}
    for name in ("training-free", "trained", "A", "B"):
        pipeline = build(name)
        runs = [
            measure(pipeline, photo, options.question)
            for _ in track(range(options.runs + 1), f"asking {name}", console=err)
        ][1:]
        total = statistics.median(run["total_ms"] for run in runs)
        routing = statistics.median(run["routing_ms"] for run in runs)
        encoding = statistics.median(run["verify_ms"] for run in runs)
        fractions = routing / total, (routing + encoding) / total
        results[name] = {
            "total_ms": total,
            "routing_ms": routing,
            "fraction": fractions[0],
            "fraction_with_encoding": fractions[1],
        }
        table.add_row(
            name, f"{total:.0f}", f"{routing:.1f}", *(f"{100 * one:.2f} %" for one in fractions)
        )
        shipped |= pipeline.components.checksums()
    out.print(table)
    path = write_results(results, "routing_overhead", options.out, shipped)
    err.print(f"written to {path}")


def build(name: str) -> Pipeline:
    if name == "training-free":
        return load(trained=False)
    if name == "trained":
        return load()
    torch.manual_seed(2026)
    budget = DiscreteBudgetConfig if name == "A" else DifficultyBudgetConfig
    modules = {
        "budget": build_budget(budget(WIDTH, WIDTH)),
        "saliency": build_saliency(SaliencyConfig(WIDTH, name)),  # type: ignore[arg-type]
        "verifier": Verifier(VerifierConfig(WIDTH, WIDTH)),
        "fusion": BipartiteFusion(FusionConfig(WIDTH, WIDTH, HEADS, name)),  # type: ignore[arg-type]
    }
    frozen = {part: module.eval().requires_grad_(False) for part, module in modules.items()}
    return load(trained=False).with_components(**frozen)


def measure(pipeline: Pipeline, photo: Path, question: str) -> dict[str, float]:
    answer = pipeline.answer(photo, question, fast_path=False)
    routing = sum(answer.trace[stage].ms for stage in ROUTING)
    verifier = pipeline.components.verifier
    if verifier is not None:
        # The verify stage is mostly encoding passages; its head is timed alone on as many.
        passages = answer.state.verified.embeddings
        signals = torch.zeros(len(passages), verifier.config.signals)
        start = time.perf_counter()
        with torch.inference_mode():
            verifier(passages[0], passages[0], passages, signals)
        routing += 1_000 * (time.perf_counter() - start)
    return {
        "total_ms": answer.trace.latency_ms,
        "routing_ms": routing,
        "verify_ms": answer.trace["verify"].ms,
    }


if __name__ == "__main__":
    main()
