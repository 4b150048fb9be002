"""What questions are about, learned from Pocket-KB: the concept that each of its pictures shows.

Enters: its training questions with the names of what they ask about, the published text encoder
and the vision tower's classes. Leaves: an `Expectation`. Questions about a whole scene are about
nothing in particular, and teach that. A tenth of the entities is held out, and is not taught as
wrong either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from skipqa.backbones.bert import Bert
from skipqa.config import Count, Weight
from skipqa.data.files import check_rows, read_jsonl
from skipqa.nn.expectation import Expectation, ExpectationConfig
from skipqa.training.loop import Phase, batches, fit
from skipqa.training.queries import is_held_out
from skipqa.training.run import Run
from skipqa.training.words import embed

PART = "expectation"


@dataclass(frozen=True, slots=True)
class ExpectationTraining:
    steps: Count = 400
    batch: Count = 256
    rate: Weight = 3e-3


@dataclass(frozen=True, slots=True)
class Asked:
    """Q questions about C concepts."""

    questions: Tensor  # [Q, D]
    concepts: Tensor  # [C, D]
    about: Tensor  # [Q, C] bool: all that bear the name; none where a scene is asked about
    held_out: Tensor  # [Q]


def read(
    pocket_kb: Path, classes: Sequence[Sequence[str]], text: Bert, tokenizer: Tokenizer
) -> Asked:
    """`classes` are what a picture may show beside Pocket-KB's own, each with its names."""
    path = pocket_kb / "train.jsonl"
    fields = {"question": str, "name": str, "entity": str, "category": str}
    rows = check_rows(str(path), read_jsonl(path), fields)
    names = [_said(row) for row in rows]
    concepts = [tuple(one) for one in classes]
    concepts += ((name,) for name in dict.fromkeys(names) if name)
    bearing: dict[str, list[int]] = {}
    for place, one in enumerate(concepts):
        for name in one:
            bearing.setdefault(name.lower(), []).append(place)
    about = torch.zeros(len(rows), len(concepts), dtype=torch.bool)
    for row, name in enumerate(names):
        about[row, bearing.get(name, [])] = True
    texts = tuple(dict.fromkeys(row["question"] for row in rows))
    embedded = dict(zip(texts, embed(text, tokenizer, texts), strict=True))
    return Asked(
        questions=torch.stack([embedded[row["question"]] for row in rows]),
        concepts=embed(text, tokenizer, [", ".join(one) for one in concepts]),
        about=about,
        held_out=torch.tensor([is_held_out(row["entity"]) for row in rows]),
    )


def _said(row: dict[str, Any]) -> str:
    """As the tagger says it of a picture; nothing of a scene."""
    if row["category"] == "scene":
        return ""
    name: str = row["name"].lower()
    return f"flag of {name}" if row["category"] == "country" else name


def train(
    asked: Asked, settings: ExpectationTraining, run: Run
) -> tuple[Expectation, dict[str, float]]:
    torch.manual_seed(run.seed)
    module = Expectation(ExpectationConfig(width=asked.questions.shape[1]))
    taught = (~asked.held_out).nonzero()[:, 0]
    unknown_C = asked.about[asked.held_out].any(0) & ~asked.about[taught].any(0)
    concepts, about = asked.concepts[~unknown_C], asked.about[:, ~unknown_C]
    at = batches([taught], min(settings.batch, len(taught)), run.seed)

    def loss(step: int) -> Tensor:
        rows = at(step)
        log_share = module(asked.questions[rows], concepts).log_softmax(-1)
        targets = about[rows]
        targets = torch.where(targets.any(1, keepdim=True), targets, True).float()
        return -(log_share * targets).sum(1).div(targets.sum(1)).mean()

    phase = Phase(settings.steps, settings.rate, warmup=settings.steps // 10)
    module = fit(PART, module, loss, phase, run)
    return module, measure(module, asked)


@torch.no_grad()
def measure(module: Expectation, asked: Asked) -> dict[str, float]:
    """Nats by which held-out entities are likelier than by chance, and the factor by which the
    concept that a question about a scene lets expect most is."""
    share = module(asked.questions, asked.concepts).softmax(-1) * len(asked.concepts)
    scene = ~asked.about.any(1)
    chosen = asked.held_out & ~scene
    right = (share[chosen] * asked.about[chosen]).amax(1).log()
    return {"nats": float(right.mean()), "most for a scene": float(share[scene].amax(1).mean())}
