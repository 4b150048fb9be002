"""Does staging keep gates from collapsing? Staged against joint training, a few seeds each, small.

Staged: the saliency alone with tau_G = 1.0, then with region queries and fusion while tau_G falls
to 0.1 and tau_e rises to 0.6. Joint: all of it, and the verifier, from the first step on, with the
temperatures where staging ends, for as many steps in all at the same rate. Afterwards tokens' and
edges' gates are counted on held-out questions; a kind that is all open or all shut has collapsed:
by the gates as they are decided, and, less strictly, as training draws them. Runs share the cores,
a process each.

    python benchmarks/collapse.py --components FOLDER --records RUNS/records --pocket-kb KB \
        --data DATA --index INDEX
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skipqa.components import TRAINING_FREE
from skipqa.costs.environment import available_cores, write_results
from skipqa.training.loop import Phase, fit
from skipqa.training.pathway import context as context
from skipqa.training.pathway import stage2_saliency as pruning
from skipqa.training.pathway import stage3_fusion as pathways
from skipqa.training.pathway import stage4_verifier as verifying
from skipqa.training.pathway import stage6_joint as together
from skipqa.training.pathway.collapse import openness
from skipqa.training.pathway.context import Gathering, TrainingContext
from skipqa.training.pathway.gather import Source, one_thread
from skipqa.training.pathway.records import Records
from skipqa.training.pathway.stage3_fusion import TAU_E, TAU_G, Pathways
from skipqa.training.run import Run

WAYS = ("staged", "joint")
RATE, BATCH = 1e-3, 8
LEARNED, SHOWN = 600, 60  # questions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("components", "records", "data", "pocket-kb", "index"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="that the records were gathered with")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="of each of the two stages")
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    jobs = [(how, seed) for how in WAYS for seed in range(options.seeds)]
    with ProcessPoolExecutor(
        min(options.workers, len(jobs)), get_context("spawn"), one_thread
    ) as pool:
        runs = list(pool.map(gates_after, *zip(*jobs, strict=True), [options] * len(jobs)))
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
    results = summary | {"steps": options.steps, "rate": RATE, "batch": BATCH}
    print(f"written to {write_results(results, 'collapse', options.out)}")


def summed_up(runs: list[dict[str, Any]]) -> dict[str, Any]:
    def count(name: str) -> int:
        return sum(any(gates[name] for gates in run.values()) for run in runs)

    names = ("collapsed", "drawn_collapsed")
    return {"runs": len(runs), **{name: count(name) for name in names}, "gates": runs}


def gates_after(how: str, seed: int, options: argparse.Namespace) -> dict[str, Mapping[str, Any]]:
    """Of tokens and of edges how many are open, after one run of a seed, from nothing trained."""
    source = Source(components=options.components, index=options.index)
    wanted = Gathering() if options.limit is None else Gathering().at_most(options.limit)
    with tempfile.TemporaryDirectory() as folder:
        begun = context.begin(
            source,
            options.data,
            options.pocket_kb,
            replace(wanted, workers=1),
            options.records,
            Run(Path(folder), seed),
        )
        begun = replace(begun, records=some_of(begun), learned=TRAINING_FREE)
        trained = (staged if how == "staged" else joint)(begun, options.steps)
    rows = begun.rows("held-out", gold=True)
    return {
        "tokens": openness(pruning.gates_open(begun, trained.saliency, rows)).as_dict(),
        "edges": openness(edge_gates(begun, trained, rows)).as_dict(),
    }


def some_of(begun: TrainingContext) -> Records:
    """To learn from, and to count gates on."""
    rows = begun.rows("train", gold=True)[:LEARNED] + begun.rows("held-out", gold=True)[:SHOWN]
    return begun.records.only(rows)


def staged(begun: TrainingContext, steps: int) -> Pathways:
    first = pruning.SaliencyTraining(steps=steps, rate=RATE, batch=BATCH)
    learned = replace(TRAINING_FREE, saliency=pruning.train(begun, first))
    return pathways.train(replace(begun, learned=learned), path_settings(steps))


def joint(begun: TrainingContext, steps: int) -> Pathways:
    settings = together.JointTraining(pathways=path_settings(steps))
    everything = together.build(begun, settings)
    found = verifying.cases(begun)
    loss = together.loss_of(begun, everything, found, settings, TAU_G[1], TAU_E[1])
    phase = Phase(2 * steps, RATE, settings.pathways.warmup)
    return fit("joint", everything, loss, phase, begun.run).paths


def path_settings(steps: int) -> pathways.PathwayTraining:
    return pathways.PathwayTraining(steps=steps, rate=RATE, batch=BATCH)


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
