"""How good a verifier is: its verdicts against the labels, and what reading its choice gains.

Enters: a verifier, its cases, the reader's gains. Leaves: F1, precision and recall over all
questions, by the data set of the question and by the index of the passage, next to the
training-free verdict; the threshold of the best F1; and how few passages may be kept. Nothing is
trained here.

Shape letters: n questions, K passages, P passages that are read at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from skipqa.config import preset
from skipqa.nn.verifier import Verifier
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.gains import LARGEST, AnswerScorer, Gains
from skipqa.training.pathway.verifier_cases import Cases
from skipqa.training.stage import Metrics

THRESHOLDS = tuple(n / 20 for n in range(4, 17))
POSITIVE = 0.5  # the least label of a passage that should be accepted


@torch.inference_mode()
def compare_verifiers(
    context: TrainingContext, verifier: Verifier, cases: Cases, rows: Sequence[int], tau_nu: float
) -> Metrics:
    """Trained, at tau_nu, and training-free, at the preset's own threshold, on the same passages:
    F1 of the verdict, and of the questions with an answering passage the fraction that has one
    among the two best, which are read."""
    untrained = preset(context.pipeline.config.preset).verify.threshold

    def compared(some: Sequence[int]) -> Metrics:
        here = torch.tensor(some)
        nu, known = cases.logits(verifier, here).sigmoid(), cases.known[here]
        return {
            "questions": len(some),
            "passages": int(known.sum()),
            "positive": float((cases.labels[here] > POSITIVE)[known].float().mean()),
            "trained": verifier_metrics(nu, cases, here, tau_nu),
            "training_free": verifier_metrics(cases.untrained[here], cases, here, untrained),
        }

    every = torch.tensor(rows)
    accepted = {
        "trained": cases.logits(verifier, every).sigmoid() >= tau_nu,
        "training_free": cases.untrained[every] >= untrained,
    }
    return {
        **compared(rows),
        "by_source": {name: compared(some) for name, some in by_source(context, rows).items()},
        "by_corpus": _by_corpus(context, cases, every, accepted),
    }


def by_source(context: TrainingContext, rows: Sequence[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i in rows:
        found.setdefault(context.records.about[i]["source"], []).append(i)
    return dict(sorted(found.items()))


def _by_corpus(
    context: TrainingContext, cases: Cases, rows: Tensor, accepted: Mapping[str, Tensor]
) -> Metrics:
    """Over the passages of each index of the library."""
    library, found = context.pipeline.library, context.records["passages"][rows]
    bases = torch.from_numpy(library.bases)
    corpus = torch.bucketize(found.long(), bases, right=True) - 1
    metrics: Metrics = {}
    for number, name in enumerate(library.names):
        here = cases.known[rows] & (corpus == number)
        right = cases.labels[rows] > POSITIVE
        metrics[name] = {
            "passages": int(here.sum()),
            "positive": int((right & here).sum()),
            **{how: _agreement(verdict, right, here) for how, verdict in accepted.items()},
        }
    return metrics


def verifier_metrics(nu: Tensor, cases: Cases, rows: Tensor, threshold: float) -> dict[str, float]:
    known, right = cases.known[rows], cases.labels[rows] > POSITIVE
    accepted = nu >= threshold
    best = nu.masked_fill(~cases.there[rows], -1.0).topk(2, dim=1).indices
    right_known = right & known
    read = right_known.gather(1, best).any(1)[right_known.any(1)]
    return {
        **_agreement(accepted, right, known),
        "f1_stating": _agreement(accepted, right | cases.stating[rows], known)["f1"],
        "read": float(read.float().mean()) if len(read) else 0.0,
    }


def _agreement(accepted: Tensor, right: Tensor, counted: Tensor) -> dict[str, float]:
    accepted, right = accepted & counted, right & counted
    both, given, expected = (int(x.sum()) for x in (accepted & right, accepted, right))
    return {
        "f1": 2 * both / max(1, given + expected),
        "precision": both / max(1, given),
        "recall": both / max(1, expected),
    }


@torch.inference_mode()
def best_threshold(verifier: Verifier, cases: Cases, rows: Sequence[int]) -> float:
    """The tau_nu of the best F1; of equals the one nearest to the paper's 0.5."""
    some = torch.tensor(rows)
    nu = cases.logits(verifier, some).sigmoid()
    return max(
        THRESHOLDS,
        key=lambda t: (round(verifier_metrics(nu, cases, some, t)["f1"], 3), -abs(t - 0.5)),
    )


@torch.inference_mode()
def compare_min_passages(
    context: TrainingContext, nu_NK: Tensor, gains: Gains, rows: Sequence[int], tau_nu: float
) -> Metrics:
    """The mean gain of reading what is kept, for each number of passages that must be kept, by
    source and over sources; `chosen` is the smallest number of the highest mean, or none where no
    gain was measured. Of more passages than are retrieved for an answer, or read, nothing counts.
    """
    config = context.pipeline.config
    most = config.decode.max_passages
    measured = [i for i in rows if bool(gains.known[i])]
    if not measured:
        return {"questions": 0, "chosen": None}
    there = context.records["passages"][measured, : config.budget.passages] >= 0
    nu = nu_NK[measured, : config.budget.passages].masked_fill(~there, -1.0)
    gain = gain_of_best(context, nu, gains, measured, most)
    accepted = (nu >= tau_nu).sum(1)
    place = {i: number for number, i in enumerate(measured)}
    table: dict[str, dict[str, Any]] = {}
    for least in range(most + 1):
        read = accepted.clamp(min=least).minimum(there.sum(1)).clamp(max=most)
        of_each = gain.gather(1, read[:, None])[:, 0]
        sources = {
            name: float(of_each[[place[i] for i in some]].mean())
            for name, some in by_source(context, measured).items()
        }
        table[str(least)] = {
            "gain": sum(sources.values()) / len(sources),
            "passages_read": float(read.float().mean()),
            "unread": float((read == 0).float().mean()),
            "by_source": sources,
        }
    chosen = max(table, key=lambda least: (round(table[least]["gain"], 3), -int(least)))
    return {"questions": len(measured), "chosen": int(chosen), "by_min_passages": table}


def gain_of_best(
    context: TrainingContext, nu: Tensor, gains: Gains, rows: Sequence[int], most: int
) -> Tensor:
    """[n, P + 1]: the clipped gain of reading none, the best, the best two …, by nu [n, K]. Of a
    question with fewer passages, the last columns mean nothing."""
    order = nu.argsort(dim=1, descending=True, stable=True)
    found = torch.zeros(len(rows), most + 1)
    alone = gains.passage[rows].nan_to_num(0.0)
    found[:, 1:2] = alone.gather(1, order[:, :1])
    scorer = AnswerScorer.of(context)
    counted = context.run.counted("reading the best passages")
    for count in range(2, most + 1):
        enough = [n for n in range(len(rows)) if int((nu[n] >= 0).sum()) >= count]
        if enough:
            readings = [(rows[n], tuple(order[n, :count].tolist())) for n in enough]
            together = scorer(readings, counted) - gains.unread[[rows[n] for n in enough]]
            found[enough, count] = together.clamp(-LARGEST, LARGEST)
    return found
