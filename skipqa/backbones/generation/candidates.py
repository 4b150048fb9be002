"""Several answers to one prompt at once: how likely each is, and what the decoder itself says.

Enters: a decoder, a prompt as embeddings, answers as tokens, each with its end. Leaves: their
log-probabilities and the greedy reply. Nothing is drawn, and nothing is approximated: every
number is that of reading one answer at a time.

Shapes as in `llama.py`; N new tokens of the tree.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from skipqa.backbones.networks.llama import Generation, KVCache, Llama, flops, rotation

# Answers that are read together with the prompt, before it is known how it goes on: a few tokens
# more, and for three questions in four no other pass
AT_FIRST = 4
MARGIN = 2.0  # nats by which answers may be less promising than another of the same later pass


@torch.inference_mode()
def loglikelihood(
    decoder: Llama, x_1TD: Tensor, answers: Sequence[Sequence[int]], past: KVCache | None = None
) -> tuple[list[float], int]:
    """The log-probability of each answer to the prompt, and the FLOPs of it all: one pass.

    `past` is what was read before the prompt; it is left as it is.
    """
    texts = [answer[:-1] for answer in answers]
    tree = Continuations(decoder, x_1TD, past, texts, room=sum(map(len, texts)))
    return [tree.weight(answer) for answer in answers], tree.flops


@torch.inference_mode()
def reply(
    decoder: Llama,
    x_1TD: Tensor,
    max_new: int,
    stop: Collection[int],
    answers: Sequence[Sequence[int]],
    prior: Sequence[float],
    past: KVCache | None = None,
) -> tuple[Generation, list[float]]:
    """The greedy reply, up to and without a stop token, and the log-probabilities of the answers
    and then of itself with their end.

    `support` is what else speaks for each answer: the best sum is sought. Those with the most are
    read with the prompt. How an answer begins bounds its weight from above, so then the most
    promising are weighed, and those that cannot be the best any more not at all: minus infinity
    stands in their place.

    As far as the reply stands in a weighed answer it is known from that; the rest takes a pass a
    token. It is the reply of one token at a time.
    """
    end = answers[0][-1]
    room = sum(len(answer) - 1 for answer in answers) + max_new
    chosen = sorted(range(len(answers)), key=lambda n: -prior[n])[:AT_FIRST]
    tree = Continuations(decoder, x_1TD, past, [answers[n][:-1] for n in chosen], room=room)
    first = tree.log_probs(0)
    most = [float(first[answer[0]]) + more for answer, more in zip(answers, prior, strict=True)]
    waiting = sorted(range(len(answers)), key=lambda n: -most[n])
    begins = int(first.argmax())
    alike = [n for n in waiting if answers[n][0] == begins]
    likely = [] if any(n in chosen for n in alike) else alike[:1]  # to be the reply
    weights, best = [-math.inf] * len(answers), -math.inf
    while chosen:
        for n in chosen:
            weights[n] = tree.weight(answers[n])
            best = max(best, weights[n] + prior[n])
        waiting = [n for n in waiting if n not in chosen]
        least = max([best, *(most[n] - MARGIN for n in waiting[:1])])
        chosen = [n for n in waiting if most[n] > least or n in likely]
        tree.extend([answers[n][:-1] for n in chosen])
    tokens: list[int] = []
    scores: list[float] = []
    node = 0
    while True:
        scored = tree.log_probs(node)
        token = int(scored.argmax())
        if token in stop or len(tokens) == max_new:
            own = sum(scores) + float(scored[end])
            return Generation(tokens, scores, tree.flops), [*weights, own]
        tokens.append(token)
        scores.append(float(scored[token]))
        node = tree.extend([tokens])


class Continuations:
    """Texts that may follow a prompt, as a tree: what several begin with is read once.

    Node 0 is the end of the prompt, which has T tokens; every other node is a token. The keys and
    values of node n stand at T + n - 1; its position follows from how many nodes are above it.
    """

    def __init__(
        self,
        decoder: Llama,
        x_1TD: Tensor,
        past: KVCache | None = None,
        texts: Sequence[Sequence[int]] = (),
        *,
        room: int,
    ) -> None:
        """The `texts` that are known by now are read together with the prompt. There is `room`
        for so many nodes."""
        self.decoder, self.flops = decoder, 0
        start = 0 if past is None else past.length
        self._length = start + x_1TD.shape[1]  # T
        self._cache = KVCache(
            decoder.config, 1, self._length + room, dtype=x_1TD.dtype, device=x_1TD.device
        )
        if past is not None:
            self._cache.keys[:, :, :, :start] = past.keys
            self._cache.values[:, :, :, :start] = past.values
        self._nodes: dict[tuple[int, int], int] = {}  # by the node above and the token
        self._paths: list[list[int]] = [[]]  # of each node: the nodes from the first token to it
        self._log_probs: list[Tensor] = []  # [vocabulary] of each node: what follows it
        _, tokens = self._grow(texts)
        self._read(x_1TD, tokens)

    def log_probs(self, node: int) -> Tensor:
        return self._log_probs[node]

    def extend(self, texts: Sequence[Sequence[int]]) -> int:
        """Read what is new of the texts, in one pass; the node of the last one's end."""
        node, tokens = self._grow(texts)
        if tokens:
            self._read(self.decoder.embedding.weight[:0][None], tokens)
        return node

    def weight(self, text: Sequence[int]) -> float:
        """The log-probability of a text all of which but its last token was read."""
        node, total = 0, 0.0
        for token in text[:-1]:
            total += float(self._log_probs[node][token])
            node = self._nodes[node, token]
        return total + float(self._log_probs[node][text[-1]])

    def _grow(self, texts: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
        """New nodes, and their tokens; the node of the last text's end."""
        node, added = 0, []
        for text in texts:
            node = 0
            for token in text:
                if (node, token) not in self._nodes:
                    self._nodes[node, token] = number = len(self._paths)
                    self._paths.append([*self._paths[node], number])
                    added.append(token)
                node = self._nodes[node, token]
        return node, added

    def _read(self, x_1TD: Tensor, tokens: list[int]) -> None:
        """One pass: what is left of the prompt, and the tokens of the newest nodes."""
        T, device = self._length, self._cache.keys.device
        paths = self._paths[len(self._paths) - len(tokens) :]
        end = T + len(self._paths) - 1
        prompt = range(T - x_1TD.shape[1], T)
        slots = torch.tensor([*prompt, *range(end - len(tokens), end)], device=device)
        positions = torch.tensor([*prompt, *(T - 1 + len(path) for path in paths)], device=device)
        mask_NS = None
        if len(slots) < end or not torch.equal(slots, positions):  # else each sees all before it
            mask_NS = torch.arange(end, device=device) <= slots.clamp(max=T - 1)[:, None]
            for row, path in enumerate(paths, len(prompt)):
                mask_NS[row, [T + node - 1 for node in path]] = True
        embedded = self.decoder.embedding(torch.tensor([tokens], dtype=torch.long, device=device))
        x_1ND = torch.cat((x_1TD.to(embedded), embedded), dim=1)
        rope = rotation(self.decoder.config, positions, x_1ND.dtype)
        hidden_1ND = self.decoder.through(x_1ND, self._cache, rope, slots, end, mask_NS)
        ends = hidden_1ND[0, max(0, len(prompt) - 1) :]
        self._log_probs += self.decoder.logits(ends).log_softmax(-1)
        self.flops += flops(self.decoder.config, len(slots), end, logits=len(ends))
