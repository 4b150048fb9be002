"""The settings of synthetic data. No I/O; `skipqa.config.override` changes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from skipqa.config import Between, Count, Fraction
from skipqa.prompted.config import EndpointConfig


@dataclass(frozen=True, slots=True)
class SyntheticConfig:
    pairs: Count = 4  # of a photo: entities and passages about them, at most
    answer_words: Annotated[int, Between(1, 50)] = 5
    # Filter (ii): what CLIP's cosine has to exceed, as in the paper, or the model's own probability
    clip_similarity: Annotated[float, Between(-1.0, 1.0)] = 0.28
    depicted: Fraction = 0.5
    grammatical: Fraction = 0.5  # filter (iii)
    image_side: Annotated[int, Between(64, 8_192)] = 1_024  # pixels; larger images are reduced
    max_tokens: Count = 256  # of a reply
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
