"""What a grounding finds: gold passages of held-out questions, through the real stages.

Enters: pipelines with the grounding, questions whose photos show several things or a small one.
Leaves: recall by source for the rule and for the grounding at several `region_sharpness`, and which
of these is best. Everything up to zoom runs once per question and pipeline; the sharpness only
changes the order of what the regions found.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO

from skipqa.pipeline import Pipeline
from skipqa.stages.retrieve import Retrieve
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.training.pathway.gather import Gathered
from skipqa.training.pathway.saliency_quality import AT
from skipqa.training.pipelines import PipelineWorkers, run_jobs
from skipqa.training.run import Counted

SHARPNESSES = (0.0, 0.25, 0.5, 1.0, 2.0)
RULE = "rule"
QUESTIONS_PER_JOB = 8
Recall = dict[str, dict[str, float]]  # by source, by way of pruning


def way(sharpness: float) -> str:
    return f"grounding, sharpness {sharpness:g}"


def recall(rows: Sequence[Gathered], workers: PipelineWorkers, counted: Counted) -> Recall:
    """Of the questions that name their passages."""
    rows = [row for row in rows if row.gold_ids]
    jobs = [rows[n : n + QUESTIONS_PER_JOB] for n in range(0, len(rows), QUESTIONS_PER_JOB)]
    found = run_jobs(
        workers,
        found_by,
        [(some,) for some in jobs],
        lambda done, _: counted(min(len(rows), done * QUESTIONS_PER_JOB), len(rows)),
    )
    hits: dict[str, list[Mapping[str, bool]]] = {}
    for row, hit in zip(rows, (one for some in found for one in some), strict=True):
        hits.setdefault(row.source, []).append(hit)
    return {
        source: {name: sum(hit[name] for hit in some) / len(some) for name in some[0]}
        for source, some in hits.items()
    }


def found_by(pipeline: Pipeline, rows: Sequence[Gathered]) -> list[dict[str, bool]]:
    """Of each question, whether a gold passage is among the first few, by way of pruning."""
    rule = pipeline.with_components(grounding=None)
    found = []
    for row in rows:
        with zipfile.ZipFile(row.archive) as photos:
            photo = photos.read(row.image)
        of_row = {RULE: _is_found(rule, row, photo, [0.0])[0]}
        of_row |= zip(
            map(way, SHARPNESSES), _is_found(pipeline, row, photo, SHARPNESSES), strict=True
        )
        found.append(of_row)
    return found


def _is_found(
    pipeline: Pipeline, row: Gathered, photo: bytes, sharpnesses: Sequence[float]
) -> list[bool]:
    state = pipeline.run(State(BytesIO(photo), row.question), stop="zoom")
    retrieve = pipeline.stages["retrieve"]
    assert isinstance(retrieve, Retrieve)
    found = []
    for sharpness in sharpnesses:
        config = replace(retrieve.config, region_sharpness=sharpness)
        sharpened = Retrieve(retrieve.querier, retrieve.library, config, retrieve.weights)
        passages = sharpened(state, StageRecord("retrieve")).retrieved.passages
        ids = {one.passage.id for one in passages[:AT]}
        found.append(not ids.isdisjoint(row.gold_ids))
    return found


def best_sharpness(recall: Recall) -> float:
    """By the mean over sources, of those with which no source finds less than by the rule, if there
    are any; of equals the smallest."""

    def finds(sharpness: float) -> tuple[bool, float]:
        found = [(of_source[way(sharpness)], of_source[RULE]) for of_source in recall.values()]
        return all(own >= rule for own, rule in found), sum(own for own, _ in found)

    return max(SHARPNESSES, key=lambda sharpness: (*finds(sharpness), -sharpness))
