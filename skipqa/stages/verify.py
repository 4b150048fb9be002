"""verify: keep the passages that have to do with the question (SKV).

A trained verifier gives nu_j, from embeddings and what else speaks for a passage (`signals.py`).
Without one, nu_j = sigmoid(slope (cos(e_j, q_r) - midpoint) + w log(s_j / s_best)), where e_j is
the passage's embedding, q_r that of the question together with the name of what its region
shows, and s_j its retrieval score. The embedding judges the topic, the retrieval score tells the
entry itself from its relatives, which embeddings confuse. Of the K passages with nu_j >= tau_nu
the best stay, at most K' and ceil(rho_r K). When too few survive, the best rejected passages are
recalled: thin evidence beats none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from skipqa.backbones.backbone import Backbone, EncodedTexts
from skipqa.backbones.concepts import Concepts
from skipqa.config import VerifyConfig
from skipqa.nn import verifier
from skipqa.nn.verifier import Verifier
from skipqa.stages.signals import about_titles, signals
from skipqa.trace import StageRecord
from skipqa.types import (
    Budget,
    KeptTokens,
    Question,
    Region,
    Retrieved,
    RetrievedPassage,
    Verified,
)

SMALLEST = 1e-6


def verify(
    retrieved: Retrieved,
    question: Question,
    allowed: Budget,
    kept_tokens: KeptTokens,
    regions: Sequence[Region],
    backbone: Backbone,
    config: VerifyConfig,
    record: StageRecord,
    learned: Verifier | None = None,
) -> Verified:
    candidates = retrieved.passages
    titles = [candidate.passage.title for candidate in candidates]
    asked = about_titles(question, titles) if learned and learned.config.signals else []
    encoded, asked_of_Kd = _encode(candidates, asked, backbone)
    scores, flops = scores_of(
        *(candidates, encoded.embeddings, question, kept_tokens, regions, backbone, config),
        *(learned, asked_of_Kd),
    )
    record.flops = encoded.flops + flops
    verdict = verifier.judge(
        torch.tensor(scores, dtype=torch.float64),
        allowed.most_passages(len(candidates)),
        config.threshold,
        config.min_passages,
    )
    kept, rejected = verdict.kept.tolist(), verdict.rejected.tolist()
    record.kept, record.dropped = len(kept), len(rejected)
    num_good = sum(score >= config.threshold for score in scores)
    record.why = f"{num_good} of {len(candidates)} at {config.threshold} or above"
    if len(verdict.accepted) < num_good:
        record.why += f", the best {len(kept)} kept"
    if len(verdict.recalled):
        record.why += f", {len(verdict.recalled)} recalled"
    record.result = divided(candidates, scores, encoded, kept, rejected)
    return record.result


def scores_of(
    candidates: Sequence[RetrievedPassage],
    embeddings_Kd: Tensor,
    question: Question,
    kept_tokens: KeptTokens,
    regions: Sequence[Region],
    backbone: Backbone,
    config: VerifyConfig,
    learned: Verifier | None = None,
    asked_of_Kd: Tensor | None = None,
) -> tuple[list[float], int]:
    """nu_j of every candidate, and the FLOPs of that. A verifier that reads signals needs
    `asked_of_Kd`, the question about each title."""
    if learned is None:
        return _likeness(candidates, embeddings_Kd, question, regions, backbone, config)
    told = None
    if learned.config.signals:
        assert asked_of_Kd is not None
        told = signals(
            candidates,
            embeddings_Kd,
            asked_of_Kd,
            question,
            kept_tokens,
            regions,
            backbone.concepts,
        )
    visual = kept_tokens.tokens.meaning[kept_tokens.positions].mean(0)
    with torch.inference_mode():
        nu_K = learned(question.embedding, visual, embeddings_Kd, told).sigmoid()
    return nu_K.tolist(), verifier.flops(learned.config, len(candidates))


def _encode(
    candidates: Sequence[RetrievedPassage], asked: Sequence[str], backbone: Backbone
) -> tuple[EncodedTexts, Tensor]:
    """The passages, and [len(asked), d] of what else is asked, of equal texts one encoded. It all
    goes through the encoder at once, which is quicker, and its FLOPs are in the first."""
    different = list(dict.fromkeys(asked))
    passages = [candidate.passage.text for candidate in candidates]
    encoded = backbone.encode_texts([*passages, *different])
    own_Kd, asked_Nd = encoded.embeddings.split((len(passages), len(different)))
    of_passages = EncodedTexts(own_Kd, encoded.states[: len(passages)], encoded.flops)
    return of_passages, asked_Nd[[different.index(text) for text in asked]]


def divided(
    candidates: Sequence[RetrievedPassage],
    scores: Sequence[float],
    encoded: EncodedTexts,
    kept: Sequence[int],
    rejected: Sequence[int],
) -> Verified:
    """The candidates at `kept` with all that fusion needs of them, and those at `rejected`."""
    return Verified(
        passages=tuple(candidates[j] for j in kept),
        scores=tuple(scores[j] for j in kept),
        token_states=tuple(encoded.states[j] for j in kept),
        embeddings=encoded.embeddings[kept],
        rejected=tuple((candidates[j], scores[j]) for j in rejected),
    )


def _likeness(
    candidates: Sequence[RetrievedPassage],
    embeddings_Kd: Tensor,
    question: Question,
    regions: Sequence[Region],
    backbone: Backbone,
    config: VerifyConfig,
) -> tuple[list[float], int]:
    """The training-free nu_j, and what embedding the grounded questions cost."""
    asking = sorted({candidate.region for candidate in candidates})
    grounded = backbone.encode_texts(
        [_grounded(question, regions[r], backbone.concepts) for r in asking]
    )
    questions = dict(zip(asking, grounded.embeddings, strict=True))
    best = max((candidate.score for candidate in candidates), default=1.0)
    scores = []
    for candidate, embedding in zip(candidates, embeddings_Kd, strict=True):
        topic = config.slope * (float(embedding @ questions[candidate.region]) - config.midpoint)
        # A dense inner product may be negative; the floor keeps the logarithm finite.
        prob = max(candidate.score, SMALLEST) / max(best, SMALLEST)
        entry = config.retrieval_weight * math.log(prob)
        scores.append(1 / (1 + math.exp(-topic - entry)))
    return scores, grounded.flops


def _grounded(question: Question, region: Region, concepts: Concepts) -> str:
    concept, _ = region.concepts[0]
    return f"{question.text} {concepts[concept].name}"
