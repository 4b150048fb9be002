"""Log-probabilities of many candidate answers to one prompt, next to the greedy completion.

Enters: a decoder, a prompt as embeddings, candidate answers as tokens, each ending with the end
token. Leaves: the candidates' log-probabilities and the greedy completion. Nothing is sampled or
approximated: every number is that of scoring one answer at a time.

Candidates are the branches of a tree that starts at the end of the prompt. Tokens that several
begin with are read once, and all branches go through the decoder in one pass.

Shapes as in `llama.py`; N new tokens of the tree.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skipqa.backbones.networks.llama import (
    Generation,
    KVCache,
    Llama,
    Placement,
    flops,
    rotation,
)

# Candidates that are read together with the prompt, before the first token's distribution is
# known: they add a few tokens, and for three questions in four no second pass is needed
READ_WITH_PROMPT = 4
MARGIN = 2.0  # candidates whose bounds are within this of the best are read in the same pass


class Candidate(NamedTuple):
    tokens: Sequence[int]  # the answer and then the end token
    log_prior: float = 0.0  # added to its log-probability when candidates are compared
    if_completion: float = 0.0  # added besides if it is the greedy completion


@torch.inference_mode()
def loglikelihood(
    decoder: Llama, x_1TD: Tensor, answers: Sequence[Sequence[int]], past: KVCache | None = None
) -> tuple[list[float], int]:
    """The log-probability of each answer after the prompt, and the FLOPs; one pass.

    `past` is the cache of what stands before the prompt; it is not changed.
    """
    branches = [answer[:-1] for answer in answers]
    tree = CandidateTree(decoder, x_1TD, past, branches, room=sum(map(len, branches)))
    return [tree.log_prob(answer) for answer in answers], tree.flops


@torch.inference_mode()
def generate_with_candidates(
    decoder: Llama,
    x_1TD: Tensor,
    max_new: int,
    stop: Collection[int],
    candidates: Sequence[Candidate],
    past: KVCache | None = None,
) -> tuple[Generation, list[float]]:
    """The greedy completion, up to and without a stop token, and log-probabilities: of each
    candidate and last of the completion with the end token.

    The search is for the candidate with the largest log-probability plus log-prior. Those with
    the largest prior are read together with the prompt. The probability of a candidate's first
    token bounds its own, so the most promising are scored next, and one that can no longer be the
    best is not scored: its log-probability is given as minus infinity. Which of them is the
    completion is not known before. If less is added to that one, each is compared with the others
    as if it were the completion; if more, nothing changes, as the completion is always scored.

    Where the completion coincides with a candidate, its tokens are already in the tree; every
    other token takes a pass. The completion equals decoding one token at a time.
    """
    answers = [candidate.tokens for candidate in candidates]
    prior = [candidate.log_prior for candidate in candidates]
    end = answers[0][-1]
    room = sum(len(answer) - 1 for answer in answers) + max_new
    batch = sorted(range(len(answers)), key=lambda n: -prior[n])[:READ_WITH_PROMPT]
    tree = CandidateTree(decoder, x_1TD, past, [answers[n][:-1] for n in batch], room=room)
    first = tree.next_log_probs(0)
    bounds = [float(first[answer[0]]) + extra for answer, extra in zip(answers, prior, strict=True)]
    pending = sorted(range(len(answers)), key=lambda n: -bounds[n])
    greedy_first = int(first.argmax())
    alike = [n for n in pending if answers[n][0] == greedy_first]
    # One candidate that starts as the completion does is scored in any case
    forced = [] if any(n in batch for n in alike) else alike[:1]
    log_probs, best = [-math.inf] * len(answers), -math.inf
    while batch:
        for n in batch:
            log_probs[n] = tree.log_prob(answers[n])
            best = max(best, log_probs[n] + prior[n] + min(0.0, candidates[n].if_completion))
        pending = [n for n in pending if n not in batch]
        least = max([best, *(bounds[n] - MARGIN for n in pending[:1])])
        batch = [n for n in pending if bounds[n] > least or n in forced]
        tree.extend([answers[n][:-1] for n in batch])
    tokens: list[int] = []
    scores: list[float] = []
    node = 0
    while True:
        next_log_probs = tree.next_log_probs(node)
        token = int(next_log_probs.argmax())
        if token in stop or len(tokens) == max_new:
            own = sum(scores) + float(next_log_probs[end])
            return Generation(tokens, scores, tree.flops), [*log_probs, own]
        tokens.append(token)
        scores.append(float(next_log_probs[token]))
        node = tree.extend([tokens])


class CandidateTree:
    """Continuations of one prompt as a tree of tokens, with the distribution after each.

    Node 0 is the end of the prompt, which has T tokens; every other node is a token. The keys and
    values of node n are in cache slot T + n - 1; its position is T - 1 plus its depth.
    """

    def __init__(
        self,
        decoder: Llama,
        x_1TD: Tensor,
        past: KVCache | None = None,
        branches: Sequence[Sequence[int]] = (),
        *,
        room: int,
    ) -> None:
        """The first `branches` are read together with the prompt. The cache has `room` for so
        many nodes."""
        self.decoder, self.flops = decoder, 0
        start = 0 if past is None else past.length
        self._length = start + x_1TD.shape[1]  # T
        self._cache = KVCache(
            decoder.config, 1, self._length + room, dtype=x_1TD.dtype, device=x_1TD.device
        )
        if past is not None:
            self._cache.keys[:, :, :, :start] = past.keys
            self._cache.values[:, :, :, :start] = past.values
        self._nodes: dict[tuple[int, int], int] = {}  # by parent node and token
        self._paths: list[list[int]] = [[]]  # for each node, the nodes from the first token to it
        self._next_log_probs: list[Tensor] = []  # [vocabulary] after each node
        self._nothing = x_1TD[:, :0]
        _, tokens = self._grow(branches)
        self._read(x_1TD, tokens)

    def next_log_probs(self, node: int) -> Tensor:
        """[vocabulary]: the log-probability of every token that may follow the node."""
        return self._next_log_probs[node]

    def extend(self, branches: Sequence[Sequence[int]]) -> int:
        """Read the new tokens of the branches in one pass; returns the last branch's end node."""
        node, tokens = self._grow(branches)
        if tokens:
            self._read(self._nothing, tokens)
        return node

    def log_prob(self, text: Sequence[int]) -> float:
        """The log-probability of a text; all of its tokens but the last are in the tree."""
        node, total = 0, 0.0
        for token in text[:-1]:
            total += float(self._next_log_probs[node][token])
            node = self._nodes[node, token]
        return total + float(self._next_log_probs[node][text[-1]])

    def _grow(self, branches: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
        """Add the nodes that are missing; returns the last branch's end node and the tokens of
        the new nodes."""
        node, added = 0, []
        for branch in branches:
            node = 0
            for token in branch:
                if (node, token) not in self._nodes:
                    self._nodes[node, token] = number = len(self._paths)
                    self._paths.append([*self._paths[node], number])
                    added.append(token)
                node = self._nodes[node, token]
        return node, added

    def _read(self, x_1TD: Tensor, tokens: list[int]) -> None:
        """One pass over the prompt, empty after the first pass, and the newest nodes' tokens."""
        T, device = self._length, self._cache.keys.device
        paths = self._paths[len(self._paths) - len(tokens) :]
        end = T + len(self._paths) - 1
        prompt = range(T - x_1TD.shape[1], T)
        slots = torch.tensor([*prompt, *range(end - len(tokens), end)], device=device)
        positions = torch.tensor([*prompt, *(T - 1 + len(path) for path in paths)], device=device)
        mask_NS = None
        if len(slots) < end or not torch.equal(slots, positions):  # else plain causal attention
            mask_NS = torch.arange(end, device=device) <= slots.clamp(max=T - 1)[:, None]
            for row, path in enumerate(paths, len(prompt)):
                mask_NS[row, [T + node - 1 for node in path]] = True
        embedded = self.decoder.embedding(torch.tensor([tokens], dtype=torch.long, device=device))
        x_1ND = torch.cat((x_1TD.to(embedded), embedded), dim=1)
        rope = rotation(self.decoder.config, positions, x_1ND.dtype)
        placed = Placement(slots, rope, end, mask_NS)
        hidden_1ND = self.decoder.forward_at(x_1ND, self._cache, placed)
        ends = hidden_1ND[0, max(0, len(prompt) - 1) :]
        self._next_log_probs += self.decoder.logits(ends).log_softmax(-1)
        self.flops += flops(self.decoder.config, len(slots), end, logits=len(ends))
