"""Claims about time and memory, decided by benchmarks alone.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

from skipqa.claims.verdict import Evidence, Finding, Verdict, from_results, holds_if, missing
from skipqa.evaluation.reports.markdown import times

ROUTING = 0.05  # of a question's time


def fusion_layer(evidence: Evidence) -> Finding:
    if (kernels := evidence.benchmark("kernels", uses=())) is None:
        return missing("needs `python benchmarks/kernels.py` on a GPU")
    best: dict[int, float] = {}
    for layer in kernels["results"]["layers"]:
        if layer["passages"] == 6:  # the paper's median budget
            best[layer["batch"]] = max(best.get(layer["batch"], 0.0), layer["times_faster"])
    if not best:
        return missing("the results of `kernels` have no layer with K' = 6")
    said = ", ".join(f"{times(ratio)} at batch {batch}" for batch, ratio in sorted(best.items()))
    where = kernels["machine"].get("gpu", "a CPU")
    verdict = holds_if(min(best.values()) >= 7.2)
    return from_results(verdict, f"K' = 6 on {where}: {said}", kernels)


def kv_cache(evidence: Evidence) -> Finding:
    if (pathway := evidence.benchmark("pathway", uses=())) is None:
        return missing("needs `python benchmarks/pathway.py` on a GPU")
    saved = {name: kv["saved"] for name, kv in pathway["results"]["summary"]["kv_cache"].items()}
    said = ", ".join(f"{name} −{100 * fraction:.1f} %" for name, fraction in saved.items())
    return from_results(holds_if(min(saved.values()) >= 0.62), f"7B shapes: {said}", pathway)


def routing_overhead(evidence: Evidence) -> Finding:
    """Of the trained pipeline, both ways: fusion needs the passages' states too, so encoding them
    may or may not count as routing."""
    if (overhead := evidence.benchmark("routing_overhead")) is None:
        return missing("needs `python benchmarks/routing_overhead.py`")
    ways = overhead["results"]["trained"]
    without, with_encoding = ways["fraction"], ways["fraction_with_encoding"]
    verdicts = {without < ROUTING, with_encoding < ROUTING}
    verdict = Verdict.UNDECIDED if len(verdicts) == 2 else holds_if(verdicts.pop())
    said = (
        f"{100 * without:.2f} % without the verifier's encoding of passages, "
        f"{100 * with_encoding:.2f} % with it"
    )
    return from_results(verdict, said, overhead)
