"""The concept prior: which concepts a question is about.

Enters: questions with the names of what they ask about (`about.py`), the published text encoder,
and what an image may show: the vision encoder's classes and common things. Leaves: a
`ConceptPriorHead`. For questions about a whole scene the target is the base rates, which are
learned from all questions. What is held out is measured apart for every source; a held-out entity
is no negative either, and an unseen one is not in the table at all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from skipqa.backbones.concepts import Concept
from skipqa.backbones.networks.bert import Bert
from skipqa.config import Count, Weight
from skipqa.language import base_forms
from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead
from skipqa.training.loop import Optimisation, batches, fit
from skipqa.training.retrieval.about import FVQA, OKVQA, OPEN, POCKET_KB, SCENES, SOURCES, About
from skipqa.training.run import Run
from skipqa.training.stage1.words import embed

PART = "concept_prior"
STEP = 0.05  # nats between thresholds that are tried
NEARLY = 0.01  # of the difference of two fractions: as good as the best


@dataclass(frozen=True, slots=True)
class ConceptPriorTraining:
    steps: Count = 800
    batch: Count = 256
    lr: Weight = 3e-3
    reworded: Count = 2  # other wordings of each Pocket-KB question
    # How often a question is repeated per epoch: people's own questions are few
    okvqa_times: Count = 32
    fvqa_times: Count = 32
    scenes_times: Count = 8
    open_times: Count = 1


@dataclass(frozen=True, slots=True)
class Nameable:
    """A concept as the table of concepts embeds it, and all that people may call it."""

    said: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """Q questions about C concepts."""

    questions: Tensor  # [Q, D]
    concepts: Tensor  # [C, D]
    about: Tensor  # [Q, C] bool: all that bear the name; none where anything may be asked about
    source: Tensor  # [Q] of `SOURCES`
    held_out: Tensor  # [Q]
    held_out_wording: Tensor  # [Q]: of held-out entities alone

    def of(self, source: str) -> Tensor:
        return self.source == SOURCES.index(source)


def nameable(
    classes: Iterable[Concept],
    common: Iterable[Concept],
    asked: Iterable[About],
    unseen: frozenset[str],
) -> list[Nameable]:
    """The classes, common things and Pocket-KB's things, without those that bear an unseen name."""
    found = [Nameable(", ".join(one.names), one.names) for one in classes]
    found += (Nameable(one.name, one.names) for one in common)
    own = dict.fromkeys(one.name for one in asked if one.source == POCKET_KB)
    found += (Nameable(name, (name,)) for name in own)
    return [one for one in found if unseen.isdisjoint(name.lower() for name in one.names)]


def prepare(
    asked: Sequence[About], concepts: Sequence[Nameable], text: Bert, tokenizer: Tokenizer
) -> tuple[Asked, dict[str, int]]:
    """Questions and concepts as tensors; and of each source, how many questions were left out
    because their thing is no concept."""
    bearing: dict[str, list[int]] = {}
    for place, one in enumerate(concepts):
        for name in one.names:
            bearing.setdefault(name.lower(), []).append(place)
    places = [_places(one.name, bearing) for one in asked]
    left_out = Counter(o.source for o, p in zip(asked, places, strict=True) if o.name and not p)
    kept = [(o, p) for o, p in zip(asked, places, strict=True) if p or not o.name]
    about = torch.zeros(len(kept), len(concepts), dtype=torch.bool)
    for row, (_, some) in enumerate(kept):
        about[row, some] = True
    questions = [one.question for one, _ in kept]
    by_length = sorted(set(questions), key=lambda text: (len(text), text))  # less is padded
    place_of = {text: place for place, text in enumerate(by_length)}
    embedded = embed(text, tokenizer, by_length).cpu()
    return Asked(
        questions=embedded[torch.tensor([place_of[question] for question in questions])],
        concepts=embed(text, tokenizer, [one.said for one in concepts]).cpu(),
        about=about,
        source=torch.tensor([SOURCES.index(one.source) for one, _ in kept]),
        held_out=torch.tensor([one.held_out for one, _ in kept]),
        held_out_wording=torch.tensor([one.held_out_wording for one, _ in kept]),
    ), dict(left_out)


def _places(name: str, bearing: dict[str, list[int]]) -> list[int]:
    """The concepts of that name, in the singular where the plural is none."""
    return next((bearing[form] for form in _singular(name) if form in bearing), [])


def _singular(name: str) -> Iterator[str]:
    yield name
    before, _, last = name.rpartition(" ")
    for form in sorted(base_forms(last)):
        yield f"{before} {form}".lstrip()


def train(
    asked: Asked, settings: ConceptPriorTraining, run: Run
) -> tuple[ConceptPriorHead, dict[str, float]]:
    torch.manual_seed(run.seed)
    module = ConceptPriorHead(ConceptPriorConfig(width=asked.questions.shape[1]))
    times = {
        POCKET_KB: 1,
        OKVQA: settings.okvqa_times,
        FVQA: settings.fvqa_times,
        SCENES: settings.scenes_times,
        OPEN: settings.open_times,
    }
    rows = {source: (asked.of(source) & ~asked.held_out).nonzero()[:, 0] for source in SOURCES}
    groups = [some.repeat(times[source]) for source, some in rows.items()]
    known = asked.about[torch.cat(groups)].any(0)
    unknown_C = asked.about[asked.held_out & asked.of(POCKET_KB)].any(0) & ~known
    concepts, about = asked.concepts[~unknown_C], asked.about[:, ~unknown_C]
    at = batches(groups, min(settings.batch, sum(map(len, groups))), run.seed)

    def loss(step: int) -> Tensor:
        rows = at(step)
        log_prob = module(asked.questions[rows], concepts).log_softmax(-1)
        base = module.base_rates(concepts).log_softmax(-1)
        named = about[rows].float()
        particular = named.sum(1, keepdim=True)
        targets = torch.where(particular > 0, named / particular.clamp(min=1), base.exp().detach())
        return -(log_prob * targets).sum(1).mean() - (base * targets).sum(1).mean()

    optimisation = Optimisation(settings.steps, settings.lr, warmup=settings.steps // 10)
    module = fit(PART, module, loss, optimisation, run)
    return module, measure(module, asked)


@torch.no_grad()
def measure(module: ConceptPriorHead, asked: Asked) -> dict[str, float]:
    """Of held-out questions of each source, in nats: how much they tell about the concept, and the
    log-ratio to chance of the probability that the right one has."""
    found: dict[str, float] = {}
    base = module.base_rates(asked.concepts).log_softmax(-1)
    for source in SOURCES:
        for words, wording in (("", False), (", held-out wordings", True)):
            these = asked.held_out & asked.of(source) & (asked.held_out_wording == wording)
            if not these.any():
                continue
            log_prob = module(asked.questions[these], asked.concepts).log_softmax(-1)
            about = asked.about[these]
            found[f"information, {source}{words}"] = float(
                (log_prob.exp() * (log_prob - base)).sum(1).mean()
            )
            if about.any():
                right = log_prob.masked_fill(~about, -torch.inf).amax(1)
                found[f"right, {source}{words}"] = float(right.mean()) + math.log(len(base))
    return found


@torch.no_grad()
def min_information(module: ConceptPriorHead, asked: Asked) -> float | None:
    """How much a question has to tell about the concept for small things to matter, in nats: the
    threshold that best tells held-out questions of Pocket-KB, which are about one kind of thing,
    from those of all other sources, each of which counts the same; of those that are nearly as
    good the lowest. None where there is nothing to tell apart."""
    log_prob = module(asked.questions, asked.concepts).log_softmax(-1)
    base = module.base_rates(asked.concepts).log_softmax(-1)
    information = (log_prob.exp() * (log_prob - base)).sum(1)
    held_out = {source: information[asked.held_out & asked.of(source)] for source in SOURCES}
    particular = held_out.pop(POCKET_KB)
    others = [some for some in held_out.values() if len(some)]
    if not len(particular) or not others:
        return None

    def told_apart(threshold: float) -> float:
        taken = [float((some >= threshold).float().mean()) for some in others]
        return float((particular >= threshold).float().mean()) - sum(taken) / len(taken)

    tried = [round(STEP * n, 2) for n in range(int(float(information.max()) / STEP) + 1)]
    best = max(map(told_apart, tried))
    return next(threshold for threshold in tried if told_apart(threshold) >= best - NEARLY)
