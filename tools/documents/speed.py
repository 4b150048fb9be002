"""Blocks about time, memory and FLOPs: `skipqa ask`, the kernels, the 7B pathway, routing.

Enters: a results file. Leaves: the Markdown of a block.
"""

from __future__ import annotations

import statistics

from skipqa.evaluation.reports.markdown import ABSENT, table
from skipqa.evaluation.results import Results
from tools.documents.source import source


def ask(results: Results) -> str:
    runs = results["results"]["runs"]

    def row(label: str, key: str, unit: str) -> list[str]:
        values = [run[key] for run in runs]
        return [label, f"{statistics.median(values):.2f} {unit}", f"{max(values):.2f} {unit}"]

    rows = [
        row("`skipqa ask`, from start to exit", "wall_s", "s"),
        row("of that, in the pipeline", "pipeline_s", "s"),
        row("peak memory", "peak_gb", "GB"),
    ]
    return table(["", "median", "worst"], rows) + "\n" + source(results)


def kernels(results: Results) -> str:
    found = results["results"]
    rows = []
    for order in ("project", "absorb"):
        for passages in (6, 16):
            cells = {
                layer["batch"]: f"{layer['times_faster']:.1f}x"
                for layer in found["layers"]
                if layer["order"] == order and layer["passages"] == passages
            }
            rows.append([f"fusion layer, K' = {passages}, {order}", *cells.values()])
    for tokens in (64, 576):
        for density in (0.05, 0.1, 0.25):
            cells = {
                point["batch"]: f"{point['times_faster_with_schedule']:.2f}x"
                for point in found["attention"]
                if point["tokens"] == tokens and point["density"] == density
            }
            rows.append([f"attention alone, V' = {tokens}, {density:.0%} edges", *cells.values()])
    backward = {b["batch"]: f"{b['times_faster']:.2f}x" for b in found["backward"]}
    rows.append(["backward, V' = 576, 10% edges", backward.get(1, ""), backward[8], backward[32]])
    header = ["faster than dense attention", "batch 1", "batch 8", "batch 32"]
    return table(header, rows) + "\n" + source(results)


def pathway(results: Results) -> str:
    found = results["results"]["summary"]
    rate = str(results["results"]["load"]["draft_rate"])
    rows = []
    for name in ("skip fused", "skip read"):
        latency = found["latency_ms"][name][rate]
        rows.append(
            [
                name,
                f"{latency['mean']:.1f}",
                f"{latency['times_faster']:.2f}x",
                f"{found['throughput'][f'batch 8, {name}']['times_more']:.2f}x",
                f"{found['flops'][name]['times_fewer']:.2f}x",
                f"{found['kv_cache'][name]['saved']:.0%}",
            ]
        )
    header = [
        "7B shapes",
        "mean ms",
        "faster",
        "throughput, batch 8",
        "fewer FLOPs",
        "KV cache saved",
    ]
    note = (
        f"\nDense: {found['dense_ms']:.1f} ms per question. Fast-path rate {rate} is the paper's, "
        "an input here; `fused` gives the decoder fused tokens only, `read` the passages too.\n"
    )
    return table(header, rows) + "\n" + note + source(results).lstrip()


def routing_overhead(results: Results) -> str:
    rows = [
        [
            name,
            f"{run['total_ms']:.0f}",
            f"{run['routing_ms']:.1f}",
            *(
                f"{run[key]:.2%}" if key in run else ABSENT
                for key in ("fraction", "fraction_with_encoding")
            ),
        ]
        for name, run in results["results"].items()
    ]
    header = ["components", "question, ms", "routing, ms", "fraction", "with passages encoded"]
    return table(header, rows) + "\n" + source(results)
