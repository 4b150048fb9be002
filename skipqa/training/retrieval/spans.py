"""Which words stand for the thing: spans of questions, and the head that finds them.

Enters: OK-VQA's annotated spans, the references of Pocket-KB's crowded pictures and paraphrases,
FVQA's "which object in this image", and the published text encoder. Leaves: a `SpanHead`. Questions
about a whole scene have no such words. A tenth of the photos is held out, of Pocket-KB a tenth of
the entities.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from skipqa.backbones.networks.bert import Bert
from skipqa.config import Count, Weight
from skipqa.data.crowds import CARDS
from skipqa.data.held_out import is_held_out, is_id_held_out, photos_of_val, unseen_entities
from skipqa.data.pocket_kb.facts import templates
from skipqa.data.pocket_kb.references import NOUNS
from skipqa.files import Fields, check_rows, read_jsonl
from skipqa.nn.span import SpanConfig, SpanHead, best_run
from skipqa.training.loop import Optimisation, batches, fit
from skipqa.training.objects import read_objects
from skipqa.training.retrieval import paraphrases
from skipqa.training.retrieval.about import SCENE, TRAIN
from skipqa.training.run import Run

PART = "span"
COUNTRY = "country"
OKVQA, FVQA, POCKET_KB, SCENES = SOURCES = ("okvqa", "fvqa", "pocket-kb", "scenes")
THING_IN_IMAGE = re.compile(
    r"\b(?:which|what|the|this|that|an|any)? ?(?:object|thing|item|animal|device|vehicle|food|"
    r"place|person|fruit|vegetable|furniture|instrument)s? (?:shown |seen |present )?(?:in|on|of) "
    r"(?:this|the) (?:image|picture|photo|scene)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SpanTraining:
    steps: Count = 1_000
    batch: Count = 128
    lr: Weight = 1e-2
    most: Count = 4_000  # questions of Pocket-KB, and of scenes
    okvqa_times: Count = 4  # how often a question is repeated per epoch


@dataclass(frozen=True, slots=True)
class Spanned:
    text: str
    span: tuple[int, int] | None  # characters
    source: str
    held_out: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of Q questions, one after another."""

    states: Tensor  # [tokens, D]
    inside: Tensor  # [tokens] bool
    question: Tensor  # [tokens] which they are of
    source: Tensor  # [Q]
    held_out: Tensor  # [Q]


def read(data: Path | None, pocket_kb: Path | None, most: int, seed: int) -> list[Spanned]:
    found: list[Spanned] = []
    if data is not None:
        left_out = photos_of_val(pocket_kb)["coco"]
        found += from_okvqa(data / "okvqa", left_out)
        found += from_fvqa(data / "fvqa", left_out)
    if pocket_kb is not None:
        own = list(from_pocket_kb(pocket_kb, seed))
        for source in (POCKET_KB, SCENES):
            some = [one for one in own if one.source == source]
            found += some[:: max(1, len(some) // most)][:most]
    return found


def from_okvqa(folder: Path, left_out: frozenset[str]) -> Iterator[Spanned]:
    path, thing_of = folder / TRAIN, read_objects(folder)
    if not thing_of:
        return
    fields: Fields = {"question_id": (int, str), "image": str, "question": str}
    for row in check_rows(str(path), read_jsonl(path), fields):
        thing = thing_of.get(str(row["question_id"]))
        words = thing.span.strip(" ?.,").lower() if thing else ""
        place = find(words, row["question"])
        if place is not None and row["image"] not in left_out:
            yield Spanned(row["question"], place, OKVQA, is_held_out(row["image"]))


def from_fvqa(folder: Path, left_out: frozenset[str]) -> Iterator[Spanned]:
    path = folder / TRAIN
    if not path.is_file():
        return
    for row in check_rows(str(path), read_jsonl(path), {"image": str, "question": str}):
        match = THING_IN_IMAGE.search(row["question"])
        if match and row["image"] not in left_out:
            yield Spanned(row["question"], match.span(), FVQA, is_held_out(row["image"]))


def from_pocket_kb(folder: Path, seed: int) -> Iterator[Spanned]:
    """Of crowded pictures as they are asked, of others a paraphrase."""
    path, unseen = folder / TRAIN, unseen_entities(folder)
    fields = {"question": str, "entity": str, "category": str, "relation": str}
    for row in check_rows(str(path), read_jsonl(path), fields):
        if row["entity"] in unseen:
            continue
        held_out = is_id_held_out(row["entity"])
        if row["category"] == SCENE:
            yield Spanned(row["question"], None, SCENES, held_out)
        elif row.get("things"):
            phrases = (find(one, row["question"]) for one in crowded_references(row["category"]))
            if found := max(filter(None, phrases), key=_length, default=None):
                yield Spanned(row["question"], found, POCKET_KB, held_out)
        elif reworded := _reworded(row, seed):
            yield Spanned(*reworded, POCKET_KB, held_out)


def _reworded(row: dict[str, Any], seed: int) -> tuple[str, tuple[int, int]] | None:
    """A paraphrase, and where it refers to the thing."""
    question, relation, category = row["question"], row["relation"], row["category"]
    meaning = paraphrases.understand(question, relation, category)
    if meaning is None:
        return None
    random = Random(f"{seed} span {row['entity']} {question}")
    wording = random.choice(paraphrases.wordings("train", relation, category))
    text = paraphrases.say(wording, meaning, "train", random)
    blanks = {"noun": paraphrases.PLAIN.get(category, category), **dict(meaning.blanks)}
    known = paraphrases.references("train", dataclasses.replace(meaning, known_by=""))
    if category == COUNTRY:  # the thing is the country; elsewhere it only comes from one
        known += (one for one in paraphrases.references("train", meaning) if "{it}" not in one)
    places = (find(one.format(**blanks), text) for one in known)
    found = max(filter(None, places), key=_length, default=None)
    return None if found is None else (text, found)


def find(words: str, text: str) -> tuple[int, int] | None:
    """Where these words stand for the first time, as whole words."""
    match = re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE) if words else None
    return None if match is None else match.span()


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


@cache
def crowded_references(category: str) -> tuple[str, ...]:
    """Every phrase that a thing of this category is referred to by in a crowded picture."""
    known = templates()["crowded"]["references"]
    wordings = [*known["kind"]["train"], *known["colour"]["train"]]
    wordings += (one for by in ("place", "size") for some in known[by].values()
                 for one in some["train"])  # fmt: skip
    noun, nouns = NOUNS.get(category, (category, f"{category}s"))
    return tuple(
        dict.fromkeys(
            wording.format(noun=noun, nouns=nouns, colour=colour)
            for wording in wordings
            for colour in CARDS
        )
    )


@torch.no_grad()
def prepare(asked: Sequence[Spanned], text: Bert, tokenizer: Tokenizer) -> Tokens:
    device = text.segment.device
    states: list[Tensor] = []
    inside: list[bool] = []
    numbers: list[int] = []
    for start in range(0, len(asked), 256):
        some = asked[start : start + 256]
        encoded = tokenizer.encode_batch([one.text for one in some])
        ids = [torch.tensor(one.ids) for one in encoded]
        padded = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1).to(device)
        mask = padded >= 0
        states.append(text(padded.clamp(min=0), mask)[mask].float().cpu())
        for number, (one, tokens) in enumerate(zip(some, encoded, strict=True), start):
            first, end = one.span or (0, 0)
            inside += (first < to and at < end for at, to in tokens.offsets)
            numbers += [number] * len(tokens.ids)
    return Tokens(
        torch.cat(states),
        torch.tensor(inside),
        torch.tensor(numbers),
        torch.tensor([SOURCES.index(one.source) for one in asked]),
        torch.tensor([one.held_out for one in asked]),
    )


def train(
    tokens: Tokens, settings: SpanTraining, run: Run
) -> tuple[SpanHead, dict[str, dict[str, float]]]:
    torch.manual_seed(run.seed)
    module = SpanHead(SpanConfig(tokens.states.shape[1]))
    trained = ~tokens.held_out
    often = trained & (tokens.source == SOURCES.index(OKVQA))
    groups = [
        (trained & ~often).nonzero()[:, 0],
        often.nonzero()[:, 0].repeat(settings.okvqa_times),
    ]
    at = batches(groups, min(settings.batch, sum(map(len, groups))), run.seed)

    def loss(step: int) -> Tensor:
        chosen = torch.isin(tokens.question, at(step))
        return F.binary_cross_entropy_with_logits(
            module(tokens.states[chosen]), tokens.inside[chosen].float()
        )

    optimisation = Optimisation(settings.steps, settings.lr, warmup=settings.steps // 10)
    module = fit(PART, module, loss, optimisation, run)
    return module, measure(module, tokens)


@torch.no_grad()
def measure(module: SpanHead, tokens: Tokens) -> dict[str, dict[str, float]]:
    """Of held-out questions of each source: how often exactly the right tokens are found, and the
    F1 of tokens over all of them."""
    logits, found = module(tokens.states), {}
    for number, source in enumerate(SOURCES):
        exact, right, said, there = [], 0, 0, 0
        for question in (tokens.held_out & (tokens.source == number)).nonzero()[:, 0].tolist():
            own = tokens.question == question
            gold = set(tokens.inside[own].nonzero()[:, 0].tolist())
            run = best_run(logits[own].tolist())
            guess = set(range(*run)) if run else set()
            exact.append(guess == gold)
            right, said, there = right + len(gold & guess), said + len(guess), there + len(gold)
        if exact:
            found[source] = {"questions": len(exact), "exact": sum(exact) / len(exact)}
        if there:
            found[source]["f1"] = 2 * right / (said + there)
    return found
