"""How well a reader answers, alone and together with the drafter.

Enters: a decoder as it is exported, prompts in several forms, the drafter's logits. Leaves: its
accuracies, and the settings that are chosen with it on held-out questions: how candidates are
ranked, when drafts are enough. Nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skipqa.backbones.networks.llama import Llama
from skipqa.backbones.presets.pocket import Pocket, PromptForm
from skipqa.components import SETTINGS, change_settings
from skipqa.training.stage import Metrics
from skipqa.training.stage1 import reader, routing
from skipqa.training.stage1.drafter import DrafterModel
from skipqa.training.stage1.inputs import HELD_OUT, PERCEPTUAL, StageInputs
from skipqa.training.stage1.reader import Prompts, ReaderInputs
from skipqa.training.stage1.reading import Form, PromptWriter
from skipqa.training.stage1.routing import Candidates, Drafted

READ_FORMS: tuple[Form, ...] = ("few", "found", "unread", "blind")  # that the reader is scored in
# That candidates are ranked in, by the same weights: with what retrieval finds, and without
RANKED_FORMS: tuple[Form, ...] = ("found", "unread")


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Prompts of rows as token ids, in the form that a decoder reads."""

    inputs: StageInputs
    writer: PromptWriter
    form: PromptForm = Pocket.form

    def __call__(self, form: Form, groups: Iterable[list[int]]) -> Prompts:
        rows, examples = chain.from_iterable(groups), self.inputs.mixed.examples
        return self._encoded(self.writer.prompts(examples, rows, self.inputs.run.seed, form))

    def to_train_on(self, groups: Iterable[list[int]]) -> ReaderInputs:
        rows, inputs = chain.from_iterable(groups), self.inputs
        texts, asked = self.writer.to_train_on(inputs.mixed.examples, rows, inputs.run.seed)
        return ReaderInputs(self._encoded(texts), asked, inputs.groups)

    def _encoded(self, texts: Sequence[str]) -> Prompts:
        return Prompts(texts, self.inputs.networks.decoder_tokenizer, self.form)


@dataclass(frozen=True, slots=True)
class ReaderEval:
    """Questions that nothing is trained on, as prompts in each form."""

    inputs: StageInputs
    rows_of: Mapping[str, list[int]]  # by source and split
    prompts: Mapping[Form, Prompts]

    @staticmethod
    def of(
        inputs: StageInputs, make: PromptMaker, forms: Iterable[Form] = READ_FORMS
    ) -> ReaderEval:
        rows_of = {name: rows.tolist() for name, rows in inputs.read().items()}
        prompts = {form: make(form, rows_of.values()) for form in forms}
        return ReaderEval(inputs, rows_of, prompts)

    def accuracy(self, decoder: Llama, form: Form, name: str) -> float:
        counted = self.inputs.run.counted(f"reading {name}, {form}")
        given = reader.generate(decoder, self.prompts[form], self.rows_of[name], counted)
        return reader.mean_score(self.inputs.mixed.examples, self.rows_of[name], given)

    def accuracies(
        self, decoder: Llama, forms: Iterable[Form] = ()
    ) -> dict[Form, dict[str, float]]:
        """In these forms, or in all that there are prompts in."""
        return {
            form: {name: self.accuracy(decoder, form, name) for name in self.rows_of}
            for form in forms or self.prompts
        }

    def rank(
        self,
        decoder: Llama,
        model: DrafterModel,
        drafted: Mapping[str, Tensor],
        decode: Mapping[str, Any],
    ) -> Metrics:
        """Chooses how candidates are ranked and when drafts are enough, and writes both down, with
        the settings `decode` of how this decoder reads."""
        inputs, vocabulary = self.inputs, model.drafter.vocabulary()
        is_read = {
            name: torch.isin(inputs.scored[name], rows).to(inputs.device)
            for name, rows in inputs.read().items()
        }
        sets = {
            form: {
                name: routing.gather(
                    decoder,
                    self.prompts[form],
                    inputs.mixed.examples,
                    rows,
                    Drafted(vocabulary, model.drafter.log_probs(drafted[name])[is_read[name]]),
                    inputs.run.counted(f"scoring candidates, {name}, {form}"),
                )
                for name, rows in self.rows_of.items()
            }
            for form in RANKED_FORMS
        }
        return _chosen(inputs, sets, inputs.run.folder / SETTINGS, decode)


def _chosen(
    inputs: StageInputs,
    sets: Mapping[Form, Mapping[str, Candidates]],
    path: Path,
    decode: Mapping[str, Any],
) -> Metrics:
    held_out = routing.concatenated([some[HELD_OUT] for some in sets.values()])
    weights, ranking = routing.choose_weights(held_out)
    found = sets["found"]
    threshold, routed = routing.open_fast_path(found, (HELD_OUT, PERCEPTUAL), weights)
    change_settings(
        path,
        draft={"threshold": threshold, "counting_threshold": threshold},
        decode={**decode, **asdict(weights)},
    )
    joint: dict[str, Metrics] = {}
    for name, rows in inputs.read().items():
        types = [inputs.mixed.examples[row].type for row in rows.tolist()]
        joint[name] = {"accuracy": found[name].accuracy(weights)} | {
            form: {
                "accuracy": some[name].accuracy(weights),
                "by_type": routing.accuracy_by_type(some[name], weights, types),
            }
            for form, some in sets.items()
        }
    return {
        "weights": asdict(weights),
        "ranking": ranking,
        "joint": joint,
        "fast_path": {"threshold": threshold} | routed,
    }
