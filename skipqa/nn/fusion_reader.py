"""BSCA into a decoder: local visual tokens find, in the passages, the words that answer.

Enters: the kept tokens of an image as its encoder gives them (features, evidence, place, saliency),
the question, and of every passage its embedding and its words twice: as states of an early layer of
the decoder, which know what stands before them, and as the decoder's raw input embeddings. Leaves:
a few tokens for the decoder's prompt; the edges that survived; and the attention that each passage
received. It knows no text and no decoder.

The score of an edge starts from two cosines and learns the rest (equation 8, with a bias),

    e_ij = a cos(n_i, p_j) + b cos(q, p_j) + y logit(nu_j) + z log(r_j)
           + <W_v x_i, W_k p_j> / sqrt(d_h) + c,

with n_i the expected name of what a token shows, nu_j the passage's verification score and r_j its
retrieval score relative to the best. Variant A takes sigmoid(e_ij); variant B the cosine of the
same two vectors (equation B.4). Of all pairs the top beta stay edges: in variant B that is a mean
degree of beta K. How far a score is above tau opens a gate; its logarithm is the bias of that
edge's attention.

Along its edges every token attends to words, with S heads. Keys are early states after one layer
in which the words of a passage look at each other, as an answer may stand before what asks for it.
Tokens vote, by what they show and how salient they are, and where their attention is greatest the
decoder is given a window: that word and those around it, as its own embeddings (W_V = W_O = I). So
a rare name of nine word pieces is copied by finding its first one; nine tokens that had to find one
piece each lost it on the way (LOG.md). The windows are the best few places that do not overlap, the
best one last, and before each stands what the tokens that voted show, and how sure the place is.

`relaxed` is the form for training: every edge open a little, the attention to each word leaves, for
a pointer loss, and a window's gradient is that of the mean window (straight through).

Shapes: B items, V visual tokens, K passages, P those that are read, T words of the longest, M words
of all passages, F features, C concepts, d text width, D width of the decoder, S heads, E head
width, N windows, W words of a window, L = N (1 + W) tokens for the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.errors import UserError
from skipqa.nn.fusion import EdgeRule
from skipqa.nn.grounding import PLACE
from skipqa.nn.soft_edges import edge_bias, row_openness
from skipqa.ops.bipartite_attention import (
    compatibility,
    passage_mass,
    select_edges,
    word_mass,
)

TAU_E = 0.6  # where a layer starts, and where its training ends (Table D.1)
LIKENESS = (6.0, 3.0)  # a and b at the start: a name tells more than a question
TRUST = (0.5, 0.3)  # y and z at the start
SURE_OF = (0.01, 0.99)  # verification scores beyond these tell nothing more
OFFSET = -3.0  # c at the start: an edge is closed unless something speaks for it
LEAST_SALIENCY = 1e-4
LEAST_MASS = 0.05  # that is pointed with elsewhere, for the gradient of a further window
LEAST_SCORE = 0.01  # of retrieval, relative to the best: what is less tells nothing more
LONGEST_READ = 96  # words of a passage, in training and answering: places beyond learn nothing


def check_window(window: int, before: int) -> None:
    if before >= window:
        raise UserError(
            f"before = {before} leaves no place for the word that is pointed at: "
            f"in a window of {window} at most {window - 1} stand before it"
        )


@dataclass(frozen=True, slots=True)
class FusionReaderConfig:
    vision_width: int
    concepts: int
    text_width: int
    width: int  # of the decoder
    heads: int  # of the decoder: those here are as wide
    embedding_rms: float  # of the decoder's embeddings: what a token of the image has, too
    early_layers: int = 6  # of the decoder that words go through for their states
    variant: Literal["A", "B"] = "A"
    edge_width: int = 128  # d_h
    # None: edges are those above the learned tau. The paper's 0.1 is of 320 and more pairs; a
    # pocket has six passages, of which a token should reach one
    beta: float | None = 0.2
    temperature: float = 0.1  # of the gates, where training ends
    pointers: int = 3  # heads
    windows: int = 2
    window: int = 11  # words
    before: int = 3  # of them, before the one that is pointed at
    words: int = 128  # of a passage that have a place of their own

    def __post_init__(self) -> None:
        check_window(self.window, self.before)

    @property
    def rule(self) -> EdgeRule:
        return EdgeRule("cosine" if self.variant == "B" else "sigmoid", top=self.beta)

    @property
    def pointer_width(self) -> int:
        return self.width // self.heads

    @property
    def tokens(self) -> int:
        """For the decoder."""
        return self.windows * (1 + self.window)


@dataclass(frozen=True, slots=True)
class LocalTokens:
    """Kept tokens, the most salient first."""

    features_BVF: Tensor
    evidence_BVC: Tensor  # probabilities
    names_BVd: Tensor  # the expected embedding of their concepts; 0 where nothing is known
    places_BVP: Tensor  # rows of `grounding.places`
    saliency_BV: Tensor  # in [0, 1]
    # How far each is kept, where that is being learned (straight through); None: all are
    kept_BV: Tensor | None = None


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
class Offered:
    """What edges to passages are chosen by, before any of their words is read."""

    pooled_BKd: Tensor  # their embeddings
    believed_BK: Tensor  # the logit of their verification score; 0 where nobody verified
    retrieved_BK: Tensor  # log(r_j); 0 where they were not retrieved
    there_BK: Tensor  # bool


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


def retrieved_logs(relative: Sequence[float]) -> Tensor:
    """log(r_j) of retrieval scores, relative to the best of these."""
    scores_K = torch.tensor(relative, dtype=torch.float32).clamp_min(LEAST_SCORE)
    return (scores_K / scores_K.max()).log() if len(scores_K) else scores_K


class Edges(NamedTuple):
    """Who may read what, before anything is read."""

    asking_BVD: Tensor  # the tokens, given the question
    logits_BVK: Tensor  # e_ij, or in variant B how far a cosine is above tau
    gates_BVK: Tensor  # in (0, 1); 0 where there is no edge
    open_BVK: Tensor  # bool
    votes_BV: Tensor  # they sum to 1


class FusionRead(NamedTuple):
    tokens_BLD: Tensor
    edges: Edges
    mass_BVK: Tensor  # of a token's attention, mean over heads
    pointed_BKT: Tensor  # of all votes, mean over heads


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
        self.trust = nn.Parameter(torch.tensor(TRUST))
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
        self.vote = nn.Linear(D, 1, bias=False)
        self.trust_saliency = nn.Parameter(torch.tensor(1.0))
        self.of_rank = nn.Parameter(0.02 * torch.randn(config.windows, D))
        self.of_sureness = nn.Parameter(0.02 * torch.randn(D))
        self.normalise = nn.RMSNorm(D)

    def forward(
        self,
        local: LocalTokens,
        asked: Asked,
        offered: Offered,
        words: PassageWords,
        given_BVK: Tensor | None = None,
    ) -> FusionRead:
        return self.read(self.choose(local, asked, offered, given_BVK), words)

    def choose(
        self,
        local: LocalTokens,
        asked: Asked,
        offered: Offered,
        given_BVK: Tensor | None = None,
    ) -> Edges:
        """Without the words of passages: those of one without an edge are not needed. Given edges
        stand in for the layer's own choice, given gates for its gates, too."""
        asking_BVD = self.tokens(local, asked)
        scores_BVK, logits_BVK = self._scores(asking_BVD, local, asked, offered)
        if given_BVK is None:
            rule = self.rule.arguments(self.threshold)
            given_BVK = select_edges(scores_BVK, **rule, lengths=offered.there_BK.long())
        gates_BVK = given_BVK
        if not given_BVK.is_floating_point():
            above_BVK = (scores_BVK - self.threshold) / self.config.temperature
            gates_BVK = given_BVK * torch.sigmoid(above_BVK)
        votes_BV = self._votes(asking_BVD, local, gates_BVK)
        return Edges(asking_BVD, logits_BVK, gates_BVK, given_BVK > 0, votes_BV)

    def read(self, edges: Edges, words: PassageWords) -> FusionRead:
        """Only along edges; passages without one are not projected."""
        along, bias = edges.open_BVK, edge_bias(edges.gates_BVK)
        read_BK = along.any(1)
        there_BKT = words.there_BKT & read_BK[..., None]
        lengths_BK = words.lengths_BK * read_BK
        q_BVSE = self._split(self.query(self.before_query(edges.asking_BVD)))
        k_MSE = self._split(self._keys(words, read_BK))
        mass_BVK = passage_mass(q_BVSE, k_MSE, along, lengths_BK, edge_bias=bias)
        votes_BV = edges.votes_BV * along.any(-1)
        mass_M = word_mass(q_BVSE, k_MSE, along, lengths_BK, votes_BV, edge_bias=bias)
        pointed_BKT = _padded(mass_M, there_BKT)
        return FusionRead(self._tokens(edges, pointed_BKT, words), edges, mass_BVK, pointed_BKT)

    def relaxed(
        self,
        local: LocalTokens,
        asked: Asked,
        offered: Offered,
        words: PassageWords,
        opening: Opening,
    ) -> FusionRead:
        """All pairs are computed, so that closed edges learn to open; tau is the learned one, moved
        by as much as the schedule is away from its end."""
        there_BKT = words.there_BKT
        present_BVK = offered.there_BK[:, None].expand(-1, local.names_BVd.shape[1], -1)
        asking_BVD = self.tokens(local, asked)
        scores_BVK, logits_BVK = self._scores(asking_BVD, local, asked, offered)
        tau = self.threshold + (opening.tau - TAU_E)
        open_BVK = present_BVK
        if opening.hard:
            rule = self.rule.arguments(tau.detach())
            there_BK = offered.there_BK.long()
            open_BVK = select_edges(scores_BVK.detach(), **rule, lengths=there_BK)
        gates_BVK = torch.sigmoid((scores_BVK - tau) / opening.temperature) * open_BVK
        votes_BV = self._votes(asking_BVD, local, gates_BVK)
        edges = Edges(asking_BVD, logits_BVK, gates_BVK, open_BVK, votes_BV)
        q_BVSE = self._split(self.query(self.before_query(asking_BVD)))
        every_BK = torch.ones_like(words.lengths_BK, dtype=torch.bool)
        k_MSE = self._split(self._keys(words, every_BK))
        k_BKTSE = _padded(k_MSE, there_BKT)
        logits = torch.einsum("bvse,bktse->bsvkt", q_BVSE, k_BKTSE).float()
        logits = logits / math.sqrt(self.config.pointer_width)
        logits = logits + edge_bias(gates_BVK.float())[:, None, :, :, None]
        visible_BVKT = open_BVK[..., None] & there_BKT[:, None]
        logits = logits.masked_fill(~visible_BVKT[:, None], -torch.inf)
        # A row that sees nothing is 0/0 under softmax; its attention is defined as zero.
        sees_BV = visible_BVKT.flatten(2).any(-1)
        prob = logits.flatten(3).softmax(-1).view_as(logits)
        prob = torch.where(sees_BV[:, None, :, None, None], prob, 0.0)
        pointed_BKT = torch.einsum("bv,bsvkt->bkt", votes_BV, prob) / self.config.pointers
        tokens_BLD = self._tokens(edges, pointed_BKT, words)
        return FusionRead(tokens_BLD, edges, prob.sum(-1).mean(1), pointed_BKT)

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
        self, asking_BVD: Tensor, local: LocalTokens, asked: Asked, offered: Offered
    ) -> tuple[Tensor, Tensor]:
        """What edges are chosen by, and the logit that an edge is right."""
        names_BVd = F.normalize(local.names_BVd, dim=-1)
        pooled_BKd = F.normalize(offered.pooled_BKd, dim=-1)
        asked_BVd = F.normalize(asked.embedding_Bd, dim=-1)[:, None].expand_as(names_BVd)
        learned = self.edge_token(asking_BVD) / math.sqrt(self.config.edge_width)
        parts = (
            self.likeness[0] * names_BVd,
            self.likeness[1] * asked_BVd,
            self.trust.expand(*names_BVd.shape[:2], -1),
            learned.float(),
        )
        u = torch.cat(parts, dim=-1)
        told_BK2 = torch.stack((offered.believed_BK, offered.retrieved_BK), dim=-1)
        learned = self.edge_passage(pooled_BKd).float()
        w = torch.cat((pooled_BKd, pooled_BKd, told_BK2, learned), dim=-1)
        with torch.autocast(u.device.type, enabled=False):  # bfloat16 would make them equal
            if self.config.variant == "B":
                scores = compatibility(u, w, kind="cosine")
                return scores, (scores - self.threshold) / self.config.temperature
            logits = u @ w.transpose(1, 2) + self.offset
            return logits.sigmoid(), logits

    def _votes(self, asking_BVD: Tensor, local: LocalTokens, gates_BVK: Tensor) -> Tensor:
        """[B, V]: a token without an edge has none to speak of."""
        shown_BV = self.vote(self.before_query(asking_BVD))[..., 0].float()
        salient_BV = local.saliency_BV.clamp_min(LEAST_SALIENCY).log()
        open_BV = edge_bias(row_openness(gates_BVK.float()))
        votes_BV = (shown_BV + self.trust_saliency * salient_BV + open_BV).softmax(-1)
        if local.kept_BV is None:
            return votes_BV
        votes_BV = votes_BV * local.kept_BV
        return votes_BV / votes_BV.sum(-1, keepdim=True).clamp_min(LEAST_SALIENCY)

    def _keys(self, words: PassageWords, of_BK: Tensor) -> Tensor:
        """[M, S E] of the words of the P passages that `of_BK` has. They are padded only to look at
        each other."""
        there_PT = words.there_BKT[of_BK]
        num_words, heads = there_PT.shape[1], self.config.heads
        places_T = torch.arange(num_words, device=of_BK.device)
        place_M = places_T.expand_as(there_PT)[there_PT].clamp(max=self.config.words - 1)
        states_MD = words.states_BKTD[of_BK][there_PT]
        states_MD = F.rms_norm(states_MD, states_MD.shape[-1:]) + self.word_place[place_M]
        around = _padded(self.look_around(states_MD), there_PT)
        q, k, v = (x.transpose(1, 2) for x in around.unflatten(-1, (3, heads, -1)).unbind(2))
        seen_PT = there_PT | (places_T == 0)  # no row without a word
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=seen_PT[:, None, None])
        states_MD = states_MD + self.found_around(found.transpose(1, 2).flatten(2)[there_PT])
        keys: Tensor = self.key(self.before_key(states_MD))
        return keys

    def _tokens(self, edges: Edges, pointed_BKT: Tensor, words: PassageWords) -> Tensor:
        """[B, L, D]: for each window, the best one last, what voted for it and then its words."""
        seen_BD = torch.einsum("bv,bvd->bd", edges.votes_BV, edges.asking_BVD.float())
        parts: list[Tensor] = []
        for rank, (prob_B, window_BWD) in enumerate(self._windows(pointed_BKT, words)):
            seen_B1D = (seen_BD + self.of_rank[rank] + prob_B[:, None] * self.of_sureness)[:, None]
            seen_B1D = self.normalise(seen_B1D) * self.config.embedding_rms
            parts = [seen_B1D, window_BWD.to(seen_B1D.dtype), *parts]
        return torch.cat(parts, dim=1)

    def _windows(self, pointed_BKT: Tensor, words: PassageWords) -> Iterator[tuple[Tensor, Tensor]]:
        """The best places that do not overlap: how probable each is, and its words [B, W, D], zeros
        outside its passage."""
        size, before = self.config.window, self.config.before
        num_words = pointed_BKT.shape[2]
        places_T = torch.arange(num_words, device=pointed_BKT.device)
        items_B = torch.arange(len(pointed_BKT), device=pointed_BKT.device)
        raw_BKTD = words.embeddings_BKTD * words.there_BKT[..., None]
        if not pointed_BKT[0].numel():
            nothing = raw_BKTD.new_zeros(len(items_B), size, raw_BKTD.shape[-1])
            yield from [(nothing[:, 0, 0].float(), nothing)] * self.config.windows
            return
        padded = F.pad(raw_BKTD, (0, 0, before, size - before - 1))
        for _ in range(self.config.windows):
            prob_B, best_B = pointed_BKT.flatten(1).max(-1)
            passage_B, word_B = best_B // num_words, best_B % num_words
            around_BW = word_B[:, None] + torch.arange(size, device=word_B.device)
            window_BWD = padded[items_B[:, None], passage_B[:, None], around_BW]
            window_BWD = window_BWD * (prob_B > 0)[:, None, None]
            if torch.is_grad_enabled() and pointed_BKT.requires_grad:
                mean_BWD = _mean_window(pointed_BKT, raw_BKTD, size, before)
                window_BWD = window_BWD + mean_BWD - mean_BWD.detach()
            yield prob_B, window_BWD
            near_BT = (places_T - word_B[:, None]).abs() < size
            near_BKT = pointed_BKT.new_zeros(pointed_BKT.shape, dtype=torch.bool)
            near_BKT[items_B, passage_B] = near_BT
            pointed_BKT = pointed_BKT.masked_fill(near_BKT, 0.0)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.pointers, -1))


def _padded(words_M: Tensor, there: Tensor) -> Tensor:
    """Each word where `there` has one, zeros elsewhere."""
    padded = words_M.new_zeros(*there.shape, *words_M.shape[1:])
    return padded.index_put((there,), words_M)


def _mean_window(pointed_BKT: Tensor, raw_BKTD: Tensor, size: int, before: int) -> Tensor:
    """[B, W, D]: the windows of all words by how much each is pointed at; a word further on is the
    same attention, moved. Where next to nothing is left to point with, that is not blown up: the
    gradient of a sure pointer's second window would be infinite."""
    total_B11 = pointed_BKT.sum((1, 2), keepdim=True).clamp_min(LEAST_MASS)
    padded = F.pad(pointed_BKT / total_B11, (size - before - 1, before))
    num_words = pointed_BKT.shape[2]
    moved = [padded[..., size - 1 - w : size - 1 - w + num_words] for w in range(size)]
    moved_BWKT = torch.stack(moved, dim=1).to(raw_BKTD.dtype)
    return torch.einsum("bwkt,bktd->bwd", moved_BWKT, raw_BKTD)


def flops(config: FusionReaderConfig, edges_VK: Tensor, lengths: Sequence[int]) -> int:
    """FLOPs for one item with these edges; a multiply and an add are two."""
    D, d, e = config.width, config.text_width, config.edge_width
    num_tokens, num_passages = edges_VK.shape
    words_K = torch.as_tensor(lengths, dtype=torch.long) * edges_VK.any(0)
    longest = int(words_K.max()) if len(words_K) else 0
    num_words, padded = int(words_K.sum()), int((words_K > 0).sum()) * longest
    edge_words = int((edges_VK.sum(0) * words_K).sum())
    pointing = config.pointers * config.pointer_width
    inputs = num_tokens * (config.vision_width + config.concepts + PLACE + 2 * D) * D
    inputs += (d + 2 * D) * D
    choosing = (num_tokens * D + num_passages * d) * e + num_tokens * num_passages * (2 * d + 2 + e)
    keys = num_words * D * (4 * D + pointing) + padded * D * 2 * longest
    attending = edge_words * (2 * pointing + config.pointers)  # for the passages, for the words
    voting = num_tokens * D * (pointing + 2)
    return 2 * (inputs + choosing + keys + attending + voting)
