"""Retrieval-augmented baselines: other ways to bring passages to the decoder.

Enters: a pipeline. Leaves: SKIP without retrieval, for all questions (`no-retrieval`) or for easy
ones (`skip-nr`), or a system without its sparsity (all tokens, one query, no fast path) that reads
as the baseline does:

- `fid` (KAT style): each passage with the question on its own, joined while decoding;
- `late` (RA-VQA style): the passages closest to question and image, token by token;
- `memory` (ReVeaL style): a few slots per passage, attended to with the retrieval score as prior.

Each replaces the stages named in it and costs what those cost.

Shapes: V visual tokens, T question tokens, K passages, S slots of all passages, D text width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.errors import UserError
from skipqa.evaluation.systems.ablations import accept_all, dense
from skipqa.evaluation.systems.budgets import with_budget
from skipqa.evaluation.systems.reading_apart import read_apart
from skipqa.nn.budget import EASY
from skipqa.pipeline import Pipeline
from skipqa.stages.budget import may_abstain
from skipqa.stages.stage import Parts
from skipqa.stages.verify import already, divided
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Fused

LATE_POOL, LATE_PASSAGES = 32, 5  # found by the index, and left to read (RA-VQA reads five)
SLOTS = 4  # of memory, per passage
SMALLEST = 1e-6


def without_retrieval(base: Pipeline, seed: int) -> Pipeline:
    """SKIP with K' = 0: no high resolution and no zoom; the decoder answers from the names of what
    the image shows."""
    return with_budget(base, passages=0)


def suppressed_retrieval(base: Pipeline, seed: int) -> Pipeline:
    """SKIP-NR: K' = 0 where the controller's difficulty is below 0.15, otherwise as SKIP.

    What the drafter is sure of is drafted, as in SKIP; the rest is pruned, and only what is not
    easy is looked up. A trained controller has a zero of its own, so there this is `skip`. Without
    one the difficulty is the drafter's probability that the answer needs retrieval.
    """
    if base.components.budget is not None:
        return base
    if not may_abstain(base.parts):
        raise UserError(
            "skip-nr needs a difficulty: train a budget, or use a drafter that may abstain"
        )
    return base.with_config(budget={"easy": EASY})


def fusion_in_decoder(base: Pipeline, seed: int) -> Pipeline:
    """KAT style: each passage of `dense` read with the question on its own, joined in decoding."""
    accept = partial(accept_all, encode=False)
    return dense(base, seed).with_stages(verify=accept, fuse=pass_through, decode=read_apart)


def late_interaction(base: Pipeline, seed: int) -> Pipeline:
    """RA-VQA style: of a pool that one query finds, the closest token by token are read."""
    system = with_budget(dense(base, seed), passages=LATE_POOL).with_config(
        retrieve={"per_region": LATE_POOL},
        decode={"max_passages": LATE_PASSAGES},
    )
    return system.with_stages(verify=late_rerank, fuse=pass_through)


def attentive_memory(base: Pipeline, seed: int) -> Pipeline:
    """ReVeaL style: the passages of `dense` in memory, those attended to most are read."""
    system = dense(base, seed).with_config(decode={"max_passages": base.config.decode.max_passages})
    return system.with_stages(verify=partial(accept_all, encode=True), fuse=memory_attention)


BASELINES = {
    "no-retrieval": without_retrieval,
    "skip-nr": suppressed_retrieval,
    "dense": dense,
    "fid": fusion_in_decoder,
    "late": late_interaction,
    "memory": attentive_memory,
}


class LateRerank:
    """verify: MaxSim (Khattab and Zaharia, 2020) of question and visual tokens to a passage's.

    A token's score is its highest cosine to a token of the passage; the mean over the question's
    tokens and the mean over the image's count the same, however many tokens each has. An index of
    token states would save encoding the pool; this one holds none, so that is paid and counted.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    @torch.inference_mode()
    def __call__(self, state: State, record: StageRecord) -> State:
        candidates = state.retrieved.passages
        encoded = self.backbone.encode_texts([p.passage.text for p in candidates])
        visual_VD = state.kept.meaning
        question_TD = F.normalize(state.question.states, dim=-1)
        scores = []
        for states in encoded.states:
            words_LD = F.normalize(states, dim=-1)
            scores.append((max_sim(question_TD, words_LD) + max_sim(visual_VD, words_LD)) / 2)
        num_words = sum(map(len, encoded.states))
        num_asking, width = len(question_TD) + len(visual_VD), question_TD.shape[1]
        record.flops = encoded.flops + 2 * num_asking * num_words * width
        order = sorted(range(len(candidates)), key=lambda j: (-scores[j], j))
        kept, left = order[:LATE_PASSAGES], order[LATE_PASSAGES:]
        record.kept, record.dropped = len(kept), len(left)
        record.why = f"best of {len(candidates)} by late interaction"
        return state.add(verified=divided(candidates, scores, already(encoded)(kept), kept, left))


def late_rerank(parts: Parts) -> LateRerank:
    return LateRerank(parts.backbone)


def max_sim(asking_ND: Tensor, words_LD: Tensor) -> float:
    return float((asking_ND @ words_LD.T).amax(1).mean())


class PassThrough:
    """fuse: not here; every passage goes on to the decoder."""

    def __call__(self, state: State, record: StageRecord) -> State:
        tokens_VD = state.kept.meaning
        num_tokens, num_passages = len(tokens_VD), len(state.verified.passages)
        record.kept, record.dropped = 0, num_tokens * num_passages
        record.why = "left to the decoder"
        edges_VK = torch.zeros(num_tokens, num_passages, dtype=torch.bool)
        return state.add(fused=Fused(tokens_VD, edges_VK, (1.0,) * num_passages))


def pass_through(parts: Parts) -> PassThrough:
    return PassThrough()


class MemoryAttention:
    """fuse: all tokens attend to the slots of all passages at once.

    A slot is the mean over a stretch of its passage. log p_j is added to the logits of passage
    j's slots, p_j being its fraction of the retrieval scores: what was found with little
    confidence is attended to little.
    """

    @torch.inference_mode()
    def __call__(self, state: State, record: StageRecord) -> State:
        verified, tokens_VD = state.verified, state.kept.meaning
        num_tokens, num_passages = len(tokens_VD), len(verified.passages)
        record.kept, record.dropped = num_tokens * num_passages, 0
        record.why = f"{SLOTS} slots each of {num_passages} passages"
        if num_passages == 0:
            no_edges = torch.zeros(num_tokens, 0, dtype=torch.bool)
            return state.add(fused=Fused(tokens_VD, no_edges, ()))
        slots = [_compressed(states) for states in verified.token_states]
        slots_SD, owner_S = torch.cat(slots), _owners(slots)
        # On one scale, that of the highest score, whichever index a passage is from
        best = max(passage.score for passage in verified.passages)
        scores = [best * passage.relative for passage in verified.passages]
        score_K = torch.tensor(scores).clamp(min=SMALLEST)
        prior_K = (score_K / score_K.sum()).log()
        asking_VD = tokens_VD + state.question.embedding
        logits_VS = asking_VD @ slots_SD.T / slots_SD.shape[1] ** 0.5 + prior_K[owner_S]
        attention_VS = logits_VS.softmax(1)
        fused_VD = tokens_VD + attention_VS @ slots_SD
        mass_K = torch.zeros(num_passages).index_add_(0, owner_S, attention_VS.sum(0))
        record.flops = 4 * num_tokens * slots_SD.numel()
        edges_VK = torch.ones(num_tokens, num_passages, dtype=torch.bool)
        return state.add(fused=Fused(fused_VD, edges_VK, tuple(mass_K.tolist())))


def memory_attention(parts: Parts) -> MemoryAttention:
    return MemoryAttention()


def _compressed(states_LD: Tensor) -> Tensor:
    """At most SLOTS means, of stretches of about equal length."""
    stretches = states_LD.tensor_split(min(SLOTS, len(states_LD)))
    return torch.stack([stretch.mean(0) for stretch in stretches])


def _owners(slots: Sequence[Tensor]) -> Tensor:
    return torch.repeat_interleave(torch.tensor([len(of_one) for of_one in slots]))
