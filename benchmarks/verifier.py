"""The verifier's F1 as stage IV measured it, kept where reports look for it.

python benchmarks/verifier.py --run RUNS/stage4
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from skipqa.cli.console import err, out
from skipqa.costs.environment import write_results
from skipqa.data.files import read_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="the folder of stage IV")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    found = read_json(options.run / "metrics.json")["verifier"]
    table = Table("questions", "passages", "F1", "precision", "recall", "read", "training-free F1")
    for split in ("held-out", "val"):
        if (measured := found[split]) is None:
            continue
        own, other = measured["trained"], measured["training_free"]
        shown = (f"{own[name]:.3f}" for name in ("f1", "precision", "recall", "read"))
        questions = f"{measured['questions']:,} {split}"
        table.add_row(questions, f"{measured['passages']:,}", *shown, f"{other['f1']:.3f}")
    out.print(table)
    final = found["val"] or found["held-out"]
    results = {"f1": final["trained"]["f1"], "seed": read_json(options.run / "config.json")["seed"]}
    err.print(f"written to {write_results(results | found, 'verifier', options.out)}")


if __name__ == "__main__":
    main()
