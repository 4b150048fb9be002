"""Adaptive budgets against the best fixed one at equal FLOPs, as stage V measured them.

python benchmarks/budget.py --run RUNS/stage5
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from skipqa.costs.environment import write_results
from skipqa.files import read_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="the folder of stage V")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    found = read_json(options.run / "metrics.json")["budget"]
    columns = ("questions", "looked up", "GFLOPs", "score", "best fixed", "points")
    print(f"{'':24}" + "".join(f"{name:>12}" for name in columns))
    for split in ("held-out", "val"):
        if split not in found:
            continue
        print(_row(f"{split}, all", found[split]))
        for source, own in found[split]["by_source"].items():
            print(_row(f"{split}, {source}", own))
    results = found | {"seed": read_json(options.run / "config.json")["seed"]}
    print(f"written to {write_results(results, 'budget', options.out)}")


def _row(name: str, own: dict[str, Any]) -> str:
    gain = {key: 100 * value for key, value in own["gain"].items()}
    numbers = (
        f"{own['questions']:12,}",
        f"{100 * (1 - own['no_retrieval']):11.0f}%",
        f"{own['adaptive']['giga_flops']:12.1f}",
        f"{100 * own['adaptive']['score']:12.1f}",
        f"{100 * own['fixed_at_equal_flops']:12.1f}",
    )
    interval = f"{gain['mean']:+.1f} ({gain['low']:+.1f} to {gain['high']:+.1f})"
    return f"{name:24}{''.join(numbers)}  {interval}"


if __name__ == "__main__":
    main()
