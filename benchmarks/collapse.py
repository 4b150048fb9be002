"""Does staging keep gates from collapsing? Staged against joint training, a few seeds each, small.

Staged: the saliency alone with tau_G = 1.0, then with region queries and fusion while tau_G falls
to 0.1 and tau_e rises to 0.6. Joint: all of these, and the verifier, from the first step on, with
the temperatures where staging ends, for as many steps in total at the same lr. Afterwards the gates
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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skipqa.components import TRAINING_FREE
from skipqa.costs.environment import available_cores, write_results
from skipqa.parallel import Workers
from skipqa.training.loop import Optimisation, fit
from skipqa.training.pathway import gather
from skipqa.training.pathway.collapse import openness
from skipqa.training.pathway.context import Gathering, TrainingContext, begin
from skipqa.training.pathway.records import Records
from skipqa.training.pathway.stage import QUESTIONS_SEED
from skipqa.training.pathway.stage2_saliency import SaliencyPart, SaliencyTraining, gates_open
from skipqa.training.pathway.stage3_fusion import (
    TAU_E,
    TAU_G,
    Pathways,
    PathwaysPart,
    PathwayTraining,
)
from skipqa.training.pathway.stage6_joint import JointPart, JointTraining
from skipqa.training.pipelines import Source
from skipqa.training.run import Run

WAYS = ("staged", "joint")
LR, BATCH = 1e-3, 8
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


def staged(begun: TrainingContext, steps: int) -> Pathways:
    first, second = SaliencyPart(), PathwaysPart()
    settings = SaliencyTraining(steps=steps, lr=LR, batch=BATCH)
    saliency = first.train(begun, settings, first.prepare(begun, settings))
    begun = replace(begun, learned=replace(TRAINING_FREE, saliency=saliency))
    paths = path_settings(steps)
    return second.train(begun, paths, second.prepare(begun, paths))


def joint(begun: TrainingContext, steps: int) -> Pathways:
    part, settings = JointPart(), JointTraining(pathways=path_settings(steps))
    model = part.build(begun, settings)
    loss = part.loss(begun, settings, part.prepare(begun, settings), model)
    optimisation = Optimisation(2 * steps, LR, settings.pathways.warmup)
    return fit("joint", model, loss, optimisation, begun.run).paths


def path_settings(steps: int) -> PathwayTraining:
    return PathwayTraining(steps=steps, lr=LR, batch=BATCH)


@torch.inference_mode()
def edge_gates(begun: TrainingContext, trained: Pathways, rows: list[int]) -> Tensor:
    """As training relaxes them in the end: half open at tau_e."""
    records, found = begun.records, []
    for i in rows:
        tokens = records["meaning"][i][records["kept"][i]].float()
        passages = records.table.embeddings[records.places(i)]
        if len(passages):
            found.append(trained.fusion.compatibility(tokens, passages).flatten())
    return ((torch.cat(found) - TAU_E[1]) / TAU_G[1]).sigmoid()


if __name__ == "__main__":
    main()
