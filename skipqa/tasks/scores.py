"""What every official scorer returns: the official aggregates, and which ids did not pair up.

Scores are percentages under the official scorer's own names. How a missing, repeated or
unknown id changes them is each benchmark's rule; here they are only counted and worded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from skipqa.errors import UserError

Id = Hashable  # int in VQA files, str elsewhere


class MismatchedIds(UserError, AssertionError):
    """Predictions and references do not pair up where the official scorer asserts that they do."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which ids of a predictions file fit the data set; each tuple in file order, no repeats."""

    num_questions: int
    num_predictions: int
    missing: tuple[Id, ...]
    duplicate: tuple[Id, ...]
    unknown: tuple[Id, ...]

    @classmethod
    def of(cls, predicted: Iterable[Id], expected: Iterable[Id]) -> Pairing:
        times = Counter(iter(predicted))  # a mapping would bring its values as counts
        known = dict.fromkeys(expected)
        return cls(
            num_questions=len(known),
            num_predictions=times.total(),
            missing=tuple(i for i in known if i not in times),
            duplicate=tuple(i for i, n in times.items() if n > 1),
            unknown=tuple(i for i in times if i not in known),
        )

    def require_equal_sets(self) -> None:
        if self.missing or self.unknown:
            faults = filter(None, (named("missing", self.missing), named("unknown", self.unknown)))
            raise MismatchedIds(f"predictions must have the data set's ids: {', '.join(faults)}")


@dataclass(frozen=True, slots=True)
class Report:
    benchmark: str
    scores: Mapping[str, Any]  # name -> percent, or name -> {group -> percent}
    pairing: Pairing
    notes: tuple[str, ...] = ()  # what happened to ids that did not pair up, one line each

    def as_dict(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "scores": self.scores,
            "questions": self.pairing.num_questions,
            "predictions": self.pairing.num_predictions,
            "missing": len(self.pairing.missing),
            "duplicate": len(self.pairing.duplicate),
            "unknown": len(self.pairing.unknown),
            "notes": list(self.notes),
        }


def named(what: str, ids: tuple[Id, ...]) -> str:
    """'3 missing (first: 7, 9, 12)', or nothing when there are none."""
    if not ids:
        return ""
    return f"{len(ids)} {what} (first: {', '.join(map(repr, ids[:3]))})"
