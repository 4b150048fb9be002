"""Claims about time and memory, decided by benchmarks alone.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

from skipqa.claims.verdict import Evidence, Finding, holds_if, missing
from skipqa.evaluation.reports.markdown import times


def fusion_layer(evidence: Evidence) -> Finding:
    if (kernels := evidence.benchmark("kernels")) is None:
        return missing("needs `python benchmarks/kernels.py` on a GPU")
    best: dict[int, float] = {}
    for layer in kernels["results"]["layers"]:
        if layer["passages"] == 6:  # the paper's median budget
            best[layer["batch"]] = max(best.get(layer["batch"], 0.0), layer["times_faster"])
    if not best:
        return missing("the results of `kernels` have no layer with K' = 6")
    said = ", ".join(f"{times(ratio)} at batch {batch}" for batch, ratio in sorted(best.items()))
    where = kernels["machine"].get("gpu", "a CPU")
    return Finding(holds_if(min(best.values()) >= 7.2), f"K' = 6 on {where}: {said}")


def kv_cache(evidence: Evidence) -> Finding:
    if (pathway := evidence.benchmark("pathway")) is None:
        return missing("needs `python benchmarks/pathway.py` on a GPU")
    saved = {name: kv["saved"] for name, kv in pathway["results"]["summary"]["kv_cache"].items()}
    said = ", ".join(f"{name} −{100 * fraction:.1f} %" for name, fraction in saved.items())
    return Finding(holds_if(min(saved.values()) >= 0.62), f"7B shapes: {said}")


def routing_overhead(evidence: Evidence) -> Finding:
    if (overhead := evidence.benchmark("routing_overhead")) is None:
        return missing("needs `python benchmarks/routing_overhead.py`")
    fractions = {name: run["fraction"] for name, run in overhead["results"].items()}
    said = ", ".join(f"{name} {100 * fraction:.2f} %" for name, fraction in fractions.items())
    return Finding(holds_if(max(fractions.values()) < 0.05), said)
