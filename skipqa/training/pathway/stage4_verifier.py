"""Stage IV: the verifier (SKV) learns which retrieved passages the answer is in.

Enters: gathered records. Leaves: a verifier, and how it compares with the training-free verdict on
held-out questions. The paper's label is the dense oracle's: how often the answer is right with
passage j alone, relative to all (eq. D.4). A reader of a passage that states the answer is right,
of one that does not is wrong, so a passage's label here is whether it is named as gold; on a sample
of questions the reader itself is asked, passage by passage, where the run says so, and its verdict
replaces the flag (`oracle_questions`). A passage that says of another thing what happens to be the
answer is no evidence, and nobody could tell it from one that says something else; F1 with those
counted as right, too, is reported beside. Questions that name no passage teach nothing and are not
counted.

Shape letters: N questions, K passages, d text width, S signals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any

import torch
from torch import Tensor

from skipqa.backbones.backbone import Decoding
from skipqa.config import Between, Count, CountOrNone, Fraction
from skipqa.nn.verifier import Verifier, VerifierConfig, distillation_loss
from skipqa.pipeline import Pipeline
from skipqa.stages.prompts import reading_prompt
from skipqa.stages.signals import SIGNALS, signals
from skipqa.stages.verify import scores_of
from skipqa.tasks.okvqa import normalise
from skipqa.training.loop import Decay, Phase, fit
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records
from skipqa.training.run import Run
from skipqa.training.sampling import inverse_frequency
from skipqa.types import KeptTokens

THRESHOLDS = tuple(n / 20 for n in range(4, 17))


@dataclass(frozen=True, slots=True)
class VerifierTraining:
    steps: Count = 1_500
    lr: Annotated[float, Between(1e-7, 1.0)] = 2e-3
    warmup: CountOrNone = 100
    batch: Count = 64  # questions, of up to 16 passages each
    weight_decay: Decay = 0.05
    hidden: Count = 128
    rivals: CountOrNone = 8
    dropout: Fraction = 0.3
    oracle_questions: CountOrNone = 0


def run(context: TrainingContext, settings: VerifierTraining) -> dict[str, Any]:
    """The stage: train, choose tau_nu, compare, leave."""
    if "verifier" in context.run.metrics():
        return context.run.metrics()
    records, pipeline = context.records, context.pipeline
    held_out, val = context.rows("held-out", gold=True), context.rows("val", gold=True)
    found = cases(context, compared={*held_out, *val})
    train_rows = context.rows("train", gold=True)
    asked = min(settings.oracle_questions, len(train_rows))
    rows = Random(context.run.seed).sample(train_rows, asked)
    oracle = ask_the_oracle(found, records, pipeline, rows, context.run) if rows else None
    verifier = train(found, context, settings)
    threshold = best_threshold(verifier, found, held_out)
    compared = compare(verifier, found, held_out, threshold)
    ships = all(
        compared["trained"][name] >= compared["training_free"][name] for name in ("f1", "read")
    )
    context.leave(verifier, "verifier", ships=ships)
    if ships:
        least = pipeline.config.decode.max_passages  # as many as may be read
        context.set(verify={"threshold": threshold, "min_passages": least})
    context.run.finish(
        "verifier",
        {
            "ships": ships,
            "threshold": threshold,
            "oracle": oracle,
            "held-out": compared,
            "val": compare(verifier, found, val, threshold) if val else None,
        },
    )
    return context.run.metrics()


@dataclass(frozen=True, slots=True)
class Cases:
    """What a verifier reads of every question, padded to K passages."""

    question: Tensor  # [N, d]
    visual: Tensor  # [N, d]
    passages: Tensor  # [N, K, d]
    signals: Tensor  # [N, K, S]
    there: Tensor  # [N, K] bool: a passage, not padding
    label: Tensor  # [N, K] in [0, 1]
    stating: Tensor  # [N, K] bool: also those that state the answer of another thing
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


def cases(context: TrainingContext, compared: Collection[int] = ()) -> Cases:
    """Over all records, in their order; of those `compared` also the training-free scores."""
    records = context.records
    num, most = records["passages"].shape
    width = records["question"].shape[1]
    passages, told = torch.zeros(num, most, width), torch.zeros(num, most, SIGNALS)
    visual, untrained = torch.zeros(num, width), torch.zeros(num, most)
    groups = [(False, [i for i in range(num) if i not in compared]), (True, sorted(compared))]
    for scored, rows in groups:
        found = context.spread(_observe, rows, "reading records", scored)
        for i, (looked, said, scores) in zip(rows, found, strict=True):
            here = slice(len(said))
            visual[i], told[i, here] = torch.tensor(looked), torch.tensor(said).view(-1, SIGNALS)
            passages[i, here] = records.table.embeddings[records.places(i)]
            if scored:
                untrained[i, here] = torch.tensor(scores)
    return Cases(
        question=records["question"].float(),
        visual=visual,
        passages=passages,
        signals=told,
        there=records["passages"] >= 0,
        label=records["gold"].float(),
        stating=stating(records),
        untrained=untrained,
    )


Observed = tuple[list[float], list[list[float]], list[float]]


@torch.no_grad()
def _observe(pipeline: Pipeline, records: Records, scored: bool) -> list[Observed]:
    """Of each question the mean kept token, the signals of its passages, and where wanted their
    training-free scores."""
    return [_observe_one(pipeline, records, i, scored) for i in range(len(records))]


def _observe_one(pipeline: Pipeline, records: Records, i: int, scored: bool) -> Observed:
    backbone, candidates = pipeline.backbone, records.candidates(i)
    tokens = records.tokens(i, len(backbone.concepts))
    positions = records["kept"][i].nonzero()[:, 0]
    visual = tokens.meaning[positions].mean(0).tolist()
    if not candidates:
        return visual, [], []
    kept = KeptTokens(positions, records["saliency"][i].float(), tokens)
    embeddings = records.table.embeddings[records.places(i)]
    question, regions = records.question(i), records.regions(i)
    asked_of = records["asked_of"][i, : len(candidates)].float()
    told = signals(candidates, embeddings, asked_of, question, kept, regions, backbone.concepts)
    nu: list[float] = []
    if scored:
        config = pipeline.config.verify
        nu, _ = scores_of(candidates, embeddings, question, kept, regions, backbone, config)
    return visual, told.tolist(), nu


def build(context: TrainingContext, settings: VerifierTraining) -> Verifier:
    width = context.records["question"].shape[1]
    torch.manual_seed(context.run.seed)
    config = VerifierConfig(
        width, width, settings.hidden, SIGNALS, settings.dropout, settings.rivals
    )
    return Verifier(config)


def loss_of(
    context: TrainingContext, verifier: Verifier, found: Cases, settings: VerifierTraining
) -> Callable[[int], Tensor]:
    rows = [i for i in context.rows("train", gold=True) if bool(found.there[i].any())]
    # Stage I is too sure of the photos that it saw: those that it did not count as much as all
    fresh = (str(context.records.about[i]["fresh"]) for i in rows)
    kinds = ["/".join(pair) for pair in zip(context.categories(rows), fresh, strict=True)]
    draw = inverse_frequency(rows, kinds, settings.batch, context.run.seed)

    def loss(step: int) -> Tensor:
        some = draw(step)
        there = found.there[some]
        return distillation_loss(found.logits(verifier, some)[there], found.label[some][there])

    return loss


def train(found: Cases, context: TrainingContext, settings: VerifierTraining) -> Verifier:
    verifier = build(context, settings)
    loss = loss_of(context, verifier, found, settings)
    phase = Phase(settings.steps, settings.lr, settings.warmup)
    return fit("verifier", verifier, loss, phase, context.run, weight_decay=settings.weight_decay)


@torch.inference_mode()
def compare(
    verifier: Verifier, found: Cases, rows: Sequence[int], threshold: float = 0.5
) -> dict[str, Any]:
    """Trained and training-free on the same passages: F1 of the verdict, and of the questions with
    an answering passage the share that has one among the two best, which is what is read."""
    some = torch.tensor(rows)
    nu = found.logits(verifier, some).sigmoid()
    return {
        "questions": len(rows),
        "passages": int(found.there[some].sum()),
        "positive": float(found.label[some][found.there[some]].mean()),
        "trained": quality(nu, found, some, threshold),
        "training_free": quality(found.untrained[some], found, some, 0.5),
    }


def quality(nu: Tensor, found: Cases, rows: Tensor, threshold: float) -> dict[str, float]:
    there, label = found.there[rows], found.label[rows] > 0.5
    accepted = (nu >= threshold) & there
    f1, precision, recall = _agreement(accepted, label)
    best = nu.masked_fill(~there, -1.0).topk(2, dim=1).indices
    findable = label.any(1)
    read = label.gather(1, best).any(1)[findable]
    return {
        "f1": f1,
        "precision": precision,
        "recall": recall,
        "f1_stating": _agreement(accepted, found.stating[rows])[0],
        "read": float(read.float().mean()) if len(read) else 0.0,
    }


def _agreement(accepted: Tensor, right: Tensor) -> tuple[float, float, float]:
    """F1, precision, recall."""
    both, given, wanted = (int(x.sum()) for x in (accepted & right, accepted, right))
    precision, recall = both / max(1, given), both / max(1, wanted)
    return 2 * both / max(1, given + wanted), precision, recall


def best_threshold(verifier: Verifier, found: Cases, rows: Sequence[int]) -> float:
    """The tau_nu of the best F1; of equals the one nearest to the paper's 0.5."""
    some = torch.tensor(rows)
    with torch.inference_mode():
        nu = found.logits(verifier, some).sigmoid()
    return max(
        THRESHOLDS,
        key=lambda t: (round(quality(nu, found, some, t)["f1"], 3), -abs(t - 0.5)),
    )


def ask_the_oracle(
    found: Cases, records: Records, pipeline: Pipeline, rows: Sequence[int], run: Run
) -> dict[str, Any]:
    """The reader's verdict on each passage alone replaces the flag of these questions; how far
    flag and verdict agree comes back."""
    counted, agreed, asked = run.counted("asking the oracle"), 0, 0
    decoding = Decoding(pipeline.config.decode.max_new_tokens)
    for done, i in enumerate(rows):
        counted(done, len(rows))
        about = records.about[i]
        right = {normalise(text): float(score) for text, score in about["answers"].items()}
        for k, candidate in enumerate(records.candidates(i)):
            prompt = reading_prompt([candidate.passage.text], about["seen"], about["question"])
            said = pipeline.backbone.generate(prompt, decoding).text
            verdict = right.get(normalise(said), 0.0)
            agreed += (verdict > 0.5) == bool(found.label[i, k] > 0.5)
            asked += 1
            found.label[i, k] = verdict
    counted(len(rows), len(rows))
    return {"questions": len(rows), "passages": asked, "agreement": agreed / max(1, asked)}
