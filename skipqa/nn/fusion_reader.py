"""BSCA into a decoder: local visual tokens find, in the passages, the words that answer.

Enters: the kept tokens of an image as its encoder gives them (features, evidence, place, saliency),
the question, and of every passage its embedding and its words twice: as states of an early layer of
the decoder, which know what stands before them, and as the decoder's raw input embeddings. Leaves:
a few tokens for the decoder's prompt; the edges that survived; and the attention that each passage
received. It knows no text and no decoder.

The score of an edge starts from two cosines and learns the rest (equation 8, with a bias),

    e_ij = a cos(n_i, p_j) + b cos(q, p_j) + <W_v x_i, W_k p_j> / sqrt(d_h) + c,

with n_i the expected name of what a token shows. Variant A takes sigmoid(e_ij); variant B the
cosine of the same two vectors (equation B.4). Of all pairs the top beta stay edges: in variant B
that is a mean degree of beta K. How far a score is above tau opens a gate; its logarithm is the
bias of that edge's attention.

Along its edges every token points, with S heads, at words: keys are early states after one layer in
which the words of a passage look at each other, as an answer may stand before what asks for it.
Tokens vote, by what they show and how salient they are, and where a pointer points the decoder is
given a window: that word and the ones that follow it, as its own embeddings (W_V = W_O = I). So a
rare name of nine word pieces is copied by finding its first one; nine tokens that had to find one
piece each lost it on the way (LOG.md). Before the windows stand the tokens that voted, averaged:
what the image shows there. `relaxed` is the form for training: every edge open a little, and the
place of each pointer leaves, for a pointer loss.

Shapes: B items, V visual tokens, K passages, T words of the longest, N words in a row, F features,
C concepts, d text width, D width of the decoder, S pointers, W words of a window, E width of a
pointer, L = S (1 + W) tokens for the decoder, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn.fusion import EdgeRule
from skipqa.nn.grounding import PLACE
from skipqa.nn.soft_edges import edge_bias, row_openness
from skipqa.ops.bipartite_attention import (
    bipartite_attention,
    compatibility,
    passage_mass,
    select_edges,
)

TAU_E = 0.6  # where a layer starts, and where its training ends (Table D.1)
LIKENESS = (6.0, 3.0)  # a and b at the start: a name tells more than a question
OFFSET = -3.0  # c at the start: an edge is closed unless something speaks for it
LEAST_SALIENCY = 1e-4


@dataclass(frozen=True, slots=True)
class FusionReaderConfig:
    vision_width: int
    concepts: int
    text_width: int
    width: int  # of the decoder
    heads: int  # of the decoder: a pointer is as wide as one of them
    embedding_rms: float  # of the decoder's embeddings: what a token of the image has, too
    early_layers: int = 6  # of the decoder that words go through for their states
    variant: Literal["A", "B"] = "A"
    edge_width: int = 128  # d_h
    # None: edges are those above the learned tau. The paper's 0.1 is of 320 and more pairs; a
    # pocket has six passages, of which a token should reach one
    beta: float | None = 0.2
    temperature: float = 0.1  # of the gates, where training ends
    pointers: int = 2
    window: int = 8  # words
    words: int = 128  # of a passage that have a place of their own

    @property
    def rule(self) -> EdgeRule:
        return EdgeRule("cosine" if self.variant == "B" else "sigmoid", top=self.beta)

    @property
    def pointer_width(self) -> int:
        return self.width // self.heads

    @property
    def tokens(self) -> int:
        """For the decoder."""
        return self.pointers * (1 + self.window)


@dataclass(frozen=True, slots=True)
class LocalTokens:
    """Kept tokens, the most salient first."""

    features_BVF: Tensor
    evidence_BVC: Tensor  # probabilities
    names_BVd: Tensor  # the expected embedding of their concepts; 0 where nothing is known
    places_BVP: Tensor  # rows of `grounding.places`
    saliency_BV: Tensor  # in [0, 1]


@dataclass(frozen=True, slots=True)
class Asked:
    """The question, as the text encoder has it and as the decoder's early layers do."""

    embedding_Bd: Tensor
    states_BTD: Tensor  # of its words, padded at the end
    lengths_B: Tensor

    @property
    def summary_BD2(self) -> Tensor:
        """[B, 2 D]: the mean of its words and the last one, which has read the others."""
        words_T = torch.arange(self.states_BTD.shape[1], device=self.lengths_B.device)
        states_BTD = F.rms_norm(self.states_BTD.float(), self.states_BTD.shape[-1:])
        there_BT1 = (words_T < self.lengths_B[:, None])[..., None]
        mean_BD = (states_BTD * there_BT1).sum(1) / self.lengths_B.clamp(min=1)[:, None]
        items_B = torch.arange(len(states_BTD), device=self.lengths_B.device)
        last_BD = states_BTD[items_B, (self.lengths_B - 1).clamp(min=0)]
        return torch.cat((mean_BD, last_BD), dim=-1)


@dataclass(frozen=True, slots=True)
class PassageWords:
    """Padded at the end; a passage of no words is absent."""

    states_BKTD: Tensor
    embeddings_BKTD: Tensor
    lengths_BK: Tensor

    @property
    def there_BKT(self) -> Tensor:
        num_words = self.states_BKTD.shape[2]
        places_T = torch.arange(num_words, device=self.lengths_BK.device)
        return places_T < self.lengths_BK[..., None]


@dataclass(frozen=True, slots=True)
class Opening:
    """How edges open while training: the temperature of gates, and the tau_e of this step."""

    temperature: float
    tau: float
    hard: bool = False  # only the edges that the rule keeps, as in answering


class Edges(NamedTuple):
    """Who may read what, before anything is read."""

    asking_BVD: Tensor  # the tokens, given the question
    logits_BVK: Tensor  # e_ij, or in variant B how far a cosine is above tau
    gates_BVK: Tensor  # in (0, 1); 0 where there is no edge
    open_BVK: Tensor  # bool
    votes_BSV: Tensor  # of the tokens, for each pointer; they sum to 1


class FusionRead(NamedTuple):
    tokens_BLD: Tensor
    edges: Edges
    mass_BVK: Tensor  # of a token's attention, mean over pointers
    pointed_BSKT: Tensor | None = None  # where each pointer points, of `relaxed` alone


class FusionReader(nn.Module):
    def __init__(self, config: FusionReaderConfig) -> None:
        super().__init__()
        self.config, self.rule = config, config.rule
        D, d, pointing = config.width, config.text_width, config.pointers * config.pointer_width
        self.standardise = nn.LayerNorm(config.vision_width, elementwise_affine=False)
        self.of_features = nn.Linear(config.vision_width, D)
        self.of_evidence = nn.Linear(config.concepts, D, bias=False)
        self.of_place = nn.Linear(PLACE, D, bias=False)
        self.of_question = nn.Linear(d, D, bias=False)
        self.of_question_words = nn.Linear(2 * D, D, bias=False)
        self.mix = nn.Sequential(
            nn.RMSNorm(D), nn.Linear(D, D, bias=False), nn.GELU(), nn.Linear(D, D, bias=False)
        )
        self.edge_token = nn.Linear(D, config.edge_width, bias=False)  # W_v of equation 8
        self.edge_passage = nn.Linear(d, config.edge_width, bias=False)  # W_k
        self.likeness = nn.Parameter(torch.tensor(LIKENESS))
        self.threshold = nn.Parameter(torch.tensor(TAU_E))
        if config.variant == "A":
            self.offset = nn.Parameter(torch.tensor(OFFSET))
        self.before_query = nn.RMSNorm(D)
        self.query = nn.Linear(D, pointing, bias=False)
        self.word_place = nn.Parameter(0.02 * torch.randn(config.words, D))
        self.look_around = nn.Linear(D, 3 * D, bias=False)
        self.found_around = nn.Linear(D, D, bias=False)
        self.before_key = nn.RMSNorm(D)
        self.key = nn.Linear(D, pointing, bias=False)
        self.vote = nn.Linear(D, config.pointers, bias=False)
        self.trust_saliency = nn.Parameter(torch.tensor(1.0))
        self.normalise = nn.RMSNorm(D)

    def forward(
        self,
        local: LocalTokens,
        asked: Asked,
        pooled_BKd: Tensor,
        words: PassageWords,
        edges_BVK: Tensor | None = None,
    ) -> FusionRead:
        """`edges_BVK` stand in for the layer's own choice."""
        chosen = self.choose(local, asked, pooled_BKd, words.lengths_BK, edges_BVK)
        return self.read(chosen, words)

    def choose(
        self,
        local: LocalTokens,
        asked: Asked,
        pooled_BKd: Tensor,
        lengths_BK: Tensor,
        edges_BVK: Tensor | None = None,
    ) -> Edges:
        """From embeddings alone, so that the words of a passage without an edge are not needed;
        of `lengths_BK` only matters whether they are 0."""
        asking_BVD = self.tokens(local, asked)
        scores_BVK, logits_BVK = self._scores(asking_BVD, local, asked, pooled_BKd)
        if edges_BVK is None:
            rule = self.rule.arguments(self.threshold)
            edges_BVK = select_edges(scores_BVK, **rule, lengths=lengths_BK)
        gates_BVK = edges_BVK * torch.sigmoid(
            (scores_BVK - self.threshold) / self.config.temperature
        )
        votes_BSV = self._votes(asking_BVD, local, gates_BVK)
        return Edges(asking_BVD, logits_BVK, gates_BVK, edges_BVK, votes_BSV)

    def read(self, edges: Edges, words: PassageWords) -> FusionRead:
        """Only along edges; passages without one are not projected. A window is so many heads more,
        which attend alike and read one word further each."""
        config, along = self.config, edges.open_BVK
        read_BK = along.any(1)
        there_BKT = words.there_BKT & read_BK[..., None]
        lengths_BK = words.lengths_BK * read_BK
        q_BVSE = self._split(self.query(self.before_query(edges.asking_BVD)))
        k_NSE = self._split(self._keys(words, read_BK)[there_BKT[read_BK]])
        num_heads = config.pointers * config.window * config.heads
        q_BVHE, k_NHE = (
            x.repeat_interleave(config.window * config.heads, dim=-2) for x in (q_BVSE, k_NSE)
        )
        v_NWD = self._windows(words)[there_BKT]
        v_NHE = v_NWD.flatten(1).repeat(1, config.pointers).unflatten(1, (num_heads, -1))
        bias = edge_bias(edges.gates_BVK)
        read_BVHE = bipartite_attention(q_BVHE, k_NHE, v_NHE, along, lengths_BK, edge_bias=bias)
        mass_BVK = passage_mass(q_BVSE, k_NSE, along, lengths_BK, edge_bias=bias)
        read_BVSWD = read_BVHE.flatten(2).unflatten(2, (config.pointers, config.window, -1))
        windows_BSWD = torch.einsum("bsv,bvswd->bswd", edges.votes_BSV, read_BVSWD)
        return FusionRead(self._tokens(edges, windows_BSWD), edges, mass_BVK)

    def relaxed(
        self,
        local: LocalTokens,
        asked: Asked,
        pooled_BKd: Tensor,
        words: PassageWords,
        opening: Opening,
    ) -> FusionRead:
        """All pairs are computed, so that closed edges learn to open; tau is the learned one, moved
        by as much as the schedule is away from its end."""
        there_BKT = words.there_BKT
        present_BVK = (words.lengths_BK > 0)[:, None].expand(-1, local.names_BVd.shape[1], -1)
        asking_BVD = self.tokens(local, asked)
        scores_BVK, logits_BVK = self._scores(asking_BVD, local, asked, pooled_BKd)
        tau = self.threshold + (opening.tau - TAU_E)
        open_BVK = present_BVK
        if opening.hard:
            rule = self.rule.arguments(tau.detach())
            open_BVK = select_edges(scores_BVK.detach(), **rule, lengths=words.lengths_BK)
        gates_BVK = torch.sigmoid((scores_BVK - tau) / opening.temperature) * open_BVK
        votes_BSV = self._votes(asking_BVD, local, gates_BVK)
        edges = Edges(asking_BVD, logits_BVK, gates_BVK, open_BVK, votes_BSV)
        q_BVSE = self._split(self.query(self.before_query(asking_BVD)))
        every_BK = torch.ones_like(words.lengths_BK, dtype=torch.bool)
        k_BKTSE = self._split(self._keys(words, every_BK)).unflatten(0, every_BK.shape)
        logits = torch.einsum("bvse,bktse->bsvkt", q_BVSE, k_BKTSE).float()
        logits = logits / math.sqrt(self.config.pointer_width)
        logits = logits + edge_bias(gates_BVK.float())[:, None, :, :, None]
        visible_BVKT = open_BVK[..., None] & there_BKT[:, None]
        logits = logits.masked_fill(~visible_BVKT[:, None], -torch.inf)
        # A row that sees nothing is 0/0 under softmax; its attention is defined as zero.
        sees_BV = visible_BVKT.flatten(2).any(-1)
        prob = logits.flatten(3).softmax(-1).view_as(logits)
        prob = torch.where(sees_BV[:, None, :, None, None], prob, 0.0)
        pointed_BSKT = torch.einsum("bsv,bsvkt->bskt", votes_BSV.float(), prob)
        # A word further on is the same attention, moved
        moved = [F.pad(pointed_BSKT, (w, 0))[..., : prob.shape[-1]] for w in range(self._window)]
        moved_BSWKT = torch.stack(moved, dim=2) * there_BKT[:, None, None]
        raw_BKTD = words.embeddings_BKTD
        windows_BSWD = torch.einsum("bswkt,bktd->bswd", moved_BSWKT.to(raw_BKTD.dtype), raw_BKTD)
        mass_BVK = prob.sum(-1).mean(1)
        return FusionRead(self._tokens(edges, windows_BSWD), edges, mass_BVK, pointed_BSKT)

    def tokens(self, local: LocalTokens, asked: Asked) -> Tensor:
        """[B, V, D]: W [features ; evidence], the place and the question, and what follows from
        all of these together."""
        seen_BVD = self.of_features(self.standardise(local.features_BVF))
        # Square roots of probabilities have unit length, however many concepts share them.
        named_BVD = self.of_evidence(local.evidence_BVC.sqrt())
        asked_BD = self.of_question(math.sqrt(self.config.text_width) * asked.embedding_Bd)
        asked_BD = asked_BD + self.of_question_words(asked.summary_BD2)
        token_BVD = seen_BVD + named_BVD + self.of_place(local.places_BVP) + asked_BD[:, None]
        mixed: Tensor = token_BVD + self.mix(token_BVD)
        return mixed

    def _scores(
        self, asking_BVD: Tensor, local: LocalTokens, asked: Asked, pooled_BKd: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What edges are chosen by, and the logit that an edge is right."""
        names_BVd, pooled_BKd = (F.normalize(x, dim=-1) for x in (local.names_BVd, pooled_BKd))
        asked_BVd = F.normalize(asked.embedding_Bd, dim=-1)[:, None].expand_as(names_BVd)
        learned = self.edge_token(asking_BVD) / math.sqrt(self.config.edge_width)
        parts = (self.likeness[0] * names_BVd, self.likeness[1] * asked_BVd, learned.float())
        u = torch.cat(parts, dim=-1)
        w = torch.cat((pooled_BKd, pooled_BKd, self.edge_passage(pooled_BKd).float()), dim=-1)
        with torch.autocast(u.device.type, enabled=False):  # bfloat16 would make them equal
            if self.config.variant == "B":
                scores = compatibility(u, w, kind="cosine")
                return scores, (scores - self.threshold) / self.config.temperature
            logits = u @ w.transpose(1, 2) + self.offset
            return logits.sigmoid(), logits

    def _votes(self, asking_BVD: Tensor, local: LocalTokens, gates_BVK: Tensor) -> Tensor:
        """[B, S, V]: a token without an edge has none to speak of."""
        shown_BSV = self.vote(self.before_query(asking_BVD)).transpose(1, 2).float()
        salient_BV = local.saliency_BV.clamp_min(LEAST_SALIENCY).log()
        open_BV = edge_bias(row_openness(gates_BVK.float()))
        return (shown_BSV + (self.trust_saliency * salient_BV + open_BV)[:, None]).softmax(-1)

    def _keys(self, words: PassageWords, of_BK: Tensor) -> Tensor:
        """[M, T, S E] of the M passages that `of_BK` has."""
        states_MTD = words.states_BKTD[of_BK]
        num_words = states_MTD.shape[1]
        places_T = torch.arange(num_words, device=of_BK.device).clamp(max=self.config.words - 1)
        states_MTD = F.rms_norm(states_MTD, states_MTD.shape[-1:]) + self.word_place[places_T]
        around = self.look_around(states_MTD).unflatten(-1, (3, self.config.heads, -1))
        q, k, v = (x.transpose(1, 2) for x in around.unbind(2))
        there_MT = words.there_BKT[of_BK] | (places_T == 0)  # no row without a word
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=there_MT[:, None, None])
        states_MTD = states_MTD + self.found_around(found.transpose(1, 2).flatten(2))
        keys: Tensor = self.key(self.before_key(states_MTD))
        return keys

    def _windows(self, words: PassageWords) -> Tensor:
        """[B, K, T, W, D]: each word and those that follow it, zeros after the last."""
        raw_BKTD = words.embeddings_BKTD * words.there_BKT[..., None]
        padded = F.pad(raw_BKTD, (0, 0, 0, self._window - 1))
        num_words = raw_BKTD.shape[2]
        return torch.stack([padded[:, :, w : w + num_words] for w in range(self._window)], dim=3)

    def _tokens(self, edges: Edges, windows_BSWD: Tensor) -> Tensor:
        """[B, L, D]: what the voters show, then the windows, pointer after pointer."""
        seen_BSD = torch.einsum("bsv,bvd->bsd", edges.votes_BSV, edges.asking_BVD.float())
        seen_BSD = self.normalise(seen_BSD) * self.config.embedding_rms
        return torch.cat((seen_BSD, windows_BSWD.flatten(1, 2).to(seen_BSD.dtype)), dim=1)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.pointers, -1))

    @property
    def _window(self) -> int:
        return self.config.window


def flops(config: FusionReaderConfig, edges_VK: Tensor, lengths: Sequence[int]) -> int:
    """FLOPs for one item with these edges; a multiply and an add are two."""
    D, d, e = config.width, config.text_width, config.edge_width
    num_tokens, num_passages = edges_VK.shape
    words_K = torch.as_tensor(lengths, dtype=torch.long) * edges_VK.any(0)
    read_words, longest = int(words_K.sum()), int(words_K.max()) if len(words_K) else 0
    padded = int((words_K > 0).sum()) * longest
    edge_words = int((edges_VK.sum(0) * words_K).sum())
    pointing, window = config.pointers * config.pointer_width, config.pointers * config.window
    inputs = num_tokens * (config.vision_width + config.concepts + PLACE + 2 * D) * D
    inputs += (d + 2 * D) * D
    choosing = (num_tokens * D + num_passages * d) * e + num_tokens * num_passages * (2 * d + e)
    keys = padded * D * (4 * D + 2 * longest + pointing)
    attending = edge_words * (2 * window * D + pointing)
    voting = num_tokens * config.pointers * D * (2 + config.window)
    return 2 * (inputs + choosing + keys + num_tokens * D * pointing + attending + voting)
