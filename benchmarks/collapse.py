"""Does staging keep gates from collapsing? Staged against joint training, a few seeds each, small.

Staged: the saliency alone with tau_G = 1.0, then the fusion reader while tau_G falls to 0.1 and
tau_e rises to 0.6. Joint: both of these, and the verifier, from the first step on, with the
temperatures where staging ends, for as many steps in total at the same lr. Afterwards the gates
of tokens and edges are counted on held-out questions; a kind that is all open or all shut has
collapsed: with gates thresholded and, less strictly, as training samples them. Runs share the
cores, one process each.

    python benchmarks/collapse.py --components FOLDER --records RUNS/records --pocket-kb KB \
        --data DATA --index INDEX
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skipqa.components import TRAINING_FREE
from skipqa.costs.environment import available_cores, write_results
from skipqa.nn.fusion_reader import FusionReader
from skipqa.nn.saliency import Saliency
from skipqa.parallel import Workers
from skipqa.training.pathway import gather
from skipqa.training.pathway.collapse import openness
from skipqa.training.pathway.context import Gathering, TrainingContext, begin
from skipqa.training.pathway.fusion_examples import from_records
from skipqa.training.pathway.fusion_loss import AT_ONCE, FusionTables, Offer, read_hard
from skipqa.training.pathway.read_today import read_as_text
from skipqa.training.pathway.records import Records
from skipqa.training.pathway.stage import QUESTIONS_SEED
from skipqa.training.pathway.stage2_saliency import SaliencyPart, SaliencyTraining, gates_open
from skipqa.training.pathway.stage3_fusion import (
    TAU_G,
    FusionInputs,
    FusionPart,
    FusionTraining,
    reader_of,
)
from skipqa.training.pathway.stage6_joint import JointPart, JointTraining
from skipqa.training.pipelines import Source
from skipqa.training.run import Run

WAYS = ("staged", "joint")
LR, BATCH, WARMUP = 1e-3, 8, 30
TRAINED_ON, COUNTED_ON = 600, 60  # questions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("components", "records", "data", "pocket-kb"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--index", action="append", default=[], help="may be repeated")
    parser.add_argument("--limit", type=int, help="that the records were gathered with")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="of each of the two stages")
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    jobs = [(how, seed) for how in WAYS for seed in range(options.seeds)]
    with Workers(partial(ready, options), options.workers) as workers:
        runs = list(workers.map(jobs))
    found = {
        how: [run for job, run in zip(jobs, runs, strict=True) if job[0] == how] for how in WAYS
    }
    summary = {how: summed_up(some) for how, some in found.items()}
    for how, kept in summary.items():
        print(
            f"{how}: {kept['collapsed']} of {kept['runs']} collapsed as decided, "
            f"{kept['drawn_collapsed']} as drawn"
        )
        for kind in ("tokens", "edges"):
            probs = (f"{run[kind]['open']:.2f} ({run[kind]['drawn']:.2f})" for run in kept["gates"])
            print(f"  {kind} open as decided (drawn): {', '.join(probs)}")
    results = summary | {"steps": options.steps, "lr": LR, "batch": BATCH}
    print(f"written to {write_results(results, 'collapse', options.out)}")


def summed_up(runs: list[dict[str, Any]]) -> dict[str, Any]:
    def count(name: str) -> int:
        return sum(any(gates[name] for gates in run.values()) for run in runs)

    names = ("collapsed", "drawn_collapsed")
    return {"runs": len(runs), **{name: count(name) for name in names}, "gates": runs}


def ready(options: argparse.Namespace) -> Callable[[tuple[str, int]], dict[str, Any]]:
    torch.set_num_threads(1)  # a process per core
    return lambda job: gates_after(*job, options)


def gates_after(how: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """How many gates of tokens and of edges are open after one run of a seed, from scratch."""
    source = Source(components=options.components, index=tuple(options.index))
    gathering = Gathering() if options.limit is None else Gathering().at_most(options.limit)
    gathering = replace(gathering, workers=1)
    questions = gather.questions(
        options.data, options.pocket_kb, gathering.counts(), QUESTIONS_SEED
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), seed)
        with begin(source, questions, gathering, options.records, run) as begun:
            fewer = replace(begun, records=some_of(begun), learned=TRAINING_FREE)
            trained = (staged if how == "staged" else joint)(fewer, options.steps)
            rows = fewer.rows("held-out", gold=True)
            return {
                "tokens": openness(gates_open(fewer, trained.saliency, rows)).as_dict(),
                "edges": openness(edge_gates(fewer, trained, rows)).as_dict(),
            }


def some_of(begun: TrainingContext) -> Records:
    """To train on, and to count gates on."""
    train, held_out = (begun.rows(split, gold=True) for split in ("train", "held-out"))
    return begun.records.only(train[:TRAINED_ON] + held_out[:COUNTED_ON])


@dataclass(frozen=True, slots=True)
class Gated:
    saliency: Saliency
    fusion: FusionReader
    data: FusionInputs


def staged(begun: TrainingContext, steps: int) -> Gated:
    first, second = SaliencyPart(), FusionPart()
    settings, fusing = SaliencyTraining(steps=steps, lr=LR, batch=BATCH), fusion_settings(steps)
    saliency = first.train(begun, settings, first.prepare(begun, settings))
    data = second.prepare(begun, fusing)
    return Gated(saliency, reader_of(second.train(begun, fusing, data)), data)


def joint(begun: TrainingContext, steps: int) -> Gated:
    saliency = SaliencyTraining(batch=BATCH, temperature=TAU_G[1])
    settings = JointTraining(
        2 * steps, LR, WARMUP, saliency=saliency, fusion=fusion_settings(steps)
    )
    part = JointPart()
    data = part.prepare(begun, settings)
    model = part.train(begun, settings, data)
    return Gated(model.saliency, reader_of(model.fusion), data.fusion)


def fusion_settings(steps: int) -> FusionTraining:
    """Without generated questions, and without learning to point first: both ways learn from the
    same records."""
    return FusionTraining(
        pointing_steps=0, steps=steps, lr=LR, warmup=WARMUP, batch=BATCH, generated=0
    )


def edge_gates(begun: TrainingContext, trained: Gated, rows: list[int]) -> Tensor:
    """Of all pairs, as training relaxes them in the end: half open at tau_e."""
    data = trained.data
    today = begun.spread(read_as_text, rows, "verifying passages")
    tables = FusionTables(from_records(begun, rows, today), data.scenes, data.networks)
    found = []
    for first in range(0, len(rows), AT_ONCE):
        offers = []
        for row, one in list(enumerate(tables.examples))[first : first + AT_ONCE]:
            texts = tuple(tables.row[text] for text in (*one.gold, *one.others))
            offers.append(Offer(row, texts, tuple(tables.texts[n] in one.gold for n in texts)))
        lengths = tables.batch(offers).lengths_BK
        there = (lengths > 0)[:, None].expand(-1, data.scenes.features_NVF.shape[1], -1)
        found.append(read_hard(trained.fusion, tables, offers, there).edges.gates_BVK[there])
    return torch.cat(found)


if __name__ == "__main__":
    main()
