"""One dataclass per stage, and the presets that put them together. No I/O, no device queries.

Overrides come as TOML or nested dictionaries; a key that does not exist is an error.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from skipqa.errors import UserError, choices
from skipqa.types import ReadAs, reads_fused


class Between(NamedTuple):
    """What a setting may be, both ends included; of a tuple, what each of its values may be."""

    least: float
    most: float
    may_be_empty: bool = False


Count = Annotated[int, Between(1, 1_000_000)]
NonNegative = Annotated[int, Between(0, 1_000_000)]
Fraction = Annotated[float, Between(0.0, 1.0)]
Weight = Annotated[float, Between(0.0, 1_000.0)]
SignedWeight = Annotated[float, Between(-1_000.0, 1_000.0)]
Weights = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True, slots=True)
class EncodeConfig:
    # Image sizes in pixels: the first is the low resolution, all of them the high one. At 512 there
    # are 512 / 32 = 16 cells per side, one token each.
    scales: Annotated[tuple[int, ...], Between(32, 4_096)] = (256, 512)
    cell: Count = 32  # side in pixels, the vision encoder's stride
    # The fraction of a cell's evidence that is its own; the rest is that of the native-sized view
    # around it. Chosen by benchmarks/saliency_boxes.py.
    locality: Fraction = 0.5
    max_question_words: Count = 200
    max_question_characters: Count = 2_000

    @property
    def num_tokens(self) -> int:
        """V"""
        return (self.scales[-1] // self.cell) ** 2


@dataclass(frozen=True, slots=True)
class DraftConfig:
    threshold: Fraction = 0.82  # tau_SKV
    counting_threshold: Fraction = 0.91  # "how many…"
    # The least threshold where somebody's own documents could be searched instead: a drafter knows
    # nothing of what they say
    own_documents_threshold: Fraction = 0.82
    candidates: Count = 24  # of a trained drafter's answers, for the decoder to score
    # Look at the image next to the drafter, as the paper allows: the latency of drafting is hidden,
    # but a question that the drafter answers is paid for twice. What is retrieved waits for the
    # draft, which has a say in it. Off, as two cores have none to spare.
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    tokens: NonNegative = 0  # V'; 0: ceil(rho_v V)
    rho_v: Fraction = 0.11
    passages: NonNegative = 6  # K'
    rho_r: Fraction = 1.0  # verification keeps at most this fraction of what was retrieved
    max_passages: NonNegative = 16  # the most that a trained controller may allow
    # Difficulty below which nothing is retrieved (SKIP-NR; Table D.1 has 0.15), where no controller
    # was trained: the drafter's probability that the answer needs retrieval. At 0 all is looked up.
    easy: Fraction = 0.0
    # High resolution is for questions whose concept prior carries at least so many nats.
    min_information: Weight = 1.0
    # H, rounds of retrieval; 0: more than one where the question, read by a trained bridge, stands
    # on something that a passage has to name
    rounds: Annotated[int, Between(0, 3)] = 0

    def kept_tokens(self, num_tokens: int) -> int:
        """V' of V."""
        return min(self.tokens or math.ceil(self.rho_v * num_tokens), num_tokens)


@dataclass(frozen=True, slots=True)
class PruneConfig:
    overview_weight: Weight = 0.5  # how much a token gains by agreeing with the whole image


@dataclass(frozen=True, slots=True)
class RegionsConfig:
    tokens_per_region: Count = 4  # R = min(V' / 4, 8)
    max_regions: Count = 8
    iterations: Count = 8
    position_weight: Weight = 0.5  # of the distance on the grid, added to that in meaning
    concepts: Annotated[int, Between(1, 100)] = 5
    # What a region is: a cluster of tokens (variant A) or a box that MobileSAM draws (B)
    proposals: Literal["clusters", "boxes"] = "clusters"
    duplicate_overlap: Fraction = 0.7  # boxes with this IoU or more are one


@dataclass(frozen=True, slots=True)
class ZoomConfig:
    regions: NonNegative = 2  # at most, the most salient first
    min_information: Weight = 1.0  # of the concept prior, in nats
    sure: Fraction = 0.5  # posterior of one concept at which nothing is left open
    largest: Fraction = 0.5  # side of a region; larger ones were seen well at high resolution
    smallest: Fraction = 0.15  # side of a crop
    margin: Annotated[float, Between(1.0, 4.0)] = 1.1  # side of a crop relative to its region's


@dataclass(frozen=True, slots=True)
class ReadTextConfig:
    enabled: bool = True  # where the extra `ocr` is installed
    min_question_prob: Fraction = 0.5  # that the question needs text in the image
    min_likeness: Fraction = 0.5  # to text, of a kept token
    margin: Annotated[float, Between(0.0, 4.0)] = 0.5  # around tokens, in sides of a token
    min_score: Fraction = 0.5  # of a line: the mean probability of its characters


@dataclass(frozen=True, slots=True)
class RetrieveConfig:
    per_region: Count = 4  # k'
    definition_weight: Weight = 0.3  # of a concept's definition; its names have 1
    question_weight: Weight = 0.3  # of the question's terms; the region's concepts have 1
    text_weight: Weight = 2.0  # of a line that was read in the region
    # Of an answer that the drafter thinks of, times its probability: a passage that states it may
    # share no other word with the question
    draft_weight: Weight = 0.0
    excerpt_words: NonNegative = 40  # read of a long passage; 0: all of it
    # The power of a region's saliency, relative to the highest, that its scores are multiplied by;
    # at 0 all regions count alike
    region_sharpness: Weight = 0.0
    # How much the best score of an index counts against that of another: at 0 the best passages of
    # all indexes are equal, at 1 passages are ordered by score alone
    index_sharpness: Fraction = 0.5
    # How much general knowledge counts next to somebody's own documents, which they brought to be
    # read: every encyclopedia has something to say about anything. At 1 all indexes are equal
    general_weight: Fraction = 0.75


@dataclass(frozen=True, slots=True)
class ConsultConfig:
    """Without a source (`load(sources=…)`) none of this is used."""

    # A name that fewer passages are titled with is unknown: a definition or two says what a thing
    # is and little about it. Chosen by benchmarks/longtail.py on training rows.
    covered: NonNegative = 3
    names: NonNegative = 4  # that are asked for at most, the most probable first
    min_prob: Fraction = 0.1  # that a region shows a thing, for its name to count
    deadline_ms: NonNegative = 800  # for all sources together; what is late is for the next time


@dataclass(frozen=True, slots=True)
class VerifyConfig:
    threshold: Fraction = 0.5  # tau_nu
    # A fixed calibration of the text encoder's cosine, and the weight of the log-ratio of the
    # retrieval score to the best one
    slope: Weight = 12.0
    midpoint: Fraction = 0.35
    retrieval_weight: Weight = 2.0
    min_passages: NonNegative = 1  # fewer than this and rejected passages are recalled


@dataclass(frozen=True, slots=True)
class FuseConfig:
    # How many (token, passage) pairs stay edges: a fraction of all, or a mean number per token,
    # from which variant B's tau_e follows
    edges: Literal["fraction", "degree"] = "fraction"
    beta: Fraction = 0.10
    degree: Weight = 4.0


@dataclass(frozen=True, slots=True)
class HopConfig:
    passages: Count = 2  # K' of each further round
    bridge_weight: Weight = 1.0  # of the bridge's name in a query, next to the question's terms
    excerpt_words: NonNegative = 20  # read of a long passage; 0: all of it
    min_prob: Fraction = 0.3  # of a bridge that is asked about


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    # Worked examples and a quoted answer for a small decoder, prompt E.4 for a large one; a small
    # one that was trained to read needs neither, and one that follows instructions is asked for a
    # few words in a chat
    prompt: Literal["examples", "instructions", "short", "chat"] = "examples"
    # A few words, as benchmarks score them, or for people: a sentence or a quotation with the
    # numbers of the passages it rests on
    style: Literal["short", "sentence"] = "short"
    # A way for all questions. At "auto" a trained choice has its say for each; without one it is
    # fused tokens and the best passage, where there is a trained fusion reader and a short prompt,
    # else text
    passages: Literal["auto", ReadAs] = "auto"
    max_passages: NonNegative = 2  # in the prompt as text
    # A short prompt has its passages in lower case, as answers are that the reader was trained on:
    # so it can copy a name letter by letter
    lower_case: bool = False
    words: NonNegative = 10  # naming what the image shows, in a short prompt
    # Where the question is about one kind of thing, so many names of what the most salient region
    # shows come before them: otherwise another thing of that kind would be read about
    region_words: NonNegative = 0
    min_information: Weight = 1.0  # of the concept prior, in nats, for that
    min_prob: Fraction = 0.03  # of a word in the evidence, to be in the prompt
    # Which of several answers is given: these are the weights of what is added to the decoder's
    # log-probability. The drafter's log-probability, the log-frequency of the answer among training
    # answers, and 1 if the answer is the decoder's own
    drafter_weight: SignedWeight = 0.7
    frequency_weight: SignedWeight = 0.0
    own_weight: SignedWeight = 0.0
    # By how many nats passages must raise an answer's log-probability for it to rest on them
    grounded_gain: Weight = 2.0
    # How the decoder of `pocket` or `desk` keeps its matrices: in 8 bits it needs a quarter of the
    # memory and is faster on a CPU, and log-probabilities differ by a few tenths of a nat
    weights: Weights = "float32"
    passages_with_fused: bool = True  # also where a large decoder reads fused tokens
    max_new_tokens: Count = 32

    @property
    def reads_fused(self) -> bool:
        """Whether that is asked for, whatever was trained."""
        return self.passages != "auto" and reads_fused(self.passages)


Curve = Annotated[tuple[float, ...], Between(-1_000.0, 1_000.0, may_be_empty=True)]


@dataclass(frozen=True, slots=True)
class ConfidenceConfig:
    """Logistic curves: the bias, then one weight per feature of `confidence.py`; empty: unknown."""

    drafted: Curve = ()
    looked_up: Curve = ()


@dataclass(frozen=True, slots=True)
class Config:
    preset: str = "pocket"
    variant: Literal["A", "B"] = "A"  # of the components that are trained for it
    encode: EncodeConfig = field(default_factory=EncodeConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    prune: PruneConfig = field(default_factory=PruneConfig)
    regions: RegionsConfig = field(default_factory=RegionsConfig)
    zoom: ZoomConfig = field(default_factory=ZoomConfig)
    read_text: ReadTextConfig = field(default_factory=ReadTextConfig)
    retrieve: RetrieveConfig = field(default_factory=RetrieveConfig)
    consult: ConsultConfig = field(default_factory=ConsultConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    fuse: FuseConfig = field(default_factory=FuseConfig)
    hop: HopConfig = field(default_factory=HopConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    confidence: ConfidenceConfig = field(default_factory=ConfidenceConfig)


PRESETS = {
    "pocket": Config(),
    # The pocket with a language model of 1.5B parameters as its decoder
    "desk": Config(
        preset="desk",
        # Untrained, its own words are seldom those that people use: the drafter's are preferred
        decode=DecodeConfig(
            prompt="chat", weights="int8", max_passages=3, region_words=1, own_weight=-1.0
        ),
    ),
    # The paper's main text. V = 576; other numbers are the defaults above: rho = 0.11, k' = 4,
    # beta = 0.10, tau_SKV = 0.82.
    "submission-7b": Config(
        preset="submission-7b",
        encode=EncodeConfig(scales=(336,), cell=14),
        decode=DecodeConfig(prompt="instructions", max_passages=6, max_new_tokens=256),
    ),
    # Its appendix, table D.1; what the controller may choose is in `nn/budget.py`.
    "ablation-13b": Config(
        preset="ablation-13b",
        variant="B",
        encode=EncodeConfig(scales=(336,), cell=14),
        budget=BudgetConfig(tokens=0, rho_v=0.40, passages=16, rho_r=0.60),
        regions=RegionsConfig(proposals="boxes"),
        retrieve=RetrieveConfig(per_region=3),  # k_r
        fuse=FuseConfig(edges="degree"),
        decode=DecodeConfig(
            prompt="instructions",
            max_passages=10,
            passages_with_fused=False,  # algorithm 1: the decoder reads fused tokens alone
            max_new_tokens=256,
        ),
    ),
}


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> Config:
    if name not in PRESETS:
        raise UserError(f"no preset {name!r}; there is {choices(name, PRESETS)}")
    config = override(PRESETS[name], overrides or {})
    if config.preset != name:
        raise UserError(f"a preset is chosen by its name: {name} cannot be set to be another")
    return config


def merged(settings: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested overrides, those `above` having the last word."""
    joined = dict(settings)
    for key, value in above.items():
        below = joined.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        joined[key] = merged(below, value) if nested else value  # type: ignore[arg-type]
    return joined


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Overrides from `stage.name=value`, the value written as in TOML or as a bare word."""
    document = ""
    for pair in pairs:
        name, equals, value = pair.partition("=")
        written = value if _is_toml(f"value = {value}") else json.dumps(value.strip())
        document += f"{name} = {written}\n"
        if not equals or not _is_toml(document):
            raise UserError(f"cannot read {pair!r}: a setting is stage.name=value, each once")
    return tomllib.loads(document)


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


T = TypeVar("T")


def override(config: T, changes: Mapping[str, Any], where: str = "") -> T:
    """A copy of a config dataclass with some values replaced, nested ones by nested mappings."""
    assert dataclasses.is_dataclass(config)
    known = get_type_hints(type(config), include_extras=True)
    replaced = {}
    for key, value in changes.items():
        if key not in known:
            names = choices(key, sorted(known))
            raise UserError(f"unknown setting {where}{key}; known are {names}")
        old = getattr(config, key)
        if dataclasses.is_dataclass(old):
            if not isinstance(value, Mapping):
                raise UserError(f"{where}{key} is a group of settings, not {value!r}")
            value = override(old, value, f"{where}{key}.")
        elif isinstance(old, tuple) and isinstance(value, list):
            value = tuple(value)
        elif isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not dataclasses.is_dataclass(old) and type(value) is not type(old):
            raise UserError(f"{where}{key} takes a {type(old).__name__}, not {value!r}")
        _check(f"{where}{key}", value, known[key])
        replaced[key] = value
    return dataclasses.replace(config, **replaced)  # type: ignore[type-var]


def _check(name: str, value: Any, hint: Any) -> None:
    """Refuse what has the right type but cannot be: the field's own type says what can."""
    if get_origin(hint) is Literal and value not in (choices := get_args(hint)):
        raise UserError(f"{name} takes {' or '.join(choices)}, not {value!r}")
    if get_origin(hint) is not Annotated:
        return
    kind, (least, most, may_be_empty) = get_args(hint)
    values = value if isinstance(value, tuple) else (value,)
    of = get_args(kind)[0] if get_origin(kind) is tuple else kind
    filled = bool(values) or may_be_empty
    if not filled or not all(type(v) is of and least <= v <= most for v in values):
        raise UserError(f"{name} takes {least:,} to {most:,}, not {value!r}")
