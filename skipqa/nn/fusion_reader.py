"""BSCA into a decoder: local visual tokens read passages in words that the decoder knows.

Enters: the kept tokens of an image as its encoder gives them (features, evidence, place), the
question, and of every passage its embedding and its words twice: as states of an early layer of
the decoder, which know their context, and as the decoder's raw input embeddings. Leaves: as many
tokens, as large as the decoder's own embeddings, to stand in front of its prompt; the edges that
survived; and the attention that each passage received. It knows no text and no decoder.

The score of an edge starts from two cosines and learns the rest (equation 8, with a bias),

    e_ij = a cos(n_i, p_j) + b cos(q, p_j) + <W_v x_i, W_k p_j> / sqrt(d_h) + c,

with n_i the expected name of what a token shows. Variant A takes sigmoid(e_ij); variant B the
cosine of the same two vectors (equation B.4). Of all pairs the top beta stay edges: in variant B
that is a mean degree of beta K. How far a score is above tau opens a gate; its logarithm is the
bias of that edge's attention. Keys are projected states; values start as the word's own embedding
(W_V = W_O = I), so a token that attends to one word starts as that word. `relaxed` is the form for
training: every edge open a little, and the attention to each word leaves, for a pointer loss.

Shapes: B items, V visual tokens, K passages, T words of the longest, N words in a row, F features,
C concepts, d text width, D width of the decoder, H heads, E head width.
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
RANK_STD = 0.3  # tokens have to differ from the first step on: each reads a word of its own


@dataclass(frozen=True, slots=True)
class FusionReaderConfig:
    vision_width: int
    concepts: int
    text_width: int
    width: int  # of the decoder
    heads: int
    embedding_rms: float  # of the decoder's embeddings: what a fused token has, too
    early_layers: int = 6  # of the decoder that passages go through for their keys
    variant: Literal["A", "B"] = "A"
    edge_width: int = 128  # d_h
    # None: edges are those above the learned tau. The paper's 0.1 is of 320 and more pairs; a
    # pocket has six passages, of which a token should reach one
    beta: float | None = 0.2
    temperature: float = 0.1  # of the gates, where training ends
    tokens: int = 64  # that have a rank of their own
    words: int = 128  # of a passage that have a place of their own

    @property
    def rule(self) -> EdgeRule:
        return EdgeRule("cosine" if self.variant == "B" else "sigmoid", top=self.beta)


@dataclass(frozen=True, slots=True)
class LocalTokens:
    """Kept tokens, the most salient first."""

    features_BVF: Tensor
    evidence_BVC: Tensor  # probabilities
    names_BVd: Tensor  # the expected embedding of their concepts; 0 where nothing is known
    places_BVP: Tensor  # rows of `grounding.places`


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


class FusionRead(NamedTuple):
    tokens_BVD: Tensor
    edges: Edges
    mass_BVK: Tensor  # of a token's attention, mean over heads
    attention_BVKT: Tensor | None = None  # the same by word, of `relaxed` alone


class FusionReader(nn.Module):
    def __init__(self, config: FusionReaderConfig) -> None:
        super().__init__()
        self.config, self.rule = config, config.rule
        D, d = config.width, config.text_width
        self.standardise = nn.LayerNorm(config.vision_width, elementwise_affine=False)
        self.of_features = nn.Linear(config.vision_width, D)
        self.of_evidence = nn.Linear(config.concepts, D, bias=False)
        self.of_place = nn.Linear(PLACE, D, bias=False)
        self.of_question = nn.Linear(d, D, bias=False)
        self.rank = nn.Parameter(RANK_STD * torch.randn(config.tokens, D))
        self.edge_token = nn.Linear(D, config.edge_width, bias=False)  # W_v of equation 8
        self.edge_passage = nn.Linear(d, config.edge_width, bias=False)  # W_k
        self.likeness = nn.Parameter(torch.tensor(LIKENESS))
        self.threshold = nn.Parameter(torch.tensor(TAU_E))
        if config.variant == "A":
            self.offset = nn.Parameter(torch.tensor(OFFSET))
        self.before_query = nn.RMSNorm(D)
        self.query = nn.Linear(D, D, bias=False)
        self.key = nn.Linear(D, D, bias=False)
        self.word_place = nn.Parameter(0.02 * torch.randn(config.words, D))
        self.value = nn.Linear(D, D, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        nn.init.eye_(self.value.weight)
        nn.init.eye_(self.out.weight)
        self.normalise = nn.RMSNorm(D)

    def forward(
        self,
        local: LocalTokens,
        question_Bd: Tensor,
        pooled_BKd: Tensor,
        words: PassageWords,
        edges_BVK: Tensor | None = None,
    ) -> FusionRead:
        """`edges_BVK` stand in for the layer's own choice."""
        chosen = self.choose(local, question_Bd, pooled_BKd, words.lengths_BK, edges_BVK)
        return self.read(chosen, words)

    def choose(
        self,
        local: LocalTokens,
        question_Bd: Tensor,
        pooled_BKd: Tensor,
        lengths_BK: Tensor,
        edges_BVK: Tensor | None = None,
    ) -> Edges:
        """From embeddings alone, so that the words of a passage without an edge are not needed;
        of `lengths_BK` only matters whether they are 0."""
        asking_BVD = self.tokens(local, question_Bd)
        scores_BVK, logits_BVK = self._scores(asking_BVD, local, question_Bd, pooled_BKd)
        if edges_BVK is None:
            rule = self.rule.arguments(self.threshold)
            edges_BVK = select_edges(scores_BVK, **rule, lengths=lengths_BK)
        gates_BVK = torch.sigmoid((scores_BVK - self.threshold) / self.config.temperature)
        return Edges(asking_BVD, logits_BVK, gates_BVK * edges_BVK, edges_BVK)

    def read(self, edges: Edges, words: PassageWords) -> FusionRead:
        """Only along edges; passages without one are not projected."""
        read_BK = edges.open_BVK.any(1)
        lengths_BK = words.lengths_BK * read_BK
        there_BKT = words.there_BKT & read_BK[..., None]
        q_BVHE = self._split(self.query(self.before_query(edges.asking_BVD)))
        k_NHE = self._split(self._keys(words, there_BKT))
        v_NHE = self._split(self.value(words.embeddings_BKTD[there_BKT] / self._rms))
        along, bias = edges.open_BVK, edge_bias(edges.gates_BVK)
        read_BVHE = bipartite_attention(q_BVHE, k_NHE, v_NHE, along, lengths_BK, edge_bias=bias)
        mass_BVK = passage_mass(q_BVHE, k_NHE, along, lengths_BK, edge_bias=bias)
        return FusionRead(self._added(edges, read_BVHE), edges, mass_BVK)

    def relaxed(
        self,
        local: LocalTokens,
        question_Bd: Tensor,
        pooled_BKd: Tensor,
        words: PassageWords,
        opening: Opening,
    ) -> FusionRead:
        """All pairs are computed, so that closed edges learn to open; tau is the learned one, moved
        by as much as the schedule is away from its end."""
        there_BKT = words.there_BKT
        present_BVK = (words.lengths_BK > 0)[:, None].expand(-1, local.names_BVd.shape[1], -1)
        asking_BVD = self.tokens(local, question_Bd)
        scores_BVK, logits_BVK = self._scores(asking_BVD, local, question_Bd, pooled_BKd)
        tau = self.threshold + (opening.tau - TAU_E)
        gates_BVK = torch.sigmoid((scores_BVK - tau) / opening.temperature)
        open_BVK = present_BVK
        if opening.hard:
            rule = self.rule.arguments(tau.detach())
            open_BVK = select_edges(scores_BVK.detach(), **rule, lengths=words.lengths_BK)
        edges = Edges(asking_BVD, logits_BVK, gates_BVK * open_BVK, open_BVK)
        q_BVHE = self._split(self.query(self.before_query(asking_BVD)))
        every_BKT = torch.ones_like(there_BKT)
        k_BKTHE = self._split(self._keys(words, every_BKT)).unflatten(0, there_BKT.shape)
        v_BKTHE = self._split(self.value(words.embeddings_BKTD / self._rms))
        logits = torch.einsum("bvhe,bkthe->bhvkt", q_BVHE, k_BKTHE).float()
        logits = logits / math.sqrt(q_BVHE.shape[-1])
        logits = logits + edge_bias(edges.gates_BVK.float())[:, None, :, :, None]
        visible_BVKT = open_BVK[..., None] & there_BKT[:, None]
        logits = logits.masked_fill(~visible_BVKT[:, None], -torch.inf)
        # A row that sees nothing is 0/0 under softmax; its attention is defined as zero.
        sees_BV = visible_BVKT.flatten(2).any(-1)
        prob = logits.flatten(3).softmax(-1).view_as(logits)
        prob = torch.where(sees_BV[:, None, :, None, None], prob, 0.0)
        read_BVHE = torch.einsum("bhvkt,bkthe->bvhe", prob.to(v_BKTHE.dtype), v_BKTHE)
        attention_BVKT = prob.mean(1)
        mass_BVK = attention_BVKT.sum(-1)
        return FusionRead(self._added(edges, read_BVHE), edges, mass_BVK, attention_BVKT)

    def tokens(self, local: LocalTokens, question_Bd: Tensor) -> Tensor:
        """[B, V, D]: W [features ; evidence], the place, the rank, and the question."""
        seen_BVD = self.of_features(self.standardise(local.features_BVF))
        # Square roots of probabilities have unit length, however many concepts share them.
        named_BVD = self.of_evidence(local.evidence_BVC.sqrt())
        ranks_V = torch.arange(seen_BVD.shape[1], device=seen_BVD.device)
        rank_VD = self.rank[ranks_V.clamp(max=len(self.rank) - 1)]
        asked_B1D = self.of_question(math.sqrt(self.config.text_width) * question_Bd)[:, None]
        return seen_BVD + named_BVD + self.of_place(local.places_BVP) + rank_VD + asked_B1D

    def _scores(
        self, asking_BVD: Tensor, local: LocalTokens, question_Bd: Tensor, pooled_BKd: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What edges are chosen by, and the logit that an edge is right."""
        names_BVd, pooled_BKd = (F.normalize(x, dim=-1) for x in (local.names_BVd, pooled_BKd))
        asked_BVd = F.normalize(question_Bd, dim=-1)[:, None].expand_as(names_BVd)
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

    def _keys(self, words: PassageWords, there_BKT: Tensor) -> Tensor:
        """[N, D] of the words that are there."""
        states_ND = words.states_BKTD[there_BKT]
        places_T = torch.arange(there_BKT.shape[2], device=there_BKT.device)
        places_N = places_T.clamp(max=self.config.words - 1).expand_as(there_BKT)[there_BKT]
        key_ND = self.key(F.rms_norm(states_ND, states_ND.shape[-1:]))
        return key_ND + self.word_place[places_N]

    def _added(self, edges: Edges, read_BVHE: Tensor) -> Tensor:
        """A row without edges passes through, and one whose gates are nearly shut nearly does."""
        added_BVD = row_openness(edges.gates_BVK)[..., None] * self.out(read_BVHE.flatten(2))
        return self.normalise(edges.asking_BVD + added_BVD) * self._rms

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.heads, -1))

    @property
    def _rms(self) -> float:
        return self.config.embedding_rms


def flops(config: FusionReaderConfig, edges_VK: Tensor, lengths: Sequence[int]) -> int:
    """FLOPs for one item with these edges; a multiply and an add are two."""
    D, d, e = config.width, config.text_width, config.edge_width
    num_tokens, num_passages = edges_VK.shape
    words_K = torch.as_tensor(lengths, dtype=torch.long)
    read_words = int((edges_VK.any(0) * words_K).sum())
    edge_words = int((edges_VK.sum(0) * words_K).sum())
    inputs = num_tokens * (config.vision_width + config.concepts + PLACE) * D + d * D
    choosing = (num_tokens * D + num_passages * d) * e + num_tokens * num_passages * (2 * d + e)
    projecting = 2 * (num_tokens + read_words) * D * D
    attending = 3 * edge_words * D  # logits, values, and logits again for the mass
    return 2 * (inputs + choosing + projecting + attending)
