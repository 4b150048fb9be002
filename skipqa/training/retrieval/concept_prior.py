"""The concept prior: which concepts a question is about, learned from Pocket-KB.

Enters: its training questions with the names of what they ask about, the published text encoder
and the vision encoder's classes. Leaves: a `ConceptPriorHead`. Each question is trained on in
several wordings. Questions about a whole scene have a uniform target. A tenth of the entities is
held out, and is no negative either; for these, held-out wordings are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from skipqa.backbones.networks.bert import Bert
from skipqa.config import Count, Weight
from skipqa.data.held_out import is_id_held_out
from skipqa.files import check_rows, read_jsonl
from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead
from skipqa.nn.tagger import said_of_a_picture
from skipqa.training.loop import Optimisation, batches, fit
from skipqa.training.retrieval import paraphrases
from skipqa.training.retrieval.queries import TRAIN
from skipqa.training.run import Run
from skipqa.training.stage1.pocket_kb import KINDS
from skipqa.training.stage1.words import embed

PART = "concept_prior"
SCENE = "scene"


@dataclass(frozen=True, slots=True)
class ConceptPriorTraining:
    steps: Count = 400
    batch: Count = 256
    lr: Weight = 3e-3
    reworded: Count = 2  # other wordings of each question


@dataclass(frozen=True, slots=True)
class Asked:
    """Q questions about C concepts."""

    questions: Tensor  # [Q, D]
    concepts: Tensor  # [C, D]
    about: Tensor  # [Q, C] bool: all that bear the name; none where a scene is asked about
    held_out: Tensor  # [Q]
    held_out_wording: Tensor  # [Q]: of held-out entities alone


def read(
    pocket_kb: Path,
    classes: Sequence[Sequence[str]],
    text: Bert,
    tokenizer: Tokenizer,
    reworded: int,
    seed: int,
) -> Asked:
    """`classes` are what an image may show besides Pocket-KB's own, each with its names."""
    path = pocket_kb / TRAIN
    fields = {"question": str, "name": str, "entity": str, "category": str, "relation": str}
    written = check_rows(str(path), read_jsonl(path), fields)
    asked = [one for row in written for one in _wordings(row, reworded, seed)]
    rows, questions, held_out_wording = zip(*asked, strict=True)
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
    by_length = sorted(set(questions), key=lambda text: (len(text), text))  # less is padded
    place_of = {text: place for place, text in enumerate(by_length)}
    embedded = embed(text, tokenizer, by_length).cpu()
    return Asked(
        questions=embedded[torch.tensor([place_of[question] for question in questions])],
        concepts=embed(text, tokenizer, [", ".join(one) for one in concepts]).cpu(),
        about=about,
        held_out=torch.tensor([is_id_held_out(row["entity"]) for row in rows]),
        held_out_wording=torch.tensor(held_out_wording),
    )


def _wordings(
    row: dict[str, Any], reworded: int, seed: int
) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """The row, its question in each of its wordings, and whether the wording is held out."""
    question, relation, category = row["question"], row["relation"], row["category"]
    random = Random(f"{seed} {row['entity']} {question}")
    yield row, question, False
    for _ in range(reworded):
        if category == SCENE and random.random() < 0.5:
            yield row, random.choice(paraphrases.table()["train"]["scenes"]), False
        else:
            yield row, paraphrases.train_wording(question, relation, category, random), False
    if is_id_held_out(row["entity"]):
        others = paraphrases.held_out_wordings(question, relation, category)
        others += paraphrases.table()["held_out"]["scenes"] if category == SCENE else []
        if others:
            yield row, random.choice(others), True


def _said(row: dict[str, Any]) -> str:
    """As the tagger names it; nothing for a scene."""
    if row["category"] == SCENE:
        return ""
    return said_of_a_picture(row["name"].lower(), KINDS.get(row["category"], ""))


def train(
    asked: Asked, settings: ConceptPriorTraining, run: Run
) -> tuple[ConceptPriorHead, dict[str, float]]:
    torch.manual_seed(run.seed)
    module = ConceptPriorHead(ConceptPriorConfig(width=asked.questions.shape[1]))
    train_rows = (~asked.held_out).nonzero()[:, 0]
    unknown_C = asked.about[asked.held_out].any(0) & ~asked.about[train_rows].any(0)
    concepts, about = asked.concepts[~unknown_C], asked.about[:, ~unknown_C]
    at = batches([train_rows], min(settings.batch, len(train_rows)), run.seed)

    def loss(step: int) -> Tensor:
        rows = at(step)
        log_prob = module(asked.questions[rows], concepts).log_softmax(-1)
        targets = about[rows]
        targets = torch.where(targets.any(1, keepdim=True), targets, True).float()
        return -(log_prob * targets).sum(1).div(targets.sum(1)).mean()

    optimisation = Optimisation(settings.steps, settings.lr, warmup=settings.steps // 10)
    module = fit(PART, module, loss, optimisation, run)
    return module, measure(module, asked)


@torch.no_grad()
def measure(module: ConceptPriorHead, asked: Asked) -> dict[str, float]:
    """The log-ratio of the probability of held-out entities to chance, in nats, and the largest
    ratio of any concept for a question about a scene."""
    ratio = module(asked.questions, asked.concepts).softmax(-1) * len(asked.concepts)
    scene, found = ~asked.about.any(1), {}
    for words, these in (
        ("", ~asked.held_out_wording),
        (", held-out wordings", asked.held_out_wording),
    ):
        chosen = asked.held_out & ~scene & these
        right = (ratio[chosen] * asked.about[chosen]).amax(1).log()
        found[f"information{words}"] = float(right.mean())
        found[f"most for a scene{words}"] = float(ratio[scene & these].amax(1).mean())
    return found
