"""The settings of prompted mode. No I/O; `skipqa.config.override` changes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from skipqa.config import Between, Count, Fraction, NonNegative, Weight

Method = Literal["skip", "pica", "promptcap"]
Seconds = Annotated[float, Between(0.001, 3_600.0)]


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    timeout: Seconds = 120.0  # of one attempt, from connecting to the last byte
    attempts: Annotated[int, Between(1, 20)] = 5  # of one call, the first included
    # Before the second attempt, doubled before each further one up to the longest. A server that
    # asks for a longer pause than that is not asked again.
    shortest_pause: Seconds = 0.5
    longest_pause: Seconds = 60.0
    concurrency: Annotated[int, Between(1, 256)] = 4  # calls in flight at most
    temperature: Annotated[float, Between(0.0, 2.0)] = 0.0
    send_temperature: bool = True  # some models take none but their own
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"


@dataclass(frozen=True, slots=True)
class LevelBudget:
    regions: Annotated[int, Between(1, 16)]  # R, each with one query
    passages: Annotated[int, Between(1, 64)]  # K', judged in one call


@dataclass(frozen=True, slots=True)
class PromptedConfig:
    method: Method = "skip"
    fast_path: bool = True  # the draft answers what the model calls EASY
    medium: LevelBudget = LevelBudget(regions=2, passages=4)
    hard: LevelBudget = LevelBudget(regions=4, passages=8)
    # One call per region with the region cut out, or one call for all with the whole image
    queries: Literal["each", "together"] = "each"
    query_words: Annotated[int, Between(1, 100)] = 15
    per_query: Count = 8  # passages that a query may find in each index
    question_weight: Weight = 0.3  # of the question's words next to a query's
    index_sharpness: Fraction = 0.5  # as in `RetrieveConfig`, and the next one
    general_weight: Fraction = 0.75
    excerpt_words: NonNegative = 80  # read of a long passage; 0: all of it
    threshold: Fraction = 0.5  # tau_nu: passages judged less relevant are dropped
    image_side: Annotated[int, Between(64, 8_192)] = 1_024  # pixels; larger images are reduced
    crop_margin: Annotated[float, Between(1.0, 4.0)] = 1.2  # side of a crop to its region's
    smallest_crop: Fraction = 0.15  # side of a crop as a fraction of the image's
    max_tokens: Count = 512  # of a reply
    answer_tokens: Count = 1_024  # of the answer with its reasoning
    # The baselines: worked examples in the prompt, and who describes the image to PICa
    examples: NonNegative = 8
    captions: Literal["given", "endpoint"] = "given"
    caption_words: Count = 120
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
