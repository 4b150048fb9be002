"""What questions are about, learned from Pocket-KB: the concept that each of its pictures shows.

Enters: its training questions with the names of what they ask about, the published text encoder
and the vision tower's classes. Leaves: an `Expectation`. Each question is asked in other words
too. Questions about a whole scene are about nothing in particular, and teach that. A tenth of the
entities is held out, and is not taught as wrong either; of these, words that nothing is taught in
are measured.
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
from skipqa.training.loop import Phase, batches, fit
from skipqa.training.retrieval import paraphrases
from skipqa.training.run import Run
from skipqa.training.stage1.mixture import KINDS
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
    unseen: Tensor  # [Q]: in words that nothing is taught in, all of them held out


def read(
    pocket_kb: Path,
    classes: Sequence[Sequence[str]],
    text: Bert,
    tokenizer: Tokenizer,
    reworded: int,
    seed: int,
) -> Asked:
    """`classes` are what a picture may show beside Pocket-KB's own, each with its names."""
    path = pocket_kb / "train.jsonl"
    fields = {"question": str, "name": str, "entity": str, "category": str, "relation": str}
    written = check_rows(str(path), read_jsonl(path), fields)
    asked = [one for row in written for one in _wordings(row, reworded, seed)]
    rows, questions, never_taught = zip(*asked, strict=True)
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
        unseen=torch.tensor(never_taught),
    )


def _wordings(
    row: dict[str, Any], reworded: int, seed: int
) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """The row, its question in each of its wordings, and whether nothing is taught in that."""
    question, relation, category = row["question"], row["relation"], row["category"]
    random = Random(f"{seed} {row['entity']} {question}")
    yield row, question, False
    for _ in range(reworded):
        if category == SCENE and random.random() < 0.5:
            yield row, random.choice(paraphrases.table()["taught"]["scenes"]), False
        else:
            yield row, paraphrases.taught(question, relation, category, random), False
    if is_id_held_out(row["entity"]):
        others = paraphrases.unseen(question, relation, category)
        others += paraphrases.table()["unseen"]["scenes"] if category == SCENE else []
        if others:
            yield row, random.choice(others), True


def _said(row: dict[str, Any]) -> str:
    """As the tagger says it of a picture; nothing of a scene."""
    if row["category"] == SCENE:
        return ""
    return said_of_a_picture(row["name"].lower(), KINDS.get(row["category"], ""))


def train(
    asked: Asked, settings: ConceptPriorTraining, run: Run
) -> tuple[ConceptPriorHead, dict[str, float]]:
    torch.manual_seed(run.seed)
    module = ConceptPriorHead(ConceptPriorConfig(width=asked.questions.shape[1]))
    taught = (~asked.held_out).nonzero()[:, 0]
    unknown_C = asked.about[asked.held_out].any(0) & ~asked.about[taught].any(0)
    concepts, about = asked.concepts[~unknown_C], asked.about[:, ~unknown_C]
    at = batches([taught], min(settings.batch, len(taught)), run.seed)

    def loss(step: int) -> Tensor:
        rows = at(step)
        log_prob = module(asked.questions[rows], concepts).log_softmax(-1)
        targets = about[rows]
        targets = torch.where(targets.any(1, keepdim=True), targets, True).float()
        return -(log_prob * targets).sum(1).div(targets.sum(1)).mean()

    phase = Phase(settings.steps, settings.lr, warmup=settings.steps // 10)
    module = fit(PART, module, loss, phase, run)
    return module, measure(module, asked)


@torch.no_grad()
def measure(module: ConceptPriorHead, asked: Asked) -> dict[str, float]:
    """Nats by which held-out entities are likelier than by chance, and the factor by which the
    concept that a question about a scene lets expect most is."""
    fraction = module(asked.questions, asked.concepts).softmax(-1) * len(asked.concepts)
    scene, found = ~asked.about.any(1), {}
    for words, these in (("", ~asked.unseen), (", unseen words", asked.unseen)):
        chosen = asked.held_out & ~scene & these
        right = (fraction[chosen] * asked.about[chosen]).amax(1).log()
        found[f"nats{words}"] = float(right.mean())
        found[f"most for a scene{words}"] = float(fraction[scene & these].amax(1).mean())
    return found
