"""The sparsity-accuracy bound: V' >= C sqrt(V) log(1/eps) keeps all but eps of the information.

Enters: counts and the paper's constants, or the accuracies of a sweep over V'. Leaves: the V' (or,
by the same formula, K') that the theorem requires, and the V' that the sweep needed. It is
arithmetic and runs no model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from skipqa.errors import UserError

# The paper's only worked example: V' = 51 at V = 576, eps = 0.05, L = 1, eta = 0.01; its
# corollary there gives 48-72 tokens, and 4-8 of 16 passages.
EXAMPLE_TOKENS = 51
EXAMPLE_RANGE = (48, 72)
EXAMPLE_PASSAGES = (4, 8)


def _scale(available: int, epsilon: float) -> float:
    return math.sqrt(available) * math.log(1 / epsilon)


# The proof's C = max(C_0 / eps^2, 4 L eta / gap) leaves C_0 and the score gap open. With the
# second term active the worked example fixes the gap.
EXAMPLE_GAP = 4 * 1.0 * 0.01 / (EXAMPLE_TOKENS / _scale(576, 0.05))

NOTES = (
    "C is called a function of L and eta alone, but the proof sets C = max(C_0/eps^2, "
    "4 L eta/gap): it depends on eps and on the gap between the V'-th and the next score.",
    "Step 4 yields sqrt(C_0 V log(1/eps))/eps tokens; calling that C sqrt(V) log(1/eps) hides a "
    "factor 1/eps in C.",
    "C_0 and the gap are given no value; here the gap is the one that reproduces the paper's "
    "V' = 51, so that number is an input, not a prediction.",
)


@dataclass(frozen=True, slots=True)
class Bound:
    constant: float
    count: int  # the bound, rounded up, at most all
    likely: tuple[int, int]  # the paper's corollary, scaled to these numbers
    vacuous: bool  # the bound keeps everything


def constant(lipschitz: float = 1.0, eta: float = 0.01, gap: float = EXAMPLE_GAP) -> float:
    """C = 4 L eta / gap, the term of the proof that the paper's example uses."""
    if min(lipschitz, eta, gap) <= 0:
        raise UserError("L, eta and the score gap must be positive")
    return 4 * lipschitz * eta / gap


def tokens_needed(available: int, epsilon: float, C: float | None = None) -> Bound:
    """V' of the theorem and the range of its corollary."""
    C = constant() if C is None else C
    return _bound(available, epsilon, C, [kept / EXAMPLE_TOKENS * C for kept in EXAMPLE_RANGE])


def passages_needed(available: int, epsilon: float) -> Bound:
    """The K' analogue; its C' is only known through "4-8 of 16", so the bound is their middle."""
    low, high = (kept / _scale(16, 0.05) for kept in EXAMPLE_PASSAGES)
    return _bound(available, epsilon, (low + high) / 2, [low, high])


def _bound(available: int, epsilon: float, C: float, constants: Sequence[float]) -> Bound:
    if available < 1:
        raise UserError(f"at least one must be available, not {available}")
    if not 0 < epsilon < 1:
        raise UserError(f"epsilon must lie between 0 and 1, not {epsilon}")
    if C <= 0:
        raise UserError(f"C must be positive, not {C}")

    def count(c: float) -> int:
        return math.ceil(c * _scale(available, epsilon) - 1e-9)

    low, high = (min(count(c), available) for c in constants)
    return Bound(C, min(count(C), available), (low, high), count(C) >= available)


@dataclass(frozen=True, slots=True)
class Sweep:
    """One system's accuracy by the number of tokens kept, at one V."""

    available: int
    accuracy: Mapping[int, float]  # in [0, 1], by tokens kept; holds `available` itself

    def needed(self, epsilon: float) -> int:
        """The smallest V' such that no measured point at or above it loses more than epsilon."""
        least = self.accuracy[self.available] - epsilon - 1e-12
        enough = self.available
        for kept in sorted(self.accuracy, reverse=True):
            if self.accuracy[kept] < least:
                break
            enough = kept
        return enough


def read_sweeps(path: Path) -> list[Sweep]:
    """`{"sweeps": [{"available": V, "points": [{"kept": V', "accuracy": a}, …]}, …]}`."""
    try:
        found = json.loads(path.read_text())["sweeps"]
        sweeps = [
            Sweep(s["available"], {p["kept"]: p["accuracy"] for p in s["points"]}) for s in found
        ]
    except FileNotFoundError:
        raise UserError(f"no results at {path}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} holds no sweep over kept tokens: {error!r}") from None
    for sweep in sweeps:
        if sweep.available not in sweep.accuracy:
            raise UserError(f"{path}: the sweep at V = {sweep.available} lacks the unpruned point")
    return sweeps
