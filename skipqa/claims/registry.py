"""The paper's twenty claims, and what was measured about each.

Enters: runs and results files of benchmarks. Leaves: a finding per claim, and a section of a
report. The paper's own figures stand next to the measured ones and are marked as the paper's.
How a claim is decided is in `rules/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skipqa.claims.bound import EXAMPLE_TOKENS
from skipqa.claims.rules import accuracy, cost, pruning, retrieval, routing, training
from skipqa.claims.verdict import Evidence, Finding, missing
from skipqa.evaluation.reports.markdown import table

VERDICTS = """\
The paper's figures are its own and were measured on other models. A claim about accuracies holds
where its whole interval does, does not hold where none of it does, and is undecided otherwise.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    text: str
    paper: str  # the paper's own figure
    rule: Callable[[Evidence], Finding]


@dataclass(frozen=True, slots=True)
class Judged:
    number: int  # as in the report
    claim: Claim
    finding: Finding


def judge(evidence: Evidence) -> list[Judged]:
    judged = []
    for number, claim in enumerate(CLAIMS, 1):
        try:
            finding = claim.rule(evidence)
        except (KeyError, TypeError) as error:  # a results file in an older format
            finding = missing(f"its results file has another format: {error!r}")
        judged.append(Judged(number, claim, finding))
    return judged


def section(judged: Sequence[Judged]) -> str:
    """The claims as a section of a Markdown report."""
    counts = Counter(str(one.finding.verdict) for one in judged)
    total = ", ".join(f"{verdict} {counts[verdict]}" for verdict in sorted(counts))
    rows = [
        [
            str(one.number),
            one.claim.text,
            one.claim.paper,
            one.finding.said,
            f"**{one.finding.verdict}**",
        ]
        for one in judged
    ]
    header = ["", "claim", "the paper's own figure", "measured here", "verdict"]
    return (
        f"## The paper's claims\n\n{VERDICTS}Of {len(judged)}: {total}.\n\n{table(header, rows)}\n"
    )


CLAIMS = (
    Claim(
        "accuracy at least the strongest dense baseline's with 4.07x fewer FLOPs, 2.69x faster",
        "63.2 against 60.5 on OK-VQA, 4.07x, 2.69x; its 0.42 TFLOPs cannot cover a 7B decoder "
        "over some 700 tokens",
        accuracy.accuracy_and_cost,
    ),
    Claim(
        "QVS keeps 99 % of the accuracy with 11 % of the tokens",
        "99 %; its plot says 60.7 of 63.4, 95.7 %",
        pruning.retention,
    ),
    Claim(
        "random pruning loses 9.1 points at the same budget", "9.1 points", pruning.random_pruning
    ),
    Claim(
        "region queries lift Recall@4 on entities under 10 % of the area",
        "43 → 71",
        retrieval.small_entities,
    ),
    Claim("the fusion layer is 7.2x faster (here: at every batch)", "7.2x", cost.fusion_layer),
    Claim("the fast path takes 34–41 % at no more than 1 point", "34–41 %", routing.fast_path),
    Claim("the verifier's F1 is at least 0.90", "0.913", routing.verifier),
    Claim(
        "the adaptive budget beats a fixed one at equal cost",
        "+1.4 points",
        routing.adaptive_budget,
    ),
    Claim(
        "saliency follows the counterfactual proxy: eta ≤ 0.018, Spearman ≥ 0.76",
        "0.011–0.018, 0.76–0.84",
        pruning.fidelity,
    ),
    Claim(
        "the sqrt(V) bound predicts V'", f"{EXAMPLE_TOKENS} of 576, an input of C", pruning.bound
    ),
    Claim(
        "staged training never collapses, joint training does",
        "joint: 72 % of 10 seeds",
        training.collapse,
    ),
    Claim("three seeds differ by no more than 0.4", "± 0.2 to ± 0.4", training.seeds),
    Claim(
        "better than dense with p < 0.001 by paired bootstrap", "p < 0.001", accuracy.significance
    ),
    Claim("the KV cache is 62 % smaller", "12.7 → 4.8 GB", cost.kv_cache),
    Claim("routing takes less than 5 % of the time", "< 5 %", cost.routing_overhead),
    Claim(
        "SKIP-NR is at least as good as dense on VQAv2",
        "82.1 against 81.9",
        accuracy.without_retrieval,
    ),
    Claim("SKIP-Iter with H = 2 beats dense on multi-hop", "52.7 against 50.8", accuracy.multihop),
    Claim(
        "SKIP-ADR closes 55 % of the long-tail gap",
        "55 %; its table says 44.9 → 52.7 below 70.1, "
        f"{100 * (52.7 - 44.9) / (70.1 - 44.9):.0f} % of the gap",
        retrieval.longtail,
    ),
    Claim("40–60 % of retrieved passages are duplicates", "40–60 %", retrieval.duplicates),
    Claim("another corpus needs no other change", "PubMed for Wikipedia", retrieval.corpus),
)
