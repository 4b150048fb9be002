"""Has a gate stopped choosing? Collapse is a gate that is open, or shut, for everything.

Enters: gates in [0, 1] over many questions. Leaves: the fraction that is open and whether that is
(next to) none or all of them, the paper's "all-zero or all-one": once with gates thresholded at a
half (`open`), once with gates as probabilities, as training samples them (`drawn`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

NEAR = 0.005  # of the gates may still differ


@dataclass(frozen=True, slots=True)
class Openness:
    open: float
    collapsed: bool
    drawn: float
    drawn_collapsed: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def openness(gates: Tensor) -> Openness:
    """Gates as 0 or 1, or between; where there are none, none is open."""
    if not len(gates):
        return Openness(0.0, True, 0.0, True)
    probs = (float((gates > 0.5).float().mean()), float(gates.float().mean()))
    decided, drawn = (not NEAR <= fraction <= 1 - NEAR for fraction in probs)
    return Openness(probs[0], decided, probs[1], drawn)
