"""An answer: its text, how certain it is, the passages it rests on, and how it came about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from skipqa.outline import outline
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import Trace
from skipqa.types import Evidence, Route


@dataclass(frozen=True, slots=True)
class Answer:
    state: State
    route: Route
    trace: Trace
    parts: Parts | None = None  # what it was answered with

    @property
    def text(self) -> str:
        return self.state.answer.text

    @property
    def confidence(self) -> float | None:
        """The probability that the answer is right, calibrated on held-out questions; None where
        nothing was calibrated for this kind of answer."""
        return self.state.answer.confidence

    @property
    def grounded(self) -> bool | None:
        """Whether a passage made the answer likelier, or it is quoted from one; None: unknown."""
        return self.state.answer.grounded

    @property
    def certainty(self) -> str:
        """Confidence and grounding in words, for people."""
        if self.route == "draft":
            basis = "from the image alone, nothing was looked up"
        elif self.state.answer.written:
            basis = "it is written in the image"
        elif self.grounded:
            basis = "a passage says so"
        elif self.grounded is None:
            basis = "whether a passage says so was not measured"
        else:
            basis = "a guess: no passage says so"
        return basis if self.confidence is None else f"{self.confidence:.0%} sure; {basis}"

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The verified passages, best first; none where the drafter answered."""
        if "verified" not in self.state:
            return ()
        verified = self.state.verified
        return tuple(
            Evidence(
                *(p.passage.id, p.passage.title, p.passage.text, round(score, 4), p.region),
                round=p.round,
                origin=p.origin,
            )
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
            "confidence": self.confidence,
            "grounded": self.grounded,
            "evidence": [
                {
                    "id": e.id,
                    "title": e.title,
                    "text": e.text,
                    "score": e.score,
                    "region": e.region,
                    "round": e.round,
                    **({} if e.origin is None else {"origin": asdict(e.origin)}),
                }
                for e in self.evidence
            ],
            "text": [
                {"text": line.text, "box": list(line.box), "score": round(line.score, 4)}
                for line in state.text_read.lines
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

    def outline(self) -> dict[str, Any]:
        """The whole pathway as plain data, for a page or a client that draws it."""
        assert self.parts is not None, "an answer of a pipeline has its parts"
        return {
            "question": self.state.text,
            "answer": self.text,
            "route": self.route,
            "confidence": self.confidence,
            "grounded": self.grounded,
            "certainty": self.certainty,
            **outline(self.state, self.trace, self.parts),
        }

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from skipqa.notebook import html, thumbnail

        photo = thumbnail(self.state.image) if "image" in self.state else None
        return html(self.outline(), photo)
