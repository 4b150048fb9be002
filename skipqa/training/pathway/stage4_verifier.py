"""Stage IV: the verifier (SKV) learns which retrieved passages hold the answer.

Enters: gathered records. Leaves: a verifier, and how it compares with the training-free verdict on
held-out questions. The paper's label is the dense oracle's: how often the answer is right with
passage j alone, relative to all passages (eq. D.4). A reader is right about a passage that states
the answer and wrong about one that does not, so here a passage's label is whether it is gold; for
`oracle_questions` of the questions the reader itself is asked, passage by passage, and its verdict
replaces the label. A passage that states the answer about another object is no evidence; F1 with
those counted as positive is reported too. Questions without a gold passage are neither trained on
nor counted.

Shape letters: N questions, K passages, d text width, S signals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from skipqa.backbones.backbone import Decoding
from skipqa.config import Between, Count, Fraction, NonNegative, preset
from skipqa.nn.verifier import Verifier, VerifierConfig, distillation_loss
from skipqa.pipeline import Pipeline
from skipqa.stages.prompts import reading_prompt
from skipqa.stages.signals import SIGNALS, signals
from skipqa.stages.verify import SimilarityVerifier, mean_token
from skipqa.tasks.okvqa import normalise
from skipqa.training.loop import Decay, Loss, Optimisation
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records
from skipqa.training.pathway.stage import PathwayPart, PathwaySettings, PathwayStage
from skipqa.training.sampling import inverse_frequency
from skipqa.training.stage import Metrics

SPLITS = ("held-out", "val")  # the first decides, the other is reported
THRESHOLDS = tuple(n / 20 for n in range(4, 17))


@dataclass(frozen=True, slots=True)
class VerifierTraining:
    steps: Count = 1_500
    lr: Annotated[float, Between(1e-7, 1.0)] = 2e-3
    warmup: NonNegative = 100
    batch: Count = 64  # questions, of up to 16 passages each
    weight_decay: Decay = 0.05
    hidden: Count = 128
    rivals: NonNegative = 8
    dropout: Fraction = 0.3
    oracle_questions: NonNegative = 0


@dataclass(frozen=True, slots=True)
class Cases:
    """The inputs and labels of a verifier for every question, padded to K passages."""

    question: Tensor  # [N, d]
    visual: Tensor  # [N, d]
    passages: Tensor  # [N, K, d]
    signals: Tensor  # [N, K, S]
    there: Tensor  # [N, K] bool: a passage, not padding
    labels: Tensor  # [N, K] in [0, 1]
    stating: Tensor  # [N, K] bool: gold, or stating the answer about another object
    untrained: Tensor  # [N, K]: nu_j of the training-free stage

    def logits(self, verifier: Verifier, rows: Tensor) -> Tensor:
        inputs = (self.question, self.visual, self.passages, self.signals, self.there)
        return verifier(*(x[rows] for x in inputs))


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


def collect_cases(context: TrainingContext, compared: Collection[int] = ()) -> Cases:
    """Over all records, in their order; of those `compared` also the training-free scores."""
    records = context.records
    num, most = records["passages"].shape
    width = records["question"].shape[1]
    passages, all_signals = torch.zeros(num, most, width), torch.zeros(num, most, SIGNALS)
    visual, untrained = torch.zeros(num, width), torch.zeros(num, most)
    groups = [(False, [i for i in range(num) if i not in compared]), (True, sorted(compared))]
    for scored, rows in groups:
        found = context.spread(_observe, rows, "reading records", scored)
        for i, (token, own_signals, scores) in zip(rows, found, strict=True):
            here = slice(len(own_signals))
            visual[i] = torch.tensor(token)
            all_signals[i, here] = torch.tensor(own_signals).view(-1, SIGNALS)
            passages[i, here] = records.table.embeddings[records.places(i)]
            if scored:
                untrained[i, here] = torch.tensor(scores)
    return Cases(
        question=records["question"].float(),
        visual=visual,
        passages=passages,
        signals=all_signals,
        there=records["passages"] >= 0,
        labels=records["gold"].float(),
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
    embeddings = records.table.embeddings[records.places(i)]
    asked_of = records["asked_of"][i, : len(passages)].float()
    of_passages = signals(state, embeddings, asked_of, backbone.concepts)
    nu: list[float] = []
    if scored:
        nu, _ = SimilarityVerifier(pipeline.config.verify, backbone).score(state, embeddings)
    return visual, of_passages.tolist(), nu


@dataclass(frozen=True, slots=True)
class VerifierInputs:
    cases: Cases
    oracle: Metrics | None  # how far it agreed with the labels


class VerifierPart(PathwayPart[VerifierTraining, VerifierInputs, Verifier]):
    name = "verifier"

    def prepare(self, context: TrainingContext, settings: VerifierTraining) -> VerifierInputs:
        compared = {row for split in SPLITS for row in context.rows(split, gold=True)}
        cases = collect_cases(context, compared)
        train_rows = context.rows("train", gold=True)
        asked = min(settings.oracle_questions, len(train_rows))
        rows = Random(context.run.seed).sample(train_rows, asked)
        if not rows:
            return VerifierInputs(cases, oracle=None)
        labels, agreement = ask_the_oracle(cases, context, rows)
        return VerifierInputs(replace(cases, labels=labels), agreement)

    def build(self, context: TrainingContext, settings: VerifierTraining) -> Verifier:
        width = context.records["question"].shape[1]
        torch.manual_seed(context.run.seed)
        config = VerifierConfig(
            width, width, settings.hidden, SIGNALS, settings.dropout, settings.rivals
        )
        return Verifier(config)

    def loss(
        self,
        context: TrainingContext,
        settings: VerifierTraining,
        data: VerifierInputs,
        model: Verifier,
    ) -> Loss:
        cases = data.cases
        rows = [i for i in context.rows("train", gold=True) if bool(cases.there[i].any())]
        # Stage I is overconfident about the photos it was trained on: the others count as much
        fresh = (str(context.records.about[i]["fresh"]) for i in rows)
        kinds = ["/".join(pair) for pair in zip(context.categories(rows), fresh, strict=True)]
        draw = inverse_frequency(rows, kinds, settings.batch, context.run.seed)

        def loss(step: int) -> Tensor:
            batch = draw(step)
            there = cases.there[batch]
            return distillation_loss(cases.logits(model, batch)[there], cases.labels[batch][there])

        return loss

    def optimisation(self, settings: VerifierTraining) -> Optimisation:
        return Optimisation(settings.steps, settings.lr, settings.warmup, settings.weight_decay)

    def compare(
        self,
        context: TrainingContext,
        settings: VerifierTraining,
        data: VerifierInputs,
        model: Verifier,
    ) -> Metrics:
        held_out, val = (context.rows(split, gold=True) for split in SPLITS)
        threshold = best_threshold(model, data.cases, held_out)
        return {
            "threshold": threshold,
            "oracle": data.oracle,
            "held-out": compare_verifiers(context, model, data.cases, held_out, threshold),
            "val": compare_verifiers(context, model, data.cases, val, threshold) if val else None,
        }

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        trained, free = (compared["held-out"][how] for how in ("trained", "training_free"))
        return {"verifier": all(trained[name] >= free[name] for name in ("f1", "read"))}

    def chosen_settings(
        self, context: TrainingContext, compared: Metrics, ships: Mapping[str, bool]
    ) -> dict[str, dict[str, Any]]:
        if not ships["verifier"]:
            return {}
        least = context.pipeline.config.decode.max_passages  # as many as may be read
        return {"verify": {"threshold": compared["threshold"], "min_passages": least}}

    def components(self, settings: VerifierTraining, model: Verifier) -> Mapping[str, nn.Module]:
        return {"verifier": model}


STAGE = PathwayStage("stage4", PathwaySettings(VerifierTraining()), (VerifierPart(),))


@torch.inference_mode()
def compare_verifiers(
    context: TrainingContext, verifier: Verifier, cases: Cases, rows: Sequence[int], tau_nu: float
) -> Metrics:
    """Trained, at tau_nu, and training-free, at the preset's own threshold, on the same passages:
    F1 of the verdict, and of the questions with an answering passage the fraction that has one
    among the two best, which are read."""
    some = torch.tensor(rows)
    nu = cases.logits(verifier, some).sigmoid()
    untrained = preset(context.pipeline.config.preset).verify.threshold
    return {
        "questions": len(rows),
        "passages": int(cases.there[some].sum()),
        "positive": float(cases.labels[some][cases.there[some]].mean()),
        "trained": verifier_metrics(nu, cases, some, tau_nu),
        "training_free": verifier_metrics(cases.untrained[some], cases, some, untrained),
    }


def verifier_metrics(nu: Tensor, cases: Cases, rows: Tensor, threshold: float) -> dict[str, float]:
    there, right = cases.there[rows], cases.labels[rows] > 0.5
    accepted = (nu >= threshold) & there
    f1, precision, recall = _agreement(accepted, right)
    best = nu.masked_fill(~there, -1.0).topk(2, dim=1).indices
    findable = right.any(1)
    read = right.gather(1, best).any(1)[findable]
    return {
        "f1": f1,
        "precision": precision,
        "recall": recall,
        "f1_stating": _agreement(accepted, cases.stating[rows])[0],
        "read": float(read.float().mean()) if len(read) else 0.0,
    }


def _agreement(accepted: Tensor, right: Tensor) -> tuple[float, float, float]:
    """F1, precision, recall."""
    both, given, expected = (int(x.sum()) for x in (accepted & right, accepted, right))
    precision, recall = both / max(1, given), both / max(1, expected)
    return 2 * both / max(1, given + expected), precision, recall


def best_threshold(verifier: Verifier, cases: Cases, rows: Sequence[int]) -> float:
    """The tau_nu of the best F1; of equals the one nearest to the paper's 0.5."""
    some = torch.tensor(rows)
    with torch.inference_mode():
        nu = cases.logits(verifier, some).sigmoid()
    return max(
        THRESHOLDS,
        key=lambda t: (round(verifier_metrics(nu, cases, some, t)["f1"], 3), -abs(t - 0.5)),
    )


def ask_the_oracle(
    cases: Cases, context: TrainingContext, rows: Sequence[int]
) -> tuple[Tensor, Metrics]:
    """All labels [N, K], those of these questions replaced by the reader's verdict on each passage
    alone; and how far labels and verdicts agree."""
    records, pipeline, labels = context.records, context.pipeline, cases.labels.clone()
    counted, agreed, asked = context.run.counted("asking the oracle"), 0, 0
    decoding = Decoding(pipeline.config.decode.max_new_tokens)
    for done, i in enumerate(rows):
        counted(done, len(rows))
        about = records.about[i]
        right = {normalise(text): float(score) for text, score in about["answers"].items()}
        for k, candidate in enumerate(records.candidates(i)):
            prompt = reading_prompt([candidate.text], about["seen"], about["question"])
            answer = pipeline.backbone.generate(prompt, decoding).text
            verdict = right.get(normalise(answer), 0.0)
            agreed += (verdict > 0.5) == bool(cases.labels[i, k] > 0.5)
            asked += 1
            labels[i, k] = verdict
    counted(len(rows), len(rows))
    return labels, {
        "questions": len(rows),
        "passages": asked,
        "agreement": agreed / max(1, asked),
    }
