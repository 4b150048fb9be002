"""The values that travel between stages: frozen, small, plain.

Shape letters used everywhere: V visual tokens, V' kept tokens, T question tokens,
R regions, K passages, d width, C visual concepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the command line and index tools use these types and must not wait
    import numpy as np
    import torch
    from numpy.typing import NDArray

Box = tuple[float, float, float, float]  # left, top, right, bottom, as fractions of the image
Route = Literal["draft", "full"]
DROPPED = -1  # in place of a grid position
Level = Literal["EASY", "MEDIUM", "HARD"]  # how deep the decoder is asked to reason
# How the decoder comes by the passages: the best few as text, as tokens that fusion left, as such
# tokens and the best one as text, or not at all
ReadAs = Literal["text", "fused", "fused+best", "none"]


def reads_fused(way: ReadAs) -> bool:
    """Tokens of a fusion reader, as a fact of the prompt."""
    return way.startswith("fused")


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Weights over the 30,522-term vocabulary: ascending unique `terms`, positive `weights`."""

    terms: NDArray[np.int32]
    weights: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.terms)


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk of a document. `id` is stable over rebuilds; `source` names the corpus."""

    id: str
    title: str
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that one query found: its row in the index and the inner product."""

    row: int
    score: float


@dataclass(frozen=True, slots=True)
class ConceptPrior:
    """Which concepts the question is about, known before the image is."""

    weights: torch.Tensor  # [C], the factor on each concept's evidence; 1 where nothing is known
    information: float  # KL divergence from the base rates, in nats: 0 where it is about anything


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    embedding: torch.Tensor  # [d_text], unit length: the mean-pooled question, q-bar
    words: tuple[str, ...]  # its content words, lower-cased
    states: torch.Tensor  # [T, d_text], one per token, compared with those of passages
    # [T, d_text] from the encoder that was fine-tuned with the drafter, if there is one
    drafter_states: torch.Tensor | None = None
    concept_prior: ConceptPrior | None = None  # None: not trained
    span: tuple[int, int] | None = None  # the characters that stand for the thing, where known
    # Those that stand for what a passage has to name first: "the country this breed comes from"
    nested: tuple[int, int] | None = None
    asks_for_text: bool = False  # in the image, which something can read
    asks_what_is_written: bool = False  # and for nothing else

    @property
    def thing(self) -> str:
        """As the question refers to it: "these animals"."""
        return "" if self.span is None else self.text[slice(*self.span)]

    def about(self, name: str) -> str:
        """The question with a name in place of what stands for the thing."""
        if self.span is None:
            return self.text
        return _with(self.text, self.span, name)

    @property
    def has_steps(self) -> bool:
        """Whether anything is left to ask once a passage has named the bridge: "What is the country
        of origin of this cat?" asks for the bridge itself."""
        if self.nested is None:
            return False
        around = _with(self.text, self.nested, " ").lower()
        return any(word in around for word in self.words)

    def asked_of(self, bridge: str) -> str:
        """The question about a bridge: its name in place of the words that stand for it or, where
        none do, the question as it is."""
        return self.text if self.nested is None else _with(self.text, self.nested, bridge)


def _with(text: str, place: tuple[int, int], name: str) -> str:
    return text[: place[0]] + name + text[place[1] :]


@dataclass(frozen=True, slots=True)
class SeenWords:
    """The whole image in a few words, the most probable first."""

    names: tuple[str, ...]
    probs: torch.Tensor  # [W] in [0, 1]
    embeddings: torch.Tensor  # [W, d_text]


@dataclass(frozen=True, slots=True)
class VisualTokens:
    """The image as V tokens on a square grid, row-major from the top left."""

    features: torch.Tensor  # [V, d_vision]
    concept_probs: torch.Tensor  # [V, C], each row a distribution over visual concepts
    meaning: torch.Tensor  # [V, d_text], the expected embedding of a token's concepts
    overview: torch.Tensor  # [C], the concept probabilities of the whole image
    grid: int  # V = grid * grid
    # [N, d_vision], the features of the low-resolution view, for a drafter trained on them
    drafter_features: torch.Tensor | None = None
    words: SeenWords | None = None  # None: no tagger was trained

    def __len__(self) -> int:
        return self.features.shape[0]


@dataclass(frozen=True, slots=True)
class Widths:
    """The sizes that a trained component has to fit."""

    tokens: int  # V
    low_res: int  # tokens of the low-resolution view, which the drafter reads
    vision: int  # of a visual token's features
    text: int  # of its meaning, of questions and of passages
    decoder: int


@dataclass(frozen=True, slots=True)
class Draft:
    answer: str
    confidence: float
    reason: str
    # (answer, log-probability) of the best few, for the decoder to score; none if untrained
    candidates: tuple[tuple[str, float], ...] = ()
    # All that could have been drafted, with the log-frequency of each among training answers
    vocabulary: Mapping[str, float] = field(default_factory=dict)
    accepted: bool = False  # confident enough to be the answer
    abstain_prob: float = 0.0  # that the answer needs retrieval

    def log_frequency(self, answer: str) -> float:
        """That of the rarest for an answer outside the vocabulary."""
        known = self.vocabulary
        return known[answer] if answer in known else min(known.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class Budget:
    tokens: int  # V'
    passages: int  # K'
    difficulty: float | None = None  # None where nothing estimates it
    level: Level = "MEDIUM"
    rho_r: float = 1.0  # verification keeps at most this fraction of what was retrieved
    high_res: bool = True  # whether the image is also encoded at the finer scales
    expected_gain: float | None = None  # in score, of looking up; None where nothing predicts it
    skipped_indexes: tuple[str, ...] = ()  # names of those that are not searched
    rounds: int = 1  # H: of retrieval, at most
    read_as: ReadAs | None = None  # None: as is set for all questions (`decode.passages`)

    def looks_like(self, other: Budget) -> bool:
        """Whether the same is seen of the image on either: small things are looked at more closely
        only to be looked up."""
        closed, others = self.passages == 0, other.passages == 0
        return (self.tokens, self.high_res, closed) == (other.tokens, other.high_res, others)

    def most_passages(self, num_retrieved: int) -> int:
        """At most K', and ceil(rho_r K) of the K retrieved (Algorithm 1)."""
        # The slack keeps a rho_r of 0.9 that float32 rounded up from keeping 10 of 10.
        return min(self.passages, math.ceil(self.rho_r * num_retrieved - 1e-4))


@dataclass(frozen=True, slots=True)
class KeptTokens:
    positions: torch.Tensor  # [V'] int64 into the grid, ascending
    saliency: torch.Tensor  # [V] the score of every token, kept or not
    tokens: VisualTokens  # all V; a stage reads only the rows at `positions`
    # [V] int64 where tokens were merged: for each grid position the kept one it went into; DROPPED
    # where it went into none
    merged_into: torch.Tensor | None = None
    # [V] in [0, 1], how much every token looks like text; None: the question asks for none
    text_likeness: torch.Tensor | None = None

    @property
    def meaning(self) -> torch.Tensor:
        """[V', d_text] of the kept tokens."""
        return self.tokens.meaning[self.positions]


@dataclass(frozen=True, slots=True)
class Prototypes:
    """What things look like that are known from labelled photos alone, by name."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]  # as a tagger's
    pooled_NE: torch.Tensor  # what a tagger reads, the mean over views of the photos
    meanings_Nd: torch.Tensor  # embeddings of the names
    encoder: str  # whose features these are

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class Region:
    box: Box
    members: tuple[int, ...]  # grid positions
    concepts: tuple[tuple[int, float], ...]  # (concept, probability), best first
    saliency: float


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text in the image."""

    text: str
    box: Box
    score: float  # the mean probability of its characters
    region: int | None = None  # the one it was read in


@dataclass(frozen=True, slots=True)
class ReadText:
    """What was read in the image, and in which parts of it anything was looked for."""

    lines: tuple[TextLine, ...] = ()  # crop by crop, each from the top
    crops: tuple[Box, ...] = ()

    def in_region(self, region: int) -> list[str]:
        return [line.text for line in self.lines if line.region == region]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a passage is from that no index of the library holds."""

    source: str  # as people know it: "wikidata"
    address: str  # of the thing there
    asked: str  # when, in UTC: "2026-11-18T02:40:00Z"


@dataclass(frozen=True, slots=True)
class RetrievedPassage:
    row: int  # in the library; -1 for a passage from elsewhere, which has an `origin`
    passage: Passage
    score: float  # the inner product
    region: int  # the region whose query scored it best
    relative: float  # to the best score, made comparable between indexes (knowledge/library.py)
    excerpt: str = ""  # what is read of a long passage; empty: all of it
    round: int = 1  # of retrieval
    origin: Origin | None = None  # None: an index of the library
    own: bool = False  # from somebody's own documents, not from general knowledge

    @property
    def text(self) -> str:
        """What the decoder reads."""
        return self.excerpt or self.passage.text


@dataclass(frozen=True, slots=True)
class Retrieved:
    passages: tuple[RetrievedPassage, ...]  # unique, best first, at most K'
    num_hits: int  # over all regions, before deduplication
    num_unique: int
    # That each region sent to the first index that was searched; none where they are dense
    queries: tuple[SparseVector, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Consulted:
    """What other sources were asked for, where the library lacks it (SKIP-ADR)."""

    names: tuple[str, ...] = ()  # that the question is about, or that its image may show
    unknown: tuple[str, ...] = ()  # of these, what the library has too few passages about
    told: tuple[RetrievedPassage, ...] = ()  # all that the sources said, best first
    late: tuple[str, ...] = ()  # names that a source had not answered for in time
    warnings: tuple[str, ...] = ()  # one line about each source that failed


@dataclass(frozen=True, slots=True)
class Verified:
    passages: tuple[RetrievedPassage, ...]  # kept, best verification score first in each round
    scores: tuple[float, ...]  # nu_j of each kept passage
    token_states: tuple[torch.Tensor, ...]  # [L_j, d_text] of each kept passage
    embeddings: torch.Tensor  # [K, d_text]
    rejected: tuple[tuple[RetrievedPassage, float], ...]
    # Of each state of each kept passage the characters of its text; none where not known
    characters: tuple[tuple[tuple[int, int], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Fused:
    tokens: torch.Tensor  # [V', d_text], a row without an edge is unchanged
    edges: torch.Tensor  # [V', K] bool
    mass: tuple[float, ...]  # attention each passage received, summed over tokens
    attention: torch.Tensor | None = None  # [V', K] the same by token; None where not measured
    # [L, d_decoder]: what a decoder reads as a fact of its prompt; None where no fusion reader
    # was trained
    for_decoder: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Bridge:
    """What a passage names and the next round asks about: "Hungary"."""

    name: str
    passage: int  # which of the verified passages names it
    prob: float


@dataclass(frozen=True, slots=True)
class Hop:
    """A further round of retrieval."""

    bridge: Bridge
    asked: str  # the question of this round
    found: tuple[str, ...]  # ids of the passages that it kept


@dataclass(frozen=True, slots=True)
class Decoded:
    """An answer and what is known about it; None where a reader does not measure it."""

    text: str
    log_prob: float | None = None  # of the text as the decoder's whole answer
    grounded: bool | None = None  # whether the passages made it likelier, or it is quoted from them
    # The probability that it is right, calibrated on held-out questions
    confidence: float | None = None
    written: bool = False  # it is text that was read in the image
    read: tuple[int, ...] = ()  # which verified passages the decoder read as text, best first
    prompt_tokens: int = 0  # that the decoder read


@dataclass(frozen=True, slots=True)
class Evidence:
    """A passage the answer rests on, its verification score and the region whose query found it."""

    id: str
    title: str
    text: str
    score: float
    region: int
    round: int = 1  # of retrieval
    origin: Origin | None = None  # where it is from, if not from an index of the library
