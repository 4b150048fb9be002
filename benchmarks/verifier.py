"""The verifier's F1 as stage IV measured it, kept where reports look for it.

python benchmarks/verifier.py --run RUNS/stage4
"""

from __future__ import annotations

import argparse
from pathlib import Path

from skipqa.components import Components
from skipqa.costs.environment import write_results
from skipqa.files import read_json

SHOWN = ("f1", "precision", "recall", "f1_stating", "read")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="the folder of stage IV")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    metrics = read_json(options.run / "metrics.json")
    found = metrics["pairs" if metrics.get("pairs", {}).get("ships") else "verifier"]
    print(f"{'':24}{'passages':>10}" + "".join(f"{name:>12}" for name in SHOWN))
    for split in ("held-out", "val"):
        if (measured := found[split]) is None:
            continue
        for how in ("trained", "training_free"):
            _show(f"{split}, {how}", measured["passages"], measured[how])
        for by in ("by_source", "by_corpus"):
            for name, own in measured.get(by, {}).items():
                _show(f"{split}, {name}", own["passages"], own["trained"])
    final = found["val"] or found["held-out"]
    results = {"f1": final["trained"]["f1"], "seed": read_json(options.run / "config.json")["seed"]}
    trained = {"verifier": Components(folder=options.run).checksums()["verifier"]}
    print(f"written to {write_results(results | found, 'verifier', options.out, trained)}")


def _show(name: str, passages: int, measured: dict[str, float]) -> None:
    numbers = "".join(f"{measured[key]:12.3f}" for key in SHOWN if key in measured)
    print(f"{name:24}{passages:10,}{numbers}")


if __name__ == "__main__":
    main()
