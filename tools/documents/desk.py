"""The block about the preset `desk` next to the dense system (`benchmarks/desk.py`).

Enters: a results file. Leaves: the Markdown of the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skipqa.evaluation.reports.markdown import ABSENT, percent, points, table
from skipqa.evaluation.results import Results
from skipqa.evaluation.statistics import Comparison
from tools.documents.source import source

PARTS = {"all": "", "full path": ", full path", "looked up": ", looked up"}
FEWEST = 20  # questions that a part needs for rows of its own


def desk(results: Results) -> str:
    found = results["results"]
    summary = found["summary"]
    parts, throughput = summary["parts"], summary["throughput"]
    costs = [
        [name + label, *_costs(one)]
        for part, label in PARTS.items()
        if part in parts and (part == "all" or parts[part]["questions"] >= FEWEST)
        for name, one in parts[part]["systems"].items()
    ]
    header = ["", "p50 / p95, ms", "mean, ms", "faster", "GFLOPs", "fewer", "KV cache, MB", "saved"]
    answers = [
        [name, *_answers(one, throughput, name)] for name, one in parts["all"]["systems"].items()
    ]
    together = "" if throughput is None else f", {throughput['batch']} together"
    second = ["", "drafted", "soft accuracy, %", "to dense", "to no-retrieval"]
    second += [f"questions per second{together}", "more"]
    full, looked_up = (
        parts[part]["questions"] if part in parts else 0 for part in ("full path", "looked up")
    )
    note = (
        f"{found['answered']} questions, of which `skip` drafted {found['answered'] - full} and "
        f"looked up {looked_up}; {found['weights']} weights. In brackets 95 % bootstrap intervals "
        "over questions; ratios are to `dense`, those of time from means."
    )
    return (
        "\n\n".join([table(header, costs), table(second, answers), note]) + "\n" + source(results)
    )


def _costs(one: Mapping[str, Any]) -> list[str]:
    latency, cache = one["latency_ms"], one["cache_bytes"]
    return [
        f"{latency['p50']:,.0f} / {latency['p95']:,.0f}",
        f"{latency['mean']:,.0f}",
        f"{one['times_faster']['mean']:.2f}x",
        f"{one['flops'] / 1e9:,.0f}",
        f"{one['times_fewer_flops']:.2f}x",
        f"{cache['mean'] / 1e6:.1f}",
        f"{one['cache_saved']['mean']:.0%}",
    ]


def _answers(one: Mapping[str, Any], throughput: Mapping[str, Any] | None, name: str) -> list[str]:
    differences = (one["differences"].get(other) for other in ("dense", "no-retrieval"))
    pace = None if throughput is None else throughput["systems"][name]
    return [
        f"{one['drafted']:.0%}",
        percent(one["accuracy"]),
        *(ABSENT if told is None else points(Comparison(**told)) for told in differences),
        ABSENT if pace is None else f"{pace['questions_per_second']:.1f}",
        ABSENT if pace is None else f"{pace['times_more']:.2f}x",
    ]
