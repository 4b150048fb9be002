"""Claims about retrieval: small and rare entities, duplicates, another corpus.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

import numpy as np

from skipqa.claims.rules.runs import both, in_subset, needs_runs
from skipqa.claims.verdict import (
    Evidence,
    Finding,
    Verdict,
    by_interval,
    holds_if,
    missing,
    on_every_set,
)
from skipqa.evaluation.reports.comparison import pair
from skipqa.evaluation.reports.markdown import points
from skipqa.evaluation.reports.runs import QuestionSet, Run
from skipqa.evaluation.reports.tables import RECALL
from skipqa.evaluation.statistics import Comparison


def small_entities(evidence: Evidence) -> Finding:
    """By the benchmark if it was run: the same comparison on more questions."""

    def lifted(one_query: float, regions: float, gain: Comparison, of: str = "") -> Finding:
        said = (
            f"{100 * one_query:.1f} → {100 * regions:.1f} on {gain.count:,} questions{of}, "
            f"{points(gain)} points"
        )
        return Finding(by_interval(gain, least=0.71 - 0.43), said)

    if (things := evidence.benchmark("small_things")) is not None:
        small = things["results"]["small"]
        recall = {query: found["mean"] for query, found in small["recall"].items()}
        gain = Comparison(**small["skip_less"]["kept tokens"])
        finding = lifted(recall["kept tokens"], recall["skip"], gain, " of Pocket-KB")
        low_res = f"one query of the low-resolution image has {100 * recall['low_res']:.1f}"
        return Finding(finding.verdict, f"{finding.said}; {low_res}")

    def rule(found: QuestionSet) -> Finding | None:
        if (runs := both(found, "skip", "skip-global-retrieval")) is None:
            return None
        recalls = pair(*runs, RECALL, in_subset("small"))
        if not len(recalls):
            return None
        return lifted(recalls.second.mean(), recalls.first.mean(), recalls.compare())

    needed = needs_runs("skip", "skip-global-retrieval")
    return on_every_set(evidence, rule, f"{needed}, with a subset `small` and gold passages")


def longtail(evidence: Evidence) -> Finding:
    """Popular and rare are the two halves of the questions; the paper takes quartiles."""

    def rule(found: QuestionSet) -> Finding | None:
        if (runs := both(found, "skip-adr", "skip")) is None:
            return None
        popularity = list(runs[1].column("popularity").values())
        if not popularity:
            return None
        middle = float(np.median(popularity))
        rare = pair(*runs, "score", lambda r: r.get("popularity", np.inf) < middle)
        popular = pair(*runs, "score", lambda r: r.get("popularity", -np.inf) >= middle)
        if not len(rare) or not len(popular):
            return None
        gap = popular.second.mean() - rare.second.mean()
        if gap <= 0:
            return Finding(Verdict.UNDECIDED, f"no gap to close: {100 * gap:+.1f} points")
        closed = (rare.first.mean() - rare.second.mean()) / gap
        said = f"{100 * closed:.0f} % of {100 * gap:.1f} points on {len(rare):,} rare questions"
        return Finding(holds_if(closed >= 0.55), said)

    return on_every_set(evidence, rule, needs_runs("skip", "skip-adr") + " with popularities")


def duplicates(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        for run in found.of_system("skip"):
            hits, unique = run.column("hits"), run.column("unique")
            if total := sum(hits.values()):
                fraction = 1 - sum(unique.values()) / total
                said = f"{100 * fraction:.1f} % of {total:,.0f} hits were duplicates"
                return Finding(holds_if(0.40 <= fraction <= 0.60), said)
        return None

    return on_every_set(evidence, rule, needs_runs("skip") + " whose records count hits")


def corpus(evidence: Evidence) -> Finding:
    """Holds where one system answers over two indexes with the same config and components."""
    alike: dict[str, dict[str, Run]] = {}
    for found in evidence.sets:
        for run in found.runs:
            kind = repr((run.system, run.about.get("config"), run.about.get("components")))
            alike.setdefault(kind, {}).setdefault(str(run.trait("index")), run)
    swapped = max(alike.values(), key=len, default={})
    if len(swapped) < 2:
        return missing("needs one system over two corpora (`skipqa eval vqa --index …`)")
    said = ", ".join(
        f"{name} ({run.summary['num_questions']:,} questions)" for name, run in swapped.items()
    )
    return Finding(Verdict.HOLDS, f"same config and components over {said}")
