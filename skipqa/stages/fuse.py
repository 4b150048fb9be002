"""fuse: attend only along the (token, passage) edges that matter (BSCA).

A trained layer projects, chooses edges and attends. Untrained, evidence already lives in the text
encoder's space, so compatibility needs no projection: A_ij = nu_j cos(v_i + q, k_j), the token
given the question against the passage, weighted by its verification. The top beta of all pairs, or
as many as give the mean degree, stay edges: of somebody's own documents and of general knowledge
each, as what a dictionary says of a horse is always nearer to one than a note about it. A token
attends to every word of the passages it has an edge to; a token without edges stays as it is, and
a passage without edges is never read.

A fusion reader (`nn/fusion_reader.py`) leaves tokens for the decoder besides: it is used where the
budget of a question or, if that has no say, `decode.passages` asks for such tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from skipqa.backbones.backbone import Backbone
from skipqa.config import FuseConfig
from skipqa.errors import UserError
from skipqa.nn import fusion as network
from skipqa.nn import fusion_reader as reading
from skipqa.nn.fusion import BipartiteFusion
from skipqa.nn.fusion_reader import (
    LONGEST_READ,
    SURE_OF,
    Asked,
    FusionReader,
    LocalTokens,
    Offered,
    PassageWords,
    retrieved_logs,
)
from skipqa.nn.grounding import places
from skipqa.nn.reading_choice import WAYS
from skipqa.ops.bipartite_attention import (
    bipartite_attention,
    compatibility,
    passage_mass,
    select_edges,
)
from skipqa.stages.signals import by_kind
from skipqa.stages.stage import Parts, check_concepts, trained_concepts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Fused, KeptTokens, Question, ReadAs, Verified, reads_fused


class Fuser(Protocol):
    def __call__(
        self,
        kept: KeptTokens,
        question: Question,
        verified: Verified,
        edges_VK: Tensor | None = None,
    ) -> tuple[Fused, int]:
        """The kept tokens after reading the passages, and its FLOPs. Given edges, such as paths
        over several rounds, stand in for its own choice."""


class CosineFuser:
    """Training-free: the formula at the head of this file."""

    def __init__(self, config: FuseConfig) -> None:
        by_fraction = config.edges == "fraction"
        self.top = config.beta if by_fraction else None
        self.degree = None if by_fraction else config.degree

    def __call__(
        self,
        kept: KeptTokens,
        question: Question,
        verified: Verified,
        edges_VK: Tensor | None = None,
    ) -> tuple[Fused, int]:
        tokens_VD = kept.meaning
        states_ND, lengths = _words(tokens_VD, verified)
        asking_VD = tokens_VD + question.embedding
        flops = 0
        if edges_VK is None:
            scores_VK = compatibility(asking_VD, verified.embeddings, kind="cosine")
            scores_VK = scores_VK * torch.tensor(verified.scores)
            edges_VK = torch.zeros_like(scores_VK, dtype=torch.bool)
            for places in by_kind(verified.passages):
                chosen = select_edges(scores_VK[:, places], top=self.top, degree=self.degree)
                edges_VK[:, places] = chosen
            flops = 2 * scores_VK.numel() * tokens_VD.shape[1]
        heads_VHD, states_NHD = asking_VD[:, None, :], states_ND[:, None, :]
        attended = bipartite_attention(heads_VHD, states_NHD, states_NHD, edges_VK, lengths)
        fused_VD = tokens_VD + attended[:, 0]
        mass_VK = passage_mass(heads_VHD, states_NHD, edges_VK, lengths)
        edge_words = int((edges_VK.sum(0) * torch.tensor(lengths, dtype=torch.long)).sum())
        flops += 6 * edge_words * tokens_VD.shape[1]
        return Fused(fused_VD, edges_VK, tuple(mass_VK.sum(0).tolist()), mass_VK), flops


class TrainedFuser:
    def __init__(self, layer: BipartiteFusion) -> None:
        self.layer = layer

    def __call__(
        self,
        kept: KeptTokens,
        question: Question,
        verified: Verified,
        edges_VK: Tensor | None = None,
    ) -> tuple[Fused, int]:
        tokens_VD = kept.meaning
        states_ND, lengths = _words(tokens_VD, verified)
        fused_VD, edges_VK, _ = self.layer(
            tokens_VD, states_ND, verified.embeddings, lengths, edges=edges_VK
        )
        mass_VK = self.layer.mass(tokens_VD, states_ND, edges_VK, lengths)
        config = self.layer.config
        flops = network.flops(config, edges_VK, lengths)
        flops += network.mass_flops(config, edges_VK, lengths)
        return Fused(fused_VD, edges_VK, tuple(mass_VK.sum(0).tolist()), mass_VK), flops


class ReadingFuser:
    """Local tokens read passages for the decoder; `meaning` stays as it is."""

    def __init__(self, reader: FusionReader, backbone: Backbone, *, lower_case: bool) -> None:
        self.reader, self.backbone, self.lower_case = reader, backbone, lower_case

    def __call__(
        self,
        kept: KeptTokens,
        question: Question,
        verified: Verified,
        edges_VK: Tensor | None = None,
    ) -> tuple[Fused, int]:
        local, order_V = local_tokens(kept, self.reader.config.concepts)
        believed_K = torch.tensor(verified.scores).clamp(*SURE_OF).logit()
        offered = Offered(
            verified.embeddings[None],
            believed_K[None],
            retrieved_logs([one.relative for one in verified.passages])[None],
            torch.ones(1, len(verified.passages), dtype=torch.bool),
        )
        given = None if edges_VK is None else edges_VK[order_V][None]
        asked, flops = self._asked(question)
        edges = self.reader.choose(local, asked, offered, given)
        words, more = self._words(verified, edges.open_BVK[0].any(0))
        read = self.reader.read(edges, words)
        flops += more
        flops += reading.flops(self.reader.config, edges.open_BVK[0], words.lengths_BK[0].tolist())
        edges_VK, mass_VK = (torch.empty_like(x[0]) for x in (edges.open_BVK, read.mass_BVK))
        edges_VK[order_V], mass_VK[order_V] = edges.open_BVK[0], read.mass_BVK[0]
        mass = tuple(mass_VK.sum(0).tolist())
        return Fused(kept.meaning, edges_VK, mass, mass_VK, read.tokens_BLD[0]), flops

    def _asked(self, question: Question) -> tuple[Asked, int]:
        found = self.backbone.decoder_words([question.text], self.reader.config.early_layers)
        lengths = torch.tensor([len(found.states[0])])
        return Asked(question.embedding[None], found.states[0][None], lengths), found.flops

    def _words(self, verified: Verified, read_K: Tensor) -> tuple[PassageWords, int]:
        """Of the passages with an edge, as the decoder has them; and the FLOPs of that."""
        places = read_K.nonzero()[:, 0].tolist()
        texts = [" ".join(verified.passages[j].text.split()) for j in places]
        if self.lower_case:
            texts = [text.lower() for text in texts]
        config = self.reader.config
        found = self.backbone.decoder_words(texts, config.early_layers, LONGEST_READ)
        none = torch.zeros(0, config.width)
        states, embeddings = [none] * len(read_K), [none] * len(read_K)
        for number, j in enumerate(places):
            states[j], embeddings[j] = found.states[number], found.embeddings[number]
        lengths = torch.tensor([[len(one) for one in states]], dtype=torch.long)
        if not states:
            nothing = torch.zeros(1, 0, 0, config.width)
            return PassageWords(nothing, nothing, lengths), found.flops
        states_BKTD, embeddings_BKTD = (
            pad_sequence(some, batch_first=True)[None] for some in (states, embeddings)
        )
        return PassageWords(states_BKTD, embeddings_BKTD, lengths), found.flops


class Fuse:
    def __init__(self, fuser: Fuser, chosen: Mapping[ReadAs, Fuser] = MappingProxyType({})) -> None:
        """`chosen`: those of the ways to read that a budget may choose."""
        self.fuser, self.chosen = fuser, chosen

    def fuser_of(self, state: State) -> Fuser:
        way = state.read_as
        return self.fuser if way is None else self.chosen[way]

    @torch.inference_mode()
    def __call__(self, state: State, record: StageRecord) -> State:
        fused, record.flops = self.fuser_of(state)(state.kept, state.question, state.verified)
        num_edges, (num_tokens, num_passages) = int(fused.edges.sum()), fused.edges.shape
        record.kept, record.dropped = num_edges, num_tokens * num_passages - num_edges
        record.why = f"{num_edges} of {num_tokens} x {num_passages} edges"
        return state.add(fused=fused)


def build(parts: Parts) -> Fuse:
    chosen = {way: build_fuser(parts, way) for way in ways_to_read(parts)}
    return Fuse(build_fuser(parts, way_as_set(parts)), chosen)


def way_as_set(parts: Parts) -> ReadAs:
    """How passages are read where the budget of a question has no say."""
    config, reader = parts.config.decode, parts.components.fusion_reader
    if config.passages != "auto":
        return config.passages
    return "fused+best" if reader is not None and config.prompt == "short" else "text"


def ways_to_read(parts: Parts) -> tuple[ReadAs, ...]:
    """Those that a budget may choose. A fusion reader of other concepts is refused only where one
    is asked for."""
    reader = parts.components.fusion_reader
    fuses = (
        reader is not None
        and parts.config.decode.prompt == "short"
        and reader.config.concepts == trained_concepts(parts.backbone)
    )
    return tuple(way for way in WAYS if fuses or not reads_fused(way))


def build_fuser(parts: Parts, way: ReadAs) -> Fuser:
    config, layer, reader = parts.config, parts.components.fusion, parts.components.fusion_reader
    if reads_fused(way):
        if reader is None:
            raise UserError(
                f"decode.passages = {way!r} needs fusion_reader.safetensors "
                f"among the components: train it (skipqa train stage3)"
            )
        check_concepts("fusion_reader", reader.config.concepts, parts.backbone)
        return ReadingFuser(reader, parts.backbone, lower_case=config.decode.lower_case)
    return CosineFuser(config.fuse) if layer is None else TrainedFuser(layer)


def local_tokens(kept: KeptTokens, concepts: int) -> tuple[LocalTokens, Tensor]:
    """The kept tokens of one image, the most salient first, and their order. Concepts that a
    library added to those that were trained on are known by their names alone."""
    saliency_V = kept.saliency[kept.positions]
    order_V = saliency_V.argsort(descending=True, stable=True)
    rows_V, tokens = kept.positions[order_V], kept.tokens
    local = LocalTokens(
        tokens.features[rows_V][None],
        tokens.concept_probs[rows_V, :concepts][None],
        tokens.meaning[rows_V][None],
        places(tokens.grid)[rows_V][None],
        saliency_V[order_V][None],
    )
    return local, order_V


def _words(tokens_VD: Tensor, verified: Verified) -> tuple[Tensor, list[int]]:
    """The states of all words of all passages, and how many each passage has."""
    lengths = [len(states) for states in verified.token_states]
    return torch.cat(verified.token_states) if lengths else tokens_VD[:0], lengths
