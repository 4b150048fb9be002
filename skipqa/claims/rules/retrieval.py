"""Claims about retrieval: small and rare entities, duplicates, another corpus.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

import numpy as np

from skipqa.claims.rules.runs import KNOWLEDGE, both, needs_runs
from skipqa.claims.verdict import (
    Evidence,
    Finding,
    Verdict,
    by_interval,
    from_results,
    from_runs,
    holds_if,
    missing,
    on_strongest_set,
    strongest,
)
from skipqa.evaluation.reports.comparison import pair
from skipqa.evaluation.reports.markdown import bounds, points
from skipqa.evaluation.reports.runs import QuestionSet
from skipqa.evaluation.statistics import Comparison

LIFT = 0.71 - 0.43
LEAST_SAVED = 0.40  # of the hits; to save more is no failure


def small_entities(evidence: Evidence) -> Finding:
    """Region queries against one query for the same tokens, zoom off in both; what zoom adds is
    said apart, as it is no part of the claim."""
    if (things := evidence.benchmark("small_things")) is None:
        return missing("needs `python benchmarks/small_things.py`")
    found = things["results"]["small"]
    recall = {query: interval["mean"] for query, interval in found["recall"].items()}
    regions, zoom = Comparison(**found["regions_less_one_query"]), Comparison(**found["zoom_adds"])
    said = (
        f"{100 * recall['kept tokens']:.1f} → {100 * recall['regions']:.1f} on {regions.count:,} "
        f"questions, {points(regions)} points; zoom adds {points(zoom)}"
    )
    return from_results(by_interval(regions, LIFT), said, things, regions.count)


def longtail(evidence: Evidence) -> Finding:
    """By the benchmark or by runs. In runs popular and rare are the two halves of the questions;
    the paper takes quartiles."""

    def benchmark() -> Finding | None:
        if (measured := evidence.benchmark("longtail")) is None:
            return None
        closed, count = measured["results"]["gap_closed"], measured["results"]["questions"]
        rare = count["longtail"]
        gap = Comparison(closed["fraction"], closed["low"], closed["high"], np.nan, rare)
        said = (
            f"{100 * gap.difference:.0f} % ({bounds(closed, 100, '.0f')}) of "
            f"{100 * closed['gap']:.1f} points on {rare:,} rare questions"
        )
        return from_results(by_interval(gap, least=0.55), said, measured, rare)

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
            said = f"no gap to close: {100 * gap:+.1f} points"
            return from_runs(Verdict.UNDECIDED, said, len(rare), *runs)
        closed = (rare.first.mean() - rare.second.mean()) / gap
        said = f"{100 * closed:.0f} % of {100 * gap:.1f} points on {len(rare):,} rare questions"
        return from_runs(holds_if(closed >= 0.55), said, len(rare), *runs)

    needed = needs_runs("skip", "skip-adr") + " with popularities"
    return strongest([benchmark(), *map(rule, evidence.sets)], needed)


def duplicates(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        for run in found.of_system("skip"):
            hits, unique = run.column("hits"), run.column("unique")
            if total := sum(hits.values()):
                fraction = 1 - sum(unique.values()) / total
                said = f"{100 * fraction:.1f} % of {total:,.0f} hits were duplicates"
                return from_runs(holds_if(fraction >= LEAST_SAVED), said, len(hits), run)
        return None

    needed = needs_runs("skip") + " whose records count hits"
    return on_strongest_set(evidence, rule, needed, KNOWLEDGE)


def corpus(evidence: Evidence) -> Finding:
    """Holds where the same config and components answer better over a domain's own corpus than over
    another's, in both domains."""
    if (swap := evidence.benchmark("corpus_swap")) is None:
        return missing("needs `python benchmarks/corpus_swap.py`")
    corpora, domains = swap["results"]["corpora"].values(), swap["results"]["domains"]
    alike = all(
        len({str(corpus[name]) for corpus in corpora}) == 1
        for name in ("config_sha256", "components_sha256")
    )
    gains = {name: Comparison(**found["own_less_other"]) for name, found in domains.items()}
    verdict = min([holds_if(alike), *(by_interval(gain) for gain in gains.values())])
    said = "; ".join(
        f"{name}: {_accuracies(found)}, {points(gains[name])} points on {found['questions']:,}"
        for name, found in domains.items()
    )
    count = sum(found["questions"] for found in domains.values())
    how = "nothing else changed" if alike else "but more than the corpus changed"
    return from_results(verdict, f"{said}; {how}", swap, count)


def _accuracies(found: dict[str, dict[str, dict[str, float]]]) -> str:
    shown = (f"{100 * a['mean']:.1f} over {name}" for name, a in found["accuracy"].items())
    return ", ".join(shown)
