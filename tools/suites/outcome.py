"""What a suite found: how many checks passed, which failed, which were skipped and why.

Enters: pytest's JUnit file, or checks one by one. Leaves: an `Outcome`, its row of a table, its
part of a results file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

MAX_WHY = 400  # characters of a reason


class Case(NamedTuple):
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    suite: str
    version: str
    passed: int
    failed: list[Case] = field(default_factory=list)
    skipped: list[Case] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def row(self) -> list[str]:
        reasons = Counter(case.why for case in self.skipped)
        why = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
        return [self.suite, self.version, str(self.passed), str(len(self.failed)), why or "none"]

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        for kind in ("failed", "skipped"):
            found[kind] = [case._asdict() for case in getattr(self, kind)]
        return found


def from_junit(suite: str, version: str, path: Path) -> Outcome:
    """pytest's own report; a test that is expected to fail counts as skipped."""
    passed, failed, skipped = 0, [], []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        broken = [*case.iter("failure"), *case.iter("error")]
        if broken:
            failed.append(Case(name, shortened(broken[0].get("message") or "")))
        elif (left_out := case.find("skipped")) is not None:
            skipped.append(Case(name, shortened(left_out.get("message") or "")))
        else:
            passed += 1
    return Outcome(suite, version, passed, failed, skipped)


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_WHY else line[:MAX_WHY] + " …"
