"""An answer: its text, how certain it is, the passages it rests on, and how it came about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skipqa.state import State
from skipqa.trace import Trace
from skipqa.types import Evidence, Route


@dataclass(frozen=True, slots=True)
class Answer:
    state: State
    route: Route
    trace: Trace

    @property
    def text(self) -> str:
        return self.state.answer.text

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The verified passages, best first; none where the drafter answered."""
        if "verified" not in self.state:
            return ()
        verified = self.state.verified
        return tuple(
            Evidence(p.passage.id, p.passage.title, p.passage.text, round(score, 4), p.region)
            for p, score in zip(verified.passages, verified.scores, strict=True)
        )

    @property
    def num_tokens(self) -> int:
        """V, at the resolution the image was last encoded at."""
        return len(self.state.tokens if "tokens" in self.state else self.state.low_res)

    def as_dict(self) -> dict[str, Any]:
        """What `skipqa ask --json` prints."""
        state = self.state
        regions = state.regions if "regions" in state else ()
        retrieved = state.retrieved if "retrieved" in state else None
        return {
            "answer": self.text,
            "route": self.route,
            "evidence": [
                {"id": e.id, "title": e.title, "text": e.text, "score": e.score, "region": e.region}
                for e in self.evidence
            ],
            "regions": [{"box": list(r.box), "tokens": len(r.members)} for r in regions],
            "tokens": {
                "total": self.num_tokens,
                "kept": len(state.kept.positions) if "kept" in state else 0,
            },
            "passages": {
                "retrieved": retrieved.num_hits if retrieved else 0,
                "unique": retrieved.num_unique if retrieved else 0,
                "kept": len(self.evidence),
            },
            "stages": [
                {"name": s.name, "ms": round(s.ms, 2), "flops": s.flops} for s in self.trace.stages
            ],
            "flops": self.trace.flops,
            "latency_ms": round(self.trace.latency_ms, 2),
        }
