"""verify: keep the passages that have to do with the question (SKV, training-free).

nu_j = sigmoid(slope (cos(e_j, q_r) - midpoint) + w log(s_j / s_best)), where e_j is the
passage's embedding, q_r that of the question together with the name of what its region shows,
and s_j its retrieval score; keep nu_j >= tau_nu. The embedding judges the topic, the retrieval
score tells the entry itself from its relatives, which embeddings confuse. When too few survive, the best rejected passages are recalled: thin evidence beats none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from skipqa.backbones.concepts import Concepts
from skipqa.backbones.pocket import Pocket
from skipqa.config import VerifyConfig
from skipqa.trace import StageRecord
from skipqa.types import Question, Region, Retrieved, Verified


def verify(
    retrieved: Retrieved,
    question: Question,
    regions: Sequence[Region],
    backbone: Pocket,
    config: VerifyConfig,
    record: StageRecord,
) -> Verified:
    candidates = retrieved.passages
    asking = sorted({candidate.region for candidate in candidates})
    grounded = [_grounded(question, regions[r], backbone.concepts) for r in asking]
    encoded = backbone.encode_texts([*grounded, *(c.passage.text for c in candidates)])
    record.flops = encoded.flops
    questions = dict(zip(asking, encoded.embeddings, strict=False))
    embeddings = encoded.embeddings[len(asking) :]
    states = encoded.states[len(asking) :]
    best = max((c.score for c in candidates), default=1.0)
    scores = []
    for candidate, embedding in zip(candidates, embeddings, strict=True):
        topic = config.slope * (float(embedding @ questions[candidate.region]) - config.midpoint)
        entry = config.retrieval_weight * math.log(candidate.score / best)
        scores.append(1 / (1 + math.exp(-topic - entry)))

    order = sorted(range(len(candidates)), key=lambda j: (-scores[j], j))
    num_good = sum(score >= config.threshold for score in scores)
    num_kept = min(len(order), max(num_good, config.min_passages))
    kept, rejected = order[:num_kept], order[num_kept:]
    record.kept, record.dropped = len(kept), len(rejected)
    record.why = f"{num_good} of {len(candidates)} at {config.threshold} or above"
    if num_kept > num_good:
        record.why += f", {num_kept - num_good} recalled"
    record.result = Verified(
        passages=tuple(candidates[j] for j in kept),
        scores=tuple(scores[j] for j in kept),
        token_states=tuple(states[j] for j in kept),
        embeddings=embeddings[kept],
        rejected=tuple((candidates[j], scores[j]) for j in rejected),
    )
    return record.result


def _grounded(question: Question, region: Region, concepts: Concepts) -> str:
    concept, _ = region.concepts[0]
    return f"{question.text} {concepts[concept].name}"
