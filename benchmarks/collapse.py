"""Does staging keep gates from collapsing? Staged against joint training, a few seeds each, small.

Staged: the saliency alone with tau_G = 1.0, then with region queries and fusion while tau_G falls
to 0.1 and tau_e rises to 0.6. Joint: all of it, and the verifier, from the first step on, with the
temperatures where staging ends, for as many steps in all at the same rate. Afterwards tokens' and
edges' gates are counted on held-out questions; a kind that is all open or all shut has collapsed.

    python benchmarks/collapse.py --run RUNS/stage4 --data DATA --pocket-kb KB --index INDEX
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from skipqa.cli.console import err, out, prepare_process
from skipqa.components import TRAINING_FREE
from skipqa.costs.environment import write_results
from skipqa.data.files import read_json
from skipqa.training import pathways, pruning, study, together, verifying
from skipqa.training.collapse import openness
from skipqa.training.gather import Source
from skipqa.training.loop import Phase, fit
from skipqa.training.pathways import TAU_E, TAU_G, Pathways
from skipqa.training.run import Run
from skipqa.training.study import Gathering, Study

RATE, BATCH, SHOWN = 1e-3, 16, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="any of stages II to VI")
    for name in ("data", "pocket-kb", "index"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="of each of the two stages")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    source = Source(components=options.run, index=options.index)
    wanted = Gathering(**read_json(options.run / "config.json")["settings"]["records"])
    records = options.run.parent / "records"
    with tempfile.TemporaryDirectory() as folder:
        begun = study.begin(
            source, options.data, options.pocket_kb, wanted, records, Run(Path(folder))
        )
        found = verifying.cases(begun.records, begun.pipeline, begun.run)
        results = {
            how: [
                gates_after(
                    how, seeded(begun, seed, Path(folder) / f"{how}-{seed}"), found, options
                )
                for seed in range(options.seeds)
            ]
            for how in ("staged", "joint")
        }
    summary: dict[str, Any] = {
        how: {
            "runs": len(runs),
            "collapsed": sum(any(one["collapsed"] for one in run.values()) for run in runs),
            "gates": runs,
        }
        for how, runs in results.items()
    }
    table = Table("training", "runs", "collapsed", "tokens open", "edges open")
    for how, kept in summary.items():
        shares = (
            " ".join(f"{run[kind]['open']:.2f}" for run in kept["gates"])
            for kind in ("tokens", "edges")
        )
        table.add_row(how, str(kept["runs"]), str(kept["collapsed"]), *shares)
    out.print(table)
    summary["steps"] = options.steps
    err.print(f"written to {write_results(summary, 'collapse', options.out)}")


def seeded(begun: Study, seed: int, folder: Path) -> Study:
    """From nothing trained, whatever the records were gathered with."""
    return replace(begun, learned=TRAINING_FREE, run=Run(folder, seed))


def gates_after(
    how: str, begun: Study, found: verifying.Cases, options: argparse.Namespace
) -> dict[str, Any]:
    steps = options.steps
    paths = pathways.PathwayTraining(steps=steps, rate=RATE, batch=BATCH)
    if how == "staged":
        first = pruning.SaliencyTraining(steps=steps, rate=RATE, batch=BATCH)
        learned = replace(TRAINING_FREE, saliency=pruning.train(begun, first))
        trained = pathways.train(replace(begun, learned=learned), paths)
    else:
        settings = together.JointTraining(pathways=paths)
        everything = together.build(begun, settings)
        loss = together.loss_of(begun, everything, found, settings, TAU_G[1], TAU_E[1])
        phase = Phase(2 * steps, RATE, paths.warmup)
        trained = fit("joint", everything, loss, phase, begun.run).paths
    rows = begun.rows("held-out", gold=True)[:SHOWN]
    tokens = pruning.gates_open(begun, trained.saliency, rows)
    return {
        "tokens": openness(tokens).as_dict(),
        "edges": openness(edge_gates(begun, trained, rows)).as_dict(),
    }


@torch.inference_mode()
def edge_gates(begun: Study, trained: Pathways, rows: list[int]) -> Tensor:
    """1 where a (token, passage) pair reaches tau_e as it is in the end."""
    records, found = begun.records, []
    for i in rows:
        tokens = records["meaning"][i][records["kept"][i]].float()
        passages = records.table.embeddings[records.places(i)]
        if len(passages):
            found.append(trained.fusion.compatibility(tokens, passages).flatten())
    return (torch.cat(found) >= TAU_E[1]).float()


if __name__ == "__main__":
    main()
