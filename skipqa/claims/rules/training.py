"""Claims about training: collapse, and the spread over seeds.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skipqa.claims.verdict import (
    Evidence,
    Finding,
    Verdict,
    from_results,
    from_runs,
    holds_if,
    missing,
    on_strongest_set,
)
from skipqa.evaluation.reports.comparison import seed_accuracies, seed_groups
from skipqa.evaluation.reports.runs import QuestionSet
from skipqa.evaluation.statistics import across_seeds


def collapse(evidence: Evidence) -> Finding:
    if (collapse := evidence.benchmark("collapse", uses=())) is None:
        return missing("needs `python benchmarks/collapse.py`")
    staged, joint = collapse["results"]["staged"], collapse["results"]["joint"]
    said = ", ".join(
        f"{name}: {runs['collapsed']} of {runs['runs']} collapsed"
        for name, runs in (("staged", staged), ("joint", joint))
    )
    verdict = holds_if(staged["collapsed"] == 0 and joint["collapsed"] > 0)
    return from_results(verdict, said, collapse)


def seeds(evidence: Evidence) -> Finding:
    """Not of one checkpoint: of the recipe, with several seeds."""

    def apart(accuracies: Sequence[float], on: str) -> tuple[Verdict, str]:
        spread = across_seeds(100 * np.array(accuracies))
        said = (
            f"{spread.mean:.1f} ± {spread.deviation:.2f} over {spread.count} seeds, largest "
            f"minus smallest {spread.spread:.2f}, {on}"
        )
        return holds_if(spread.deviation <= 0.4), said

    def rule(found: QuestionSet) -> Finding | None:
        for group in seed_groups(found.of_system("skip")):
            trained = {repr(run.about.get("components")) for run in group}
            accuracies, shared = seed_accuracies(group)
            if len(trained) >= 3 and shared:
                return from_runs(*apart(accuracies, f"{shared:,} questions"), shared, *group)
        return None

    needed = "needs runs of `skip` with components trained with three seeds"
    finding = on_strongest_set(evidence, rule, f"{needed} (`--components C --seed S`)")
    stage1 = evidence.benchmark("stage1", uses=())
    if finding.verdict != Verdict.UNMEASURED or stage1 is None:
        return finding
    seeds = stage1["results"]["seeds"].values()
    accuracies = [found["reader"]["joint"]["okvqa/val"]["accuracy"] for found in seeds]
    if len(accuracies) < 3:
        return finding
    return from_results(*apart(accuracies, "OK-VQA val as measured by stage I"), stage1)
