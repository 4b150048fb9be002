"""The paper's three filters: which of the written questions are kept.

Enters: a candidate, its image and what asks the endpoint. Leaves: a value for each filter, up to
the first that rejects it. (i) The answer stands verbatim in the passage. (ii) The image depicts the
entity: CLIP's similarity of the two where its weights are at hand, else the endpoint's own
probability, asked without the passage. (iii) The question is grammatical, by the endpoint: the
paper has a small classifier for it, which it does not name. Cheap filters come first.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from skipqa.errors import MissingExtra, UserError
from skipqa.prompted import parsing
from skipqa.prompted.asking import Asking, Prompt
from skipqa.prompted.images import as_picture
from skipqa.synthetic.config import SyntheticConfig
from skipqa.synthetic.writing import Candidate, depicted_prompt, grammatical_prompt

WRITTEN = "written"  # what rejects a reply in which no question or no answer can be read


class Filter(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def threshold(self) -> float:
        """What a value has to reach."""
        ...

    def __call__(self, candidate: Candidate, image: Image.Image, asking: Asking) -> float | None:
        """The value of a candidate; None where it cannot be told, which rejects it."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    values: dict[str, float | None]  # by filter, up to the one that rejected
    rejected_by: str | None  # the name of a filter, or `WRITTEN`

    @property
    def passed(self) -> bool:
        return self.rejected_by is None


def judge(
    filters: Sequence[Filter], candidate: Candidate, image: Image.Image, asking: Asking
) -> Verdict:
    if not candidate.question or not candidate.answer:
        return Verdict({}, WRITTEN)
    values: dict[str, float | None] = {}
    for one in filters:
        value = values[one.name] = one(candidate, image, asking)
        if value is None or value < one.threshold:
            return Verdict(values, one.name)
    return Verdict(values, None)


def all_three(config: SyntheticConfig, clip: Path | None = None) -> tuple[Filter, ...]:
    depicted: Filter = DepictedByEndpoint(config) if clip is None else DepictedByClip(clip, config)
    return (Verbatim(config.answer_words), GrammaticalByEndpoint(config), depicted)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """1 where the answer is of the length asked for and stands between word boundaries of the
    passage, in upper or lower case."""

    most_words: int
    name: str = "verbatim"
    threshold: float = 1.0

    def __call__(self, candidate: Candidate, image: Image.Image, asking: Asking) -> float:
        words = candidate.answer.split()
        if len(words) > self.most_words:
            return 0.0
        phrase = r"\s+".join(map(re.escape, words))
        text = candidate.pair.passage.text
        return float(bool(re.search(rf"(?<!\w){phrase}(?!\w)", text, re.IGNORECASE)))


@dataclass(frozen=True, slots=True)
class GrammaticalByEndpoint:
    config: SyntheticConfig
    name: str = "grammatical"

    @property
    def threshold(self) -> float:
        return self.config.grammatical

    def __call__(self, candidate: Candidate, image: Image.Image, asking: Asking) -> float | None:
        prompt = Prompt(grammatical_prompt(candidate.question))
        said = asking.ask("grammatical", prompt, self.config.max_tokens)
        return parsing.read_score(said.text, self.name)


@dataclass(frozen=True, slots=True)
class DepictedByEndpoint:
    config: SyntheticConfig
    name: str = "depicted"

    @property
    def threshold(self) -> float:
        return self.config.depicted

    def __call__(self, candidate: Candidate, image: Image.Image, asking: Asking) -> float | None:
        picture = as_picture(image, self.config.image_side)
        prompt = Prompt(depicted_prompt(candidate.pair.entity), picture)
        said = asking.ask("depicted", prompt, self.config.max_tokens)
        return parsing.read_score(said.text, self.name)


class DepictedByClip:
    """The cosine of CLIP's embeddings of the image and of "a photo of ENTITY", as in the paper.
    `folder` has a published CLIP: config, tokenizer and safetensors."""

    name = "depicted"

    def __init__(self, folder: Path, config: SyntheticConfig) -> None:
        try:
            from transformers import CLIPModel, CLIPProcessor
        except ImportError:
            raise MissingExtra("CLIP", "hub") from None
        try:
            local: dict[str, Any] = {"local_files_only": True}
            self.model = CLIPModel.from_pretrained(folder, use_safetensors=True, **local).eval()
            self.processor = CLIPProcessor.from_pretrained(folder, **local)
        except (OSError, ValueError) as error:
            reason = parsing.one_line(str(error))
            raise UserError(f"{folder} is no folder of a published CLIP: {reason}") from None
        self.threshold = config.clip_similarity
        self._running = threading.Lock()  # its networks use every core as it is

    def __call__(self, candidate: Candidate, image: Image.Image, asking: Asking) -> float:
        import torch

        inputs = self.processor(
            text=[f"a photo of {candidate.pair.entity}"],
            images=image,
            return_tensors="pt",
            truncation=True,
        )
        with self._running, torch.inference_mode():
            out = self.model(**inputs)
        return float(torch.cosine_similarity(out.image_embeds, out.text_embeds)[0])
