"""Which weight should verification give the retrieval score? The photo's own gloss, put first.

Each photo is asked one of three questions through the pipeline up to retrieval; verification then
orders the retrieved passages under several weights of the retrieval score. Counted, among the
photos whose class's gloss was retrieved, is whether it comes first or among the first two.

    python benchmarks/verifying.py --entities FOLDER
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from common import imagenet_photos, opened
from rich.progress import track
from rich.table import Table

from skipqa.backbones.caching import CachedBackbone
from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.evaluation.statistics import mean_interval
from skipqa.pipeline import load
from skipqa.stages.verify import SimilarityVerifier, Verify
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import RetrievedPassage

QUESTIONS = ("What is this used for?", "Where does it come from?", "What is it made of?")
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0)
SCORE_ALONE = "score alone"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entities", type=Path, required=True, help="photos.jsonl, photos.zip")
    parser.add_argument("--photos", type=int, default=120)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    pipeline = load(trained=False)
    config, backbone = pipeline.config, CachedBackbone(pipeline.backbone)
    # No passage is rejected, so that its place in the order is known
    order_all = replace(config.verify, min_passages=config.budget.passages)
    weighted = {weight: replace(order_all, retrieval_weight=weight) for weight in WEIGHTS}
    stages = {w: Verify(rule, SimilarityVerifier(rule, backbone)) for w, rule in weighted.items()}
    photos = imagenet_photos(options.entities, options.seed)[: options.photos]
    ranks: dict[float | str, list[int]] = {weight: [] for weight in (*WEIGHTS, SCORE_ALONE)}
    with opened(options.entities / "photos.zip") as images:
        for photo, question in zip(
            track(photos, "verifying", console=err), cycle(QUESTIONS), strict=False
        ):
            state = pipeline.run(State(images[photo.name](), question), stop="retrieve")
            own = f"wordnet:{photo.synset}"
            if all(candidate.passage.id != own for candidate in state.retrieved.passages):
                continue
            ranks[SCORE_ALONE].append(rank(own, state.retrieved.passages))
            for weight, verify in stages.items():
                verified = verify(state, StageRecord("verify")).verified
                ranks[weight].append(rank(own, verified.passages))

    table = Table("weight", "own gloss first", "in the first two")
    weights: list[dict[str, Any]] = []
    for key, found in ranks.items():
        first, in_two = (mean_interval([r < n for r in found]) for n in (1, 2))
        weights.append({"weight": key, "first": asdict(first), "in_two": asdict(in_two)})
        table.add_row(str(key), f"{100 * first.mean:.1f} %", f"{100 * in_two.mean:.1f} %")
    out.print(table)
    results = {
        "photos": len(photos),
        "seed": options.seed,
        "questions": QUESTIONS,
        "candidates": config.budget.passages,
        "gloss_among_candidates": len(ranks[SCORE_ALONE]),
        "shipped": config.verify.retrieval_weight,
        "weights": weights,
    }
    err.print(f"written to {write_results(results, 'verifying', options.out)}")


def rank(passage_id: str, passages: tuple[RetrievedPassage, ...]) -> int:
    return [candidate.passage.id for candidate in passages].index(passage_id)


if __name__ == "__main__":
    main()
