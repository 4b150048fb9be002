"""What the verifier is trained on and compared by: its inputs for every question, and labels.

Enters: gathered records and the reader's gains. Leaves: `Cases`, the inputs of the verifier as the
stage itself computes them, and a label for every passage that can have one (`labelled`).

Shape letters: N questions, K passages, d text width, S signals.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skipqa.nn.verifier import Verifier
from skipqa.pipeline import Pipeline
from skipqa.stages.signals import SIGNALS, signals
from skipqa.stages.verify import SimilarityVerifier, mean_token
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.gains import Gains
from skipqa.training.pathway.records import Records

CASES = "cases"
HELPFUL = 2.0  # nats: a passage that gains so much is as good as one that is known to be gold


@dataclass(frozen=True, slots=True)
class Cases:
    """The inputs and labels of a verifier for every question, padded to K passages."""

    question: Tensor  # [N, d]
    visual: Tensor  # [N, d]
    passages: Tensor  # [N, K, d]
    signals: Tensor  # [N, K, S]
    there: Tensor  # [N, K] bool: a passage, not padding
    own: Tensor  # [N, K] bool: of somebody's own documents
    labels: Tensor  # [N, K] in [0, 1]
    known: Tensor  # [N, K] bool: a passage whose label counts
    stating: Tensor  # [N, K] bool: gold, or stating the answer about another object
    untrained: Tensor  # [N, K]: nu_j of the training-free stage

    def logits(self, verifier: Verifier, rows: Tensor) -> Tensor:
        inputs = (self.question, self.visual, self.passages, self.signals, self.there, self.own)
        return verifier(*(x[rows] for x in inputs))

    def with_gains(self, records: Records, gains: Gains) -> Cases:
        labels, known = labelled(records, gains)
        return replace(self, labels=labels, known=known)


def labelled(records: Records, gains: Gains) -> tuple[Tensor, Tensor]:
    """The labels [N, K], and whether each is known.

    A gold passage, by its id or because it states the fact behind the answer, has label 1. Another
    passage of a question that names its gold passages has 0; where it states the answer and gains
    more than `HELPFUL`, it may be right about the thing for another reason, and its label is
    unknown. Where gold passages are not named, the gain decides: 0 for none, 1 from `HELPFUL` on.
    If the gain was not measured, a passage is labelled by the fact alone, or else unknown.
    """
    gold, there = records["gold"], records["passages"] >= 0
    named = torch.tensor([bool(about["gold"]) for about in records.about])[:, None]
    has_fact = torch.tensor([about["fact"] is not None for about in records.about])[:, None]
    measured = ~gains.passage.isnan()
    gain = gains.passage.nan_to_num(0.0)
    by_gain = (gain / HELPFUL).clamp(0, 1).masked_fill(named, 0.0)
    doubtful = named & records["stated"] & (gain > HELPFUL)
    known = gold | (named & ~doubtful) | (~named & (measured | has_fact))
    return torch.where(gold, torch.ones(()), by_gain), known & there


def stating(records: Records) -> Tensor:
    """[N, K] bool: gold, or of the same relation as a gold one and stating the answer."""
    found = records["gold"].clone()
    for i, about in enumerate(records.about):
        asked = {_relation(id) for id in about["gold"]}
        for k, candidate in enumerate(records.candidates(i)):
            if bool(records["stated"][i, k]) and _relation(candidate.passage.id) in asked:
                found[i, k] = True
    return found


def _relation(passage_id: str) -> str:
    """Of "passages:dog:pug:origin" the origin; of WordNet's ids something that no other has."""
    return passage_id.rpartition(":")[2].partition("#")[0]


def cases_with_gains(context: TrainingContext, gains: Gains, compared: Collection[int]) -> Cases:
    """Collected once for all parts of a stage."""
    if CASES not in context.computed:
        context.computed[CASES] = collect_cases(context, compared)
    found: Cases = context.computed[CASES]
    return found.with_gains(context.records, gains)


def collect_cases(context: TrainingContext, compared: Collection[int] = ()) -> Cases:
    """Over all records, in their order, labelled by gold passages alone; of those `compared` also
    the training-free scores."""
    records = context.records
    num, most = records["passages"].shape
    width = records["question"].shape[1]
    all_signals, untrained = torch.zeros(num, most, SIGNALS), torch.zeros(num, most)
    visual, scored_rows = torch.zeros(num, width), set(compared)
    groups = [(False, sorted(set(range(num)) - scored_rows)), (True, sorted(scored_rows))]
    for scored, rows in groups:
        found = context.spread(_observe, rows, "reading records", scored)
        for i, (token, own_signals, scores) in zip(rows, found, strict=True):
            here = slice(len(own_signals))
            visual[i] = torch.tensor(token)
            all_signals[i, here] = torch.tensor(own_signals).view(-1, SIGNALS)
            if scored:
                untrained[i, here] = torch.tensor(scores)
    labels, known = labelled(records, Gains.unknown(records))
    return Cases(
        question=records["question"].float(),
        visual=visual,
        passages=records["read_as"].float(),
        signals=all_signals,
        there=records["passages"] >= 0,
        own=records.own,
        labels=labels,
        known=known,
        stating=stating(records),
        untrained=untrained,
    )


Observed = tuple[list[float], list[list[float]], list[float]]


@torch.no_grad()
def _observe(pipeline: Pipeline, records: Records, scored: bool) -> list[Observed]:
    """Of each question the mean kept token, the signals of its passages and, if `scored`, their
    training-free scores."""
    return [_observe_one(pipeline, records, i, scored) for i in range(len(records))]


def _observe_one(pipeline: Pipeline, records: Records, i: int, scored: bool) -> Observed:
    backbone = pipeline.backbone
    state = records.after_retrieve(i, len(backbone.concepts))
    visual, passages = mean_token(state.kept).tolist(), state.retrieved.passages
    if not passages:
        return visual, [], []
    embeddings, asked_of = (
        records[name][i, : len(passages)].float() for name in ("read_as", "asked_of")
    )
    of_passages = signals(state, embeddings, asked_of, backbone.concepts)
    nu: list[float] = []
    if scored:
        nu, _ = SimilarityVerifier(pipeline.config.verify, backbone).score(state, embeddings)
    return visual, of_passages.tolist(), nu
