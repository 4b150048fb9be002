"""The quantities of the paper's theorems, as runs have them.

Enters: runs of SKIP, a dense baseline and a sweep over retentions on the same questions, and
numbers of a fidelity measurement. Leaves: what Theorem C.1 calls epsilon_v, delta_r and the mean
degree, the accuracy that it allows to be lost and the one that is; L, eta, the score gap and the C
of the sparsity bound; and what its lemma may say of recall. It runs no model.

Information is not observed: epsilon_v is the part of the thing's box that pruning drops, and L the
steepest slope of accuracy over retention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from skipqa.claims.bound import constant, tokens_needed
from skipqa.evaluation.reports.comparison import OWN_PRUNER, pair, sweeps
from skipqa.evaluation.reports.runs import QuestionSet, Run

F1_OF_THE_LEMMA = 0.90

NOTES = (
    "The lemma says that F1 >= 0.90 gives a recall of 0.90. It gives F1 / (2 - F1) = "
    f"{F1_OF_THE_LEMMA / (2 - F1_OF_THE_LEMMA):.3f}, which a precision of 1 attains.",
    "The theorem's O(epsilon_v + delta_r) drops the verifier's own misses, a constant of 0.10 in "
    "its proof; here they are counted.",
    "The bound on misranking says nothing where the gap is below 2 eta: then it allows all tokens "
    "to be misranked.",
)


@dataclass(frozen=True, slots=True)
class TradeOff:
    """Theorem C.1 on one set of questions; None where the records do not tell."""

    title: str
    questions: int
    epsilon_v: float | None  # of the thing's box, dropped by pruning
    delta_r: float | None  # questions whose gold passage was not retrieved
    verifier_recall: float | None  # gold passages that were retrieved and kept
    degree: float  # edges for each kept token
    retained: float | None  # rho_v
    times_fewer_flops: float
    lost: float  # accuracy of the dense baseline minus SKIP's
    lipschitz: float | None  # of accuracy over retention, where it was swept

    @property
    def allowed(self) -> float | None:
        """The accuracy that may be lost: visual information, retrieval and verification."""
        parts = (self.epsilon_v, self.delta_r, self.verifier_recall)
        if None in parts:
            return None
        epsilon_v, delta_r, recall = (float(part or 0) for part in parts)
        return epsilon_v + delta_r + (1 - recall)


def trade_off(found: QuestionSet) -> TradeOff | None:
    """None without runs of SKIP and `dense`."""
    skip, dense = found.of_system("skip"), found.of_system("dense")
    if not skip or not dense:
        return None
    run, scores = skip[0], pair(dense[0], skip[0])
    looked_up = [record for record in run.records.values() if record["route"] == "full"]
    boxes = [record["box_kept"] for record in looked_up if "box_kept" in record]
    golds = [record for record in looked_up if record.get("gold") and "retrieved" in record]
    found_gold = [r for r in golds if not set(r["gold"]).isdisjoint(r["retrieved"])]
    kept_gold = [r for r in found_gold if not set(r["gold"]).isdisjoint(r["evidence"])]
    tokens = sum(record["tokens"] for record in looked_up)
    return TradeOff(
        title=found.title,
        questions=len(scores),
        epsilon_v=1 - float(np.mean(boxes)) if boxes else None,
        delta_r=1 - len(found_gold) / len(golds) if golds else None,
        verifier_recall=len(kept_gold) / len(found_gold) if found_gold else None,
        degree=sum(record["edges"] for record in looked_up) / max(1, tokens),
        retained=run.retention,
        times_fewer_flops=pair(run, dense[0], "flops").ratio,
        lost=float(scores.first.mean() - scores.second.mean()),
        lipschitz=lipschitz(sweeps(found).get(OWN_PRUNER, {})),
    )


def lipschitz(swept: Mapping[float, Run]) -> float | None:
    """The steepest slope of accuracy over retention, on intervals of at least 1 / sqrt(V)
    (assumption 1); None where fewer than two points are that far apart."""
    available = next((run.available for run in swept.values() if run.available), None)
    if available is None:
        return None
    accuracy = {at: run.summary["accuracy"]["mean"] for at, run in swept.items()}
    slopes = [
        abs(accuracy[one] - accuracy[other]) / abs(one - other)
        for one, other in combinations(accuracy, 2)
        if abs(one - other) >= 1 / math.sqrt(available)
    ]
    return max(slopes, default=None)


@dataclass(frozen=True, slots=True)
class BoundConstant:
    """C of the sparsity bound from measured quantities, and the V' that it asks for."""

    lipschitz: float
    eta: float
    gap: float
    C: float
    tokens: int
    available: int
    vacuous: bool


def bound_constant(
    lipschitz: float, eta: float, gap: float, available: int, epsilon: float
) -> BoundConstant:
    C = constant(lipschitz, eta, gap)
    needed = tokens_needed(available, epsilon, C)
    return BoundConstant(lipschitz, eta, gap, C, needed.count, available, needed.vacuous)


def least_recall(f1: float) -> float:
    """What an F1 guarantees of recall, whatever the precision: F1 / (2 - F1)."""
    return f1 / (2 - f1)


def most_misranked(eta: float, gap: float, available: int) -> int:
    """Step 1 of the proof: at most so many tokens are in one of two top-V' sets and not in both,
    where scores differ by at most eta and the V'-th is `gap` above the next."""
    return 2 * math.ceil(eta * available / gap)
