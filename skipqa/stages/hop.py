"""hop: ask again about what the passages name (SKIP-Iter).

Some questions stand on something that neither the image nor the question names: "the capital of the
country where this breed comes from". A passage of the round before names it, the bridge: a trained
pointer finds it there; untrained, it is the last capitalised words that are news. The question is
asked anew, with the bridge in place of the words that stand for it, and the region that found the
bridge's passage sends it as its query, with the bridge in place of what it shows. What that finds
has nothing to do with the image, so it is verified by the question alone. Then the tokens are fused
again, along paths: a token attends to a passage of a further round if and only if it has an edge to
the passage that led there.

With H = 1 the state leaves as it came. Rounds end where nothing in the question stands for a bridge
any more, unless H is fixed; where no passage names one; or where nothing new is found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.knowledge import Index
from skipqa.knowledge.text_query import TextQuery
from skipqa.language import content_words, words_of
from skipqa.nn import bridge as network
from skipqa.nn.bridge import BridgePointer
from skipqa.ops.bipartite_attention import path_edges
from skipqa.stages.decode import worth
from skipqa.stages.encode import build_nested
from skipqa.stages.fuse import build as build_fuse
from skipqa.stages.retrieve import Found, Retrieve, search_texts
from skipqa.stages.stage import Parts
from skipqa.stages.verify import QuestionVerifier, Verify
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Bridge, Hop, Question, Retrieved, Verified

_NAME = re.compile(r"[A-Z][\w'’-]*(?: (?:of |and |the )*[A-Z][\w'’-]*)*")


class BridgeFinder(Protocol):
    def __call__(self, state: State, places: Sequence[int]) -> tuple[Bridge | None, int]:
        """What one of the verified passages at these places names, best first; and the FLOPs."""


class CapitalisedFinder:
    """Training-free: of the best passage that has any, the last capitalised words that are neither
    in its title nor in the question."""

    def __call__(self, state: State, places: Sequence[int]) -> tuple[Bridge | None, int]:
        for place in places:
            found = state.verified.passages[place]
            name = capitalised(found.text, f"{state.text} {found.passage.title}")
            if name is not None:
                return Bridge(name, place, 1.0), 0
        return None, 0


def capitalised(text: str, known: str) -> str | None:
    """The last capitalised words of a text that share none with what is known."""
    before = set(words_of(known))
    names = [name for name in _NAME.findall(text) if before.isdisjoint(words_of(name))]
    return names[-1] if names else None


class TrainedFinder:
    """A span of a passage by its probability there times the passage's worth."""

    def __init__(self, pointer: BridgePointer, backbone: Backbone, min_prob: float) -> None:
        self.pointer, self.backbone, self.min_prob = pointer, backbone, min_prob

    def __call__(self, state: State, places: Sequence[int]) -> tuple[Bridge | None, int]:
        verified, worths = state.verified, worth(state.verified, state.fused)
        asked_d, flops = self._asked_for(state.question)
        bridges: list[Bridge] = []
        for place in places if verified.characters else ():
            states_Ld = verified.token_states[place]
            flops += network.flops(self.pointer.config, len(states_Ld))
            span = self.pointer.find(asked_d, states_Ld)
            if span is None or span.prob < self.min_prob:
                continue
            characters = verified.characters[place][span.first : span.end]
            name = verified.passages[place].text[characters[0][0] : characters[-1][1]]
            bridges.append(Bridge(name, place, span.prob))
        best = max(bridges, key=lambda one: one.prob * worths[one.passage], default=None)
        return best, flops

    def _asked_for(self, question: Question) -> tuple[Tensor, int]:
        """The embedding of the words that stand for the bridge, else of the question."""
        if question.nested is None:
            return question.embedding, 0
        encoded = self.backbone.encode_texts([question.text[slice(*question.nested)]])
        return encoded.embeddings[0], encoded.flops


@dataclass(frozen=True, slots=True)
class BridgeQuerier:
    """One query: the question asked anew and the name of the bridge."""

    bridge: str
    bridge_weight: float
    question_weight: float
    most: int

    def __call__(self, state: State, indexes: Sequence[Index]) -> Found:
        question = state.question
        query = TextQuery(
            question.text,
            " ".join(question.words),
            self.question_weight,
            ((self.bridge_weight, self.bridge),),
        )
        return search_texts([query], indexes, self.most)


class AskAgain:
    def __init__(self, parts: Parts, finder: BridgeFinder) -> None:
        self.parts, self.finder, self.config = parts, finder, parts.config.hop
        self.fixed = parts.config.budget.rounds > 0
        self.nested, self.fuse = build_nested(parts), build_fuse(parts)
        # What own documents name is as likely to be general knowledge
        self.retrieve_config = replace(
            parts.config.retrieve, excerpt_words=self.config.excerpt_words, general_weight=1.0
        )
        verifier = QuestionVerifier(parts.config.verify, parts.backbone)
        self.verify = Verify(parts.config.verify, verifier)

    @torch.inference_mode()
    def __call__(self, state: State, record: StageRecord) -> State:
        if state.budget.rounds == 1:
            record.why = "one round"
            return state
        hops: list[Hop] = []
        edges = [state.fused.edges]  # of the tokens to the first round, and from round to round
        found = 0  # by further rounds
        for number in range(2, state.budget.rounds + 1):
            if not state.question.has_steps and not self.fixed:
                break
            bridge, flops = self.finder(state, _places(state, number - 1))
            record.flops += flops
            if bridge is None:
                record.why = f"no passage of round {number - 1} names what to ask about"
                break
            asking = self._asked_anew(state, bridge, number, record)
            found += len(asking.retrieved.passages)
            if not asking.verified.passages:
                record.why = f"nothing new about {bridge.name!r}"
                break
            edges.append(_led_to(bridge, state, asking))
            state = self._joined(state, asking, edges, record)
            hops.append(Hop(bridge, asking.question.text, _ids(asking.verified)))
            record.why = f"round {number}: {asking.question.text!r}"
        if not hops:
            return state
        record.kept = sum(len(hop.found) for hop in hops)
        record.dropped = found - record.kept
        return state.add(hops=tuple(hops))

    def _asked_anew(self, state: State, bridge: Bridge, number: int, record: StageRecord) -> State:
        """The question about the bridge, and what is found and kept for it, without what was found
        before."""
        config, source = self.config, state.verified.passages[bridge.passage]
        question, flops = self._question(state.question.asked_of(bridge.name))
        asking = state.add(
            question=question,
            regions=(state.regions[source.region],),
            budget=replace(state.budget, passages=config.passages),
        )
        weight = self.parts.config.retrieve.question_weight
        querier = BridgeQuerier(bridge.name, config.bridge_weight, weight, config.passages)
        retrieve = Retrieve(querier, self.parts.library, self.retrieve_config)
        asking = retrieve(asking, retrieving := StageRecord("retrieve"))
        known = {passage.row for passage in state.retrieved.passages}
        new = tuple(
            replace(passage, region=source.region, round=number)
            for passage in asking.retrieved.passages
            if passage.row not in known
        )
        asking = asking.add(retrieved=replace(asking.retrieved, passages=new))
        asking = self.verify(asking, verifying := StageRecord("verify"))
        record.flops += flops + retrieving.flops + verifying.flops
        return asking

    def _question(self, text: str) -> tuple[Question, int]:
        encoded = self.parts.backbone.encode_texts([text])
        nested, flops = self.nested(encoded)
        question = Question(
            text, encoded.embeddings[0], content_words(text), encoded.states[0], nested=nested
        )
        return question, encoded.flops + flops

    def _joined(
        self, state: State, asking: State, edges: Sequence[Tensor], record: StageRecord
    ) -> State:
        """What all rounds so far found and kept, fused along the paths between them."""
        verified = _all_of(state.verified, asking.verified)
        fuser = self.fuse.fuser_of(state)
        fused, flops = fuser(state.kept, asking.question, verified, path_edges(*edges))
        record.flops += flops
        before, after = state.retrieved, asking.retrieved
        retrieved = Retrieved(
            before.passages + after.passages,
            before.num_hits + after.num_hits,
            before.num_unique + after.num_unique,
        )
        return state.add(
            question=asking.question, retrieved=retrieved, verified=verified, fused=fused
        )


def build(parts: Parts) -> AskAgain:
    pointer = parts.components.bridge
    if pointer is None:
        return AskAgain(parts, CapitalisedFinder())
    return AskAgain(parts, TrainedFinder(pointer, parts.backbone, parts.config.hop.min_prob))


def _places(state: State, number: int) -> list[int]:
    """Of the verified passages of one round that some token attends to, the best first."""
    verified, worths = state.verified, worth(state.verified, state.fused)
    places = [
        place
        for place, passage in enumerate(verified.passages)
        if passage.round == number and state.fused.mass[place] > 0
    ]
    return sorted(places, key=lambda place: -worths[place])


def _led_to(bridge: Bridge, before: State, after: State) -> Tensor:
    """[J, K]: edges from the passages of one round to those of the next, which all come from the
    one that names the bridge."""
    last = max(passage.round for passage in before.verified.passages)
    rounds = [passage.round for passage in before.verified.passages]
    edges_JK = torch.zeros(rounds.count(last), len(after.verified.passages), dtype=torch.bool)
    edges_JK[bridge.passage - rounds.index(last)] = True
    return edges_JK


def _all_of(before: Verified, after: Verified) -> Verified:
    return Verified(
        before.passages + after.passages,
        before.scores + after.scores,
        before.token_states + after.token_states,
        torch.cat((before.embeddings, after.embeddings)),
        before.rejected + after.rejected,
        before.characters + after.characters,
    )


def _ids(verified: Verified) -> tuple[str, ...]:
    return tuple(passage.passage.id for passage in verified.passages)
