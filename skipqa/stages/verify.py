"""verify: keep the passages that have to do with the question (SKV).

A trained verifier gives nu_j from embeddings and further signals of a passage (`signals.py`); the
best one embeds each passage together with the question (`pairs.py`). Untrained, nu_j =
sigmoid(slope (cos(e_j, q_r) - midpoint) + w log(s_j / s_best)), where e_j is the passage's
embedding, q_r that of the question together with the name of what its region shows, and s_j its
retrieval score relative to the best of its kind: somebody's own documents are compared among
themselves, and so is general knowledge. The embedding judges the topic; the retrieval score tells
the right entry from related ones, which embeddings confuse. Of the K passages with nu_j >= tau_nu
the best stay, at most K' and ceil(rho_r K). When too few survive, the best rejected passages are
recalled: thin evidence beats none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from skipqa.backbones.backbone import Backbone, EncodedTexts
from skipqa.config import VerifyConfig
from skipqa.nn import verifier as network
from skipqa.nn.verifier import Verifier
from skipqa.stages.pairs import pair_of
from skipqa.stages.readers import words_shown
from skipqa.stages.signals import about_titles, by_kind, signals
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import KeptTokens, RetrievedPassage, Verified


class Scored(NamedTuple):
    scores: list[float]  # nu_j of every retrieved passage
    encode: Callable[[Sequence[int]], EncodedTexts]  # the passages at some places, for fusion
    flops: int  # so far: `encode` has its own


class PassageVerifier(Protocol):
    def __call__(self, state: State) -> Scored: ...


class SimilarityVerifier:
    """Training-free: the formula at the head of this file."""

    def __init__(self, config: VerifyConfig, backbone: Backbone) -> None:
        self.config, self.backbone = config, backbone

    def __call__(self, state: State) -> Scored:
        encoded = self.backbone.encode_texts(_texts(state.retrieved.passages))
        scores, flops = self.score(state, encoded.embeddings)
        return Scored(scores, already(encoded), encoded.flops + flops)

    def score(self, state: State, embeddings_Kd: Tensor) -> tuple[list[float], int]:
        """nu_j given the passages' embeddings, and the FLOPs of embedding the questions."""
        passages, config = state.retrieved.passages, self.config
        asking = sorted({passage.region for passage in passages})
        grounded = self.backbone.encode_texts([self._grounded(state, r) for r in asking])
        questions = dict(zip(asking, grounded.embeddings, strict=True))
        scores = [0.0] * len(passages)
        for places in by_kind(passages):
            best = max(passages[j].relative for j in places)
            for j in places:
                cosine = float(embeddings_Kd[j] @ questions[passages[j].region])
                scores[j] = nu(cosine, passages[j].relative / best, config)
        return scores, grounded.flops

    def _grounded(self, state: State, region: int) -> str:
        """The question with the name of what the region shows."""
        concept, _ = state.regions[region].concepts[0]
        return f"{state.question.text} {self.backbone.concepts[concept].name}"


class QuestionVerifier:
    """The same formula with the question alone as q_r: for one that no image has a say in."""

    def __init__(self, config: VerifyConfig, backbone: Backbone) -> None:
        self.config, self.backbone = config, backbone

    def __call__(self, state: State) -> Scored:
        passages, config = state.retrieved.passages, self.config
        encoded = self.backbone.encode_texts(_texts(passages))
        best = max((passage.relative for passage in passages), default=1.0)
        scores = []
        for passage, embedding in zip(passages, encoded.embeddings, strict=True):
            cosine = float(embedding @ state.question.embedding)
            scores.append(nu(cosine, passage.relative / best, config))
        return Scored(scores, already(encoded), encoded.flops)


class EmbeddingVerifier:
    """The verifier on embeddings alone."""

    def __init__(self, verifier: Verifier, backbone: Backbone) -> None:
        self.verifier, self.backbone = verifier, backbone

    def __call__(self, state: State) -> Scored:
        encoded = self.backbone.encode_texts(_texts(state.retrieved.passages))
        return self._scored(state, encoded, None)

    def _scored(self, state: State, encoded: EncodedTexts, signals_KS: Tensor | None) -> Scored:
        scores, spent = scored(self.verifier, state, encoded.embeddings, signals_KS)
        return Scored(scores, already(encoded), encoded.flops + spent)


class SignalVerifier(EmbeddingVerifier):
    """The verifier on embeddings and signals."""

    def __call__(self, state: State) -> Scored:
        passages = state.retrieved.passages
        asked = about_titles(state.question, [passage.passage.title for passage in passages])
        encoded, asked_Kd = self._encode(_texts(passages), asked)
        told_KS = signals(state, encoded.embeddings, asked_Kd, self.backbone.concepts)
        return self._scored(state, encoded, told_KS)

    def _encode(self, passages: Sequence[str], asked: Sequence[str]) -> tuple[EncodedTexts, Tensor]:
        """The passages, and [len(asked), d], equal texts once. All in one batch, which is faster;
        the FLOPs of both are in the first."""
        different = list(dict.fromkeys(asked))
        encoded = self.backbone.encode_texts([*passages, *different])
        own_Kd, asked_Nd = encoded.embeddings.split((len(passages), len(different)))
        of_passages = EncodedTexts(
            own_Kd,
            encoded.states[: len(passages)],
            encoded.flops,
            encoded.characters[: len(passages)],
        )
        return of_passages, asked_Nd[[different.index(text) for text in asked]]


class PairVerifier:
    """The verifier on passages that are each encoded together with the question, and on those
    signals that need no embedding. Only what is kept is then encoded by itself."""

    def __init__(self, verifier: Verifier, parts: Parts) -> None:
        self.verifier = verifier
        self.backbone, self.config = parts.backbone, parts.config.decode

    def __call__(self, state: State) -> Scored:
        passages, question = state.retrieved.passages, state.question
        words = words_shown(state.kept.tokens.words, self.config)
        concepts = self.backbone.concepts
        pairs = [pair_of(question.text, words, p, state.regions, concepts) for p in passages]
        encoded = self.backbone.encode_pairs(pairs)
        unknown_Kd = torch.zeros(len(passages), len(question.embedding))
        told_KS = signals(state, unknown_Kd, unknown_Kd, concepts)
        scores, spent = scored(self.verifier, state, encoded.embeddings, told_KS)
        texts = _texts(passages)

        def encode(places: Sequence[int]) -> EncodedTexts:
            return self.backbone.encode_texts([texts[j] for j in places])

        return Scored(scores, encode, encoded.flops + spent)


class Verify:
    def __init__(self, config: VerifyConfig, verifier: PassageVerifier) -> None:
        self.config, self.verifier = config, verifier

    def __call__(self, state: State, record: StageRecord) -> State:
        config, candidates = self.config, state.retrieved.passages
        scores, encode, flops = self.verifier(state)
        verdict = network.judge(
            torch.tensor(scores, dtype=torch.float64),
            state.budget.most_passages(len(candidates)),
            config.threshold,
            config.min_passages,
        )
        kept, rejected = verdict.kept.tolist(), verdict.rejected.tolist()
        encoded = encode(kept)
        record.flops = flops + encoded.flops
        record.kept, record.dropped = len(kept), len(rejected)
        num_good = sum(score >= config.threshold for score in scores)
        record.why = f"{num_good} of {len(candidates)} at {config.threshold} or above"
        if len(verdict.accepted) < num_good:
            record.why += f", the best {len(kept)} kept"
        if len(verdict.recalled):
            record.why += f", {len(verdict.recalled)} recalled"
        return state.add(verified=divided(candidates, scores, encoded, kept, rejected))


def build(parts: Parts) -> Verify:
    config, backbone, components = parts.config.verify, parts.backbone, parts.components
    if components.pair_verifier is not None:
        return Verify(config, PairVerifier(components.pair_verifier, parts))
    verifier = components.verifier
    if verifier is None:
        return Verify(config, SimilarityVerifier(config, backbone))
    kind = SignalVerifier if verifier.config.signals else EmbeddingVerifier
    return Verify(config, kind(verifier, backbone))


def divided(
    candidates: Sequence[RetrievedPassage],
    scores: Sequence[float],
    encoded: EncodedTexts,
    kept: Sequence[int],
    rejected: Sequence[int],
) -> Verified:
    """The candidates at `kept`, which are `encoded` for fusion, and those at `rejected`."""
    return Verified(
        passages=tuple(candidates[j] for j in kept),
        scores=tuple(scores[j] for j in kept),
        token_states=encoded.states,
        embeddings=encoded.embeddings,
        rejected=tuple((candidates[j], scores[j]) for j in rejected),
        characters=encoded.characters,
    )


def nu(cosine: float, relative: float, config: VerifyConfig) -> float:
    """The formula at the head of this file, given cos(e_j, q_r) and s_j / s_best."""
    topic = config.slope * (cosine - config.midpoint)
    entry = config.retrieval_weight * math.log(relative)
    return 1 / (1 + math.exp(-topic - entry))


def scored(
    verifier: Verifier, state: State, embeddings_Kd: Tensor, signals_KS: Tensor | None
) -> tuple[list[float], int]:
    """nu_j by a trained verifier, and its FLOPs."""
    own_K = torch.tensor([passage.own for passage in state.retrieved.passages])
    with torch.inference_mode():
        asked = state.question.embedding, mean_token(state.kept)
        nu_K = verifier(*asked, embeddings_Kd, signals_KS, own=own_K).sigmoid()
    return nu_K.tolist(), network.flops(verifier.config, len(embeddings_Kd))


def already(encoded: EncodedTexts) -> Callable[[Sequence[int]], EncodedTexts]:
    """Some of what is encoded, at no further cost."""

    def some(places: Sequence[int]) -> EncodedTexts:
        states = tuple(encoded.states[j] for j in places)
        characters = tuple(encoded.characters[j] for j in places) if encoded.characters else ()
        return EncodedTexts(encoded.embeddings[list(places)], states, 0, characters)

    return some


def mean_token(kept: KeptTokens) -> Tensor:
    return kept.meaning.mean(0)


def _texts(passages: Sequence[RetrievedPassage]) -> list[str]:
    """What the decoder would read of each."""
    return [passage.text for passage in passages]
