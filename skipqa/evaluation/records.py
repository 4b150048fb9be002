"""What a run keeps in its folder: `run.json`, and a record per question in `predictions.jsonl`.

Enters: an example, the answer to it, the task that scores it. Leaves: plain values for JSON. A
killed run reads its records back and goes on. It asks nothing and averages nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skipqa.answer import Answer
from skipqa.backbones.concepts import plain_name
from skipqa.costs import memory
from skipqa.errors import UserError
from skipqa.files import claim, read_appended
from skipqa.stages.names import named_in, shown_things
from skipqa.stages.regions import in_box
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.facts import states
from skipqa.tasks.task import Scorer
from skipqa.types import Evidence, Passage, Retrieved

Record = dict[str, Any]

# Of a record, if nothing else was answered meanwhile: next to others they would be those of all
MEASURED_ALONE = ("latency_ms", "stage_ms", "peak_memory_bytes")
RECALL_AT = 4
NAMED = 3  # things that a question may be about, in its record


def make_record(example: Example, answer: Answer, scorer: Scorer) -> Record:
    known = {
        "category": example.category,
        "type": example.type,
        "subset": example.subsets or None,
        "popularity": example.popularity,
    }
    prediction = scorer.prediction(example, answer.text)
    return {
        "question_id": example.id,
        **{name: value for name, value in known.items() if value is not None},
        "answer": answer.text,
        **({} if prediction == answer.text else {"prediction": prediction}),
        "score": scorer.score(example, prediction),
        "route": answer.route,
        **({} if answer.confidence is None else {"confidence": round(answer.confidence, 4)}),
        **_named(answer),
        **_pathway(answer),
        **_recalls(example, answer),
        **_looked_at(example, answer),
        "flops": answer.trace.flops,
        "latency_ms": round(answer.trace.latency_ms, 3),
        "stage_ms": {stage.name: round(stage.ms, 3) for stage in answer.trace.stages},
        "peak_memory_bytes": memory.peak_bytes(),
    }


def _pathway(answer: Answer) -> Record:
    """What the stages kept on the way to an answer."""
    state, trace, found = answer.state, answer.trace, _retrieved(answer)
    return {
        "tokens": len(state.kept.positions) if "kept" in state else 0,  # V'
        "passages": state.budget.passages if "budget" in state else 0,  # K'
        "edges": trace["fuse"].kept if "fuse" in trace else 0,
        "prompt_tokens": state.answer.prompt_tokens,  # that the decoder read
        "rounds": _rounds(answer),
        "hits": found.num_hits,  # over all regions
        "unique": found.num_unique,  # of these, different passages
        # before verification, best first
        "retrieved": [candidate.passage.id for candidate in found.passages],
        "evidence": [passage.id for passage in answer.evidence],
    }


def _rounds(answer: Answer) -> int:
    """How often something was looked up; not at all where the budget closed retrieval."""
    state = answer.state
    if "budget" not in state or state.budget.passages == 0:
        return 0
    return 1 + (len(state.hops) if "hops" in state else 0)


def _named(answer: Answer) -> Record:
    """What the question is about, by name, and how probably: `report coverage` reads it."""
    if "regions" not in answer.state or answer.parts is None:
        return {}
    settings = answer.parts.config.consult
    shown = shown_things(answer.state, answer.parts.backbone.concepts, settings.min_prob)
    names = dict.fromkeys(named_in(answer.state.text, lambda _: True), 1.0)
    for thing in shown:
        names.setdefault(thing.names[0], round(thing.prob, 4))
    return {"names": dict(itertools.islice(names.items(), NAMED))}


def prediction_of(record: Record) -> str:
    """What was scored: the answer itself, unless the task takes it for another text."""
    return str(record.get("prediction", record["answer"]))


def _retrieved(answer: Answer) -> Retrieved:
    return answer.state.retrieved if "retrieved" in answer.state else Retrieved((), 0, 0)


def _recalls(example: Example, answer: Answer) -> Record:
    """Recall among the first passages retrieved, and among those kept, where it is defined.

    A question that was drafted retrieved nothing and says nothing of retrieval.
    """
    if answer.route != "full" or not (example.gold or example.fact):
        return {}
    first = [candidate.passage for candidate in _retrieved(answer).passages[:RECALL_AT]]
    return {
        "gold": sorted(frozenset().union(*example.gold)),
        **({} if example.fact is None else {"fact": example.fact}),
        f"recall@{RECALL_AT}": recall(example, first),
        "recall_kept": recall(example, answer.evidence),
    }


def _looked_at(example: Example, answer: Answer) -> Record:
    """What the decoder read and the regions show, and whether that is the thing asked about,
    where it is known."""
    state = answer.state
    found: Record = {"read": [answer.evidence[place].id for place in state.answer.read]}
    if "regions" not in state or answer.parts is None:
        return found
    concepts = answer.parts.backbone.concepts
    best = [concepts[region.concepts[0][0]].name for region in state.regions]
    found["concepts"] = list(dict.fromkeys(best))
    if example.name is not None:
        words = state.tokens.words
        shown = {c for region in state.regions for c, _ in region.concepts}
        names = {plain_name(name) for number in shown for name in concepts[number].names}
        names |= {plain_name(name) for name in (() if words is None else words.names)}
        found["seen"] = plain_name(example.name) in names
    if example.box is not None:
        kept = state.kept
        inside = in_box(example.box, kept.tokens.grid)
        held = int(inside[kept.positions].sum())
        found["box_kept"] = round(held / min(int(inside.sum()), len(kept.positions)), 4)
    return found


def recall(example: Example, passages: Sequence[Passage | Evidence]) -> float:
    """The fraction of steps that have a gold passage among these.

    Most questions have one step: a hit or none. A passage that states the fact of a question is a
    hit whatever its id.
    """
    fact = example.fact
    if fact and any(states(fact, f"{passage.title}\n{passage.text}") for passage in passages):
        return 1.0
    ids = [passage.id for passage in passages]
    return float(np.mean([not step.isdisjoint(ids) for step in example.gold or (frozenset(),)]))


def claim_folder(folder: Path, run: Mapping[str, Any]) -> None:
    """Write down in `folder` what is run there, or check that it is the same."""
    path = folder / "run.json"
    if not path.exists() and (folder / "predictions.jsonl").exists():
        raise UserError(f"{folder} holds answers of an unknown run: choose another folder")
    claim(path, run)


def read_back(path: Path) -> dict[QuestionId, Record]:
    """The records written so far; what a kill left of a last line is cut off."""
    records = {}
    for number, record in enumerate(read_appended(path), 1):
        try:
            records[record["question_id"]] = record
        except (TypeError, KeyError):
            raise UserError(f"{path} line {number} is no record: delete that line") from None
    return records
