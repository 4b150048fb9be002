"""Stage IV, second part: a verifier that reads question and passage together (a cross-encoder).

Enters: the records, labels and signals that the first part is trained with, and the published text
encoder. Leaves: the delta of a pair encoder and a verifier over its embeddings, where they are at
least as good as the first part's verifier on held-out questions. Both are trained together, the
encoder at a fraction of the learning rate. It is compared as it is exported. Without a GPU a step
takes minutes, so there it is left out unless `pairs.steps_on_cpu` says otherwise.

Shape letters: n questions, K passages, P pairs, L tokens, d text width.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from shutil import copyfile
from typing import Any

import torch
from torch import Tensor, nn

from skipqa.backbones.networks.bert import Bert, mean_pool
from skipqa.backbones.text_encoder import PAIR_LAYERS, MiniLm
from skipqa.files import atomic
from skipqa.nn.verifier import Verifier, VerifierConfig, distillation_loss
from skipqa.stages.budget import is_particular
from skipqa.stages.pairs import pair_of
from skipqa.stages.readers import words_shown
from skipqa.stages.signals import OF_EMBEDDINGS, SIGNALS
from skipqa.training.export import Truncation, export
from skipqa.training.loop import Loss, Optimisation, fit
from skipqa.training.pathway import gains
from skipqa.training.pathway.context import TRAINED, TrainingContext
from skipqa.training.pathway.gains import Gains
from skipqa.training.pathway.stage import PathwayPart
from skipqa.training.pathway.verifier_cases import Cases, cases_with_gains
from skipqa.training.pathway.verifier_quality import (
    best_threshold,
    compare_min_passages,
    compare_verifiers,
    verifier_metrics,
)
from skipqa.training.pathway.verifier_settings import VerifierTraining
from skipqa.training.sampling import nested_inverse_frequency
from skipqa.training.stage import Metrics

AT_ONCE = 64  # questions whose passages are encoded together, to compare
PAIR_FILES = ENCODER, _ = "pair_encoder.safetensors", "pair_verifier.safetensors"


@dataclass(frozen=True, slots=True)
class PairInputs:
    cases: Cases  # with the signals that need no embedding; of passages there is nothing yet
    gains: Gains
    pairs: tuple[tuple[tuple[int, ...], ...], ...]  # of each question and passage the tokens


class PairModel(nn.Module):
    def __init__(self, text: Bert, verifier: Verifier) -> None:
        super().__init__()
        self.text, self.verifier = text, verifier

    @property
    def device(self) -> torch.device:
        return self.text.segment.device

    def embedded(self, pairs: Sequence[Sequence[Sequence[int]]], most: int) -> Tensor:
        """[n, K, d]: the passages of each question, 0 where there is none."""
        found = torch.zeros(len(pairs), most, self.text.config.width, device=self.device)
        places = [(n, k) for n, some in enumerate(pairs) for k in range(len(some))]
        if not places:
            return found
        texts = [torch.tensor(pairs[n][k]) for n, k in places]
        ids_PL = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=-1)
        ids_PL, kind = ids_PL.to(self.device), self.device.type
        fast = kind == "cuda" and self.training  # compared in the precision that answers
        with torch.autocast(kind, torch.bfloat16, enabled=fast):
            states_PLd = self.text(ids_PL.clamp(min=0), ids_PL >= 0)
        n, k = torch.tensor(places, device=self.device).T
        found[n, k] = mean_pool(states_PLd.float(), ids_PL >= 0)
        return found


class PairPart(PathwayPart[VerifierTraining, PairInputs, PairModel]):
    name = "pairs"

    def prepare(self, context: TrainingContext, settings: VerifierTraining) -> PairInputs:
        measured = gains.load_or_measure(context, on_cpu=0)
        compared = [i for split in ("held-out", "val") for i in context.records.select(split)]
        cases = cases_with_gains(context, measured, compared)
        signals = cases.signals.clone()
        signals[..., list(OF_EMBEDDINGS)] = 0.0
        return PairInputs(replace(cases, signals=signals), measured, _tokens(context))

    def build(self, context: TrainingContext, settings: VerifierTraining) -> PairModel:
        width = context.records["question"].shape[1]
        torch.manual_seed(context.run.seed)
        config = VerifierConfig(
            width,
            width,
            settings.pairs.hidden,
            SIGNALS,
            settings.pairs.dropout,
            settings.pairs.rivals,
        )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        text = copy.deepcopy(MiniLm(layers=PAIR_LAYERS).network).float().requires_grad_(True)
        text.words.requires_grad_(False)  # a delta of theirs would be large
        text.places.requires_grad_(False)
        return PairModel(text, Verifier(config)).to(device)

    def loss(
        self,
        context: TrainingContext,
        settings: VerifierTraining,
        data: PairInputs,
        model: PairModel,
    ) -> Loss:
        cases, about = data.cases, context.records.about
        rows = [i for i in context.records.select("train") if bool(cases.known[i].any())]
        kinds = [
            (one["source"], one["category"], str(one["fresh"])) for one in (about[i] for i in rows)
        ]
        draw = nested_inverse_frequency(rows, kinds, settings.pairs.batch, context.run.seed)

        def loss(step: int) -> Tensor:
            batch = draw(step)
            known, labels = (x[batch].to(model.device) for x in (cases.known, cases.labels))
            passages = model.embedded([data.pairs[i] for i in batch.tolist()], known.shape[1])
            inputs = (x[batch].to(model.device) for x in (cases.signals, cases.there, cases.own))
            asked = (x[batch].to(model.device) for x in (cases.question, cases.visual))
            logits = model.verifier(*asked, passages, *inputs)
            return distillation_loss(logits[known], labels[known])

        return loss

    def optimisation(self, settings: VerifierTraining) -> Optimisation:
        steps = settings.pairs.steps_here()
        return Optimisation(
            steps, settings.pairs.lr, settings.pairs.warmup, settings.pairs.weight_decay
        )

    def train(
        self, context: TrainingContext, settings: VerifierTraining, data: PairInputs
    ) -> PairModel:
        model = self.build(context, settings)
        loss = self.loss(context, settings, data, model)
        scales = [(model.text, settings.pairs.encoder_lr_scale)]
        return fit(self.name, model, loss, self.optimisation(settings), context.run, scales)

    def compare(
        self,
        context: TrainingContext,
        settings: VerifierTraining,
        data: PairInputs,
        model: PairModel,
    ) -> Metrics:
        """As exported, which also leaves the model so."""
        held_out, val = (
            [i for i in context.records.select(split) if bool(data.cases.known[i].any())]
            for split in ("held-out", "val")
        )
        path = context.run.folder / TRAINED / ENCODER
        path.parent.mkdir(parents=True, exist_ok=True)
        f1 = partial(_best_f1, data, model, held_out)
        preset = context.pipeline.config.preset
        ranks = export(
            model.text,
            MiniLm(layers=PAIR_LAYERS).network.state_dict(),
            f1,
            path,
            Truncation(settings.pairs.ranks, settings.pairs.max_loss),
            preset=preset,
        )
        cases = _encoded(data, model, [*held_out, *val])
        verifier = copy.deepcopy(model.verifier).cpu()
        threshold = best_threshold(verifier, cases, held_out)
        with torch.inference_mode():
            nu = cases.logits(verifier, torch.arange(len(context.records))).sigmoid()
        least = compare_min_passages(context, nu, data.gains, held_out, threshold)
        return {
            "ranks": ranks,
            "threshold": threshold,
            "min_passages": least,
            "held-out": compare_verifiers(context, verifier, cases, held_out, threshold),
            "val": compare_verifiers(context, verifier, cases, val, threshold) if val else None,
        }

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        alone = context.run.metrics()["verifier"]["held-out"]["trained"]
        trained, free = (compared["held-out"][how] for how in ("trained", "training_free"))
        best = {name: max(alone[name], free[name]) for name in ("f1", "read")}
        return {"pair_verifier": all(trained[name] >= best[name] for name in best)}

    def chosen_settings(
        self, context: TrainingContext, compared: Metrics, ships: Mapping[str, bool]
    ) -> dict[str, dict[str, Any]]:
        if not ships["pair_verifier"]:
            return {}
        chosen, least = {"threshold": compared["threshold"]}, compared["min_passages"]["chosen"]
        return {"verify": chosen if least is None else {**chosen, "min_passages": least}}

    def components(self, settings: VerifierTraining, model: PairModel) -> Mapping[str, nn.Module]:
        return {"pair_verifier": model.verifier.cpu()}

    def export(
        self,
        context: TrainingContext,
        settings: VerifierTraining,
        model: PairModel,
        ships: Mapping[str, bool],
    ) -> None:
        if ships["pair_verifier"]:
            folder = context.run.folder  # whose file may be a link to that of the stage before
            with atomic(folder / ENCODER) as partial:
                copyfile(folder / TRAINED / ENCODER, partial)
        super().export(context, settings, model, ships)

    def run(self, context: TrainingContext, settings: VerifierTraining) -> None:
        if settings.pairs.steps_here():
            super().run(context, settings)
        else:
            context.run.say("the pair encoder needs a GPU: left as it is")


def _tokens(context: TrainingContext) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """With the words that answering would have: most questions are not looked at closer."""
    records, config, tokenizer = context.records, context.pipeline.config, MiniLm().tokenizer
    concepts = context.pipeline.backbone.concepts
    found = []
    for i, about in enumerate(records.about):
        closer = is_particular(records.question(i), config.budget)
        seen = records.seen_words(i) if closer else records.low_res_words(i)
        words = words_shown(seen, config.decode)
        asked, regions = about["question"], records.regions(i)
        pairs = [pair_of(asked, words, p, regions, concepts) for p in records.candidates(i)]
        found.append(tuple(tuple(one.ids) for one in tokenizer.encode_batch(pairs)))
    return tuple(found)


@torch.inference_mode()
def _encoded(data: PairInputs, model: PairModel, rows: Sequence[int]) -> Cases:
    """The cases with the passages of those rows as pairs; 0 elsewhere."""
    num, most, width = data.cases.passages.shape
    passages = torch.zeros(num, most, width)
    model.eval()
    for first in range(0, len(rows), AT_ONCE):
        some = list(rows[first : first + AT_ONCE])
        passages[some] = model.embedded([data.pairs[i] for i in some], most).cpu()
    return replace(data.cases, passages=passages)


def _best_f1(data: PairInputs, model: PairModel, rows: Sequence[int]) -> float:
    cases, verifier, some = _encoded(data, model, rows), model.verifier, torch.tensor(rows)
    on_cpu = copy.deepcopy(verifier).cpu().eval()
    threshold = best_threshold(on_cpu, cases, rows)
    with torch.inference_mode():
        nu = cases.logits(on_cpu, some).sigmoid()
    return verifier_metrics(nu, cases, some, threshold)["f1"]
