"""The stage `reader`: a preset's own decoder learns to read, by LoRA; its encoders stay.

Enters: questions and photos as in stage I, the encoders and the drafter that the preset answers
with, passages as retrieval brings them. Leaves in the run's folder `reader.safetensors` (factors,
at most 40 MB), `settings.toml` with what was chosen with them on held-out photos, and a model card
`README.md`; also what the stage began with. The file is first in `trained/`, and ships if the
decoder answers held-out questions at least as well as it did before. What it takes is computed in
`estimate.py` and said before it starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from skipqa.assets import Report
from skipqa.backbones.presets.build import SMALL
from skipqa.backbones.presets.pocket import Pocket
from skipqa.components import Components, load_for
from skipqa.config import Weights
from skipqa.config import preset as config_of
from skipqa.errors import UserError
from skipqa.files import write_text
from skipqa.knowledge import Library
from skipqa.knowledge.default import DEFAULT
from skipqa.nn.tagger import pooled
from skipqa.stages.readers import prompt_of
from skipqa.training.export import copy_components, ship
from skipqa.training.pathway.context import TRAINED
from skipqa.training.pipelines import index_digests
from skipqa.training.reader import adapter, card
from skipqa.training.reader.estimate import Estimate
from skipqa.training.reader.settings import PART, LoraTraining, ReaderSettings
from skipqa.training.run import Run
from skipqa.training.stage import POCKET, Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import mixture, parts, photos, tagger
from skipqa.training.stage1.backbone import add_common, check_enough, duration
from skipqa.training.stage1.drafter import (
    TRAIN_GROUPS,
    DrafterEval,
    DrafterInputs,
    DrafterModel,
    Questions,
)
from skipqa.training.stage1.finding import Retrieval, find_passages
from skipqa.training.stage1.inputs import HELD_OUT, StageInputs, group_rows
from skipqa.training.stage1.networks import Networks
from skipqa.training.stage1.reader import ReaderInputs, ReaderTrainer
from skipqa.training.stage1.reader_quality import PromptMaker, ReaderEval
from skipqa.training.stage1.reading import Form, PromptWriter
from skipqa.training.stage1.words import Words

NEEDED = ("vision", "tagger", "drafter", "question")
BEFORE: tuple[Form, ...] = ("found", "unread")  # forms that the published decoder is scored in
GetNetworks = Callable[[type[Pocket], Weights, Report], Networks]


@dataclass(frozen=True, slots=True)
class ReaderStage(TrainingStage):
    settings: ReaderSettings
    networks: GetNetworks = Networks.of

    def refuses(self, preset: str) -> str:
        if preset == POCKET:
            return "stage1 trains its reader, with all weights; give --preset desk"
        if preset not in SMALL:
            return "its decoder reads visual tokens, and prompts here are words"
        return ""

    def check(self, metrics: Mapping[str, Any]) -> None:
        if not metrics[PART]["ships"]:
            raise UserError(
                "the trained reader answers held-out questions worse than the decoder as "
                "published: it stays in trained/, and nothing is built on it"
            )

    def run(self, inputs: Inputs, settings: ReaderSettings, run: Run) -> Metrics:
        kind, data = SMALL[inputs.preset], inputs.require_data(self.name)
        adapter.check_size(kind.published.config, settings.lora)
        found = load_for(inputs.preset, inputs.components)
        if absent := [name for name in NEEDED if getattr(found, name) is None]:
            raise UserError(f"{self.name} reads what {', '.join(absent)} would say: train stage1")
        mixed = mixture.read(data, inputs.pocket_kb, inputs.limit)
        add_common(mixed, inputs, settings.as_stage1(), run.seed)
        run.claim(
            {
                "stage": self.name,
                "preset": inputs.preset,
                "seed": run.seed,
                "limit": inputs.limit,
                "data": mixed.fingerprint(),
                "components": found.checksums(),
                "component_settings": dict(found.settings),
                "indexes": index_digests(inputs.index),
                **kind.published.as_base(),
                "settings": dataclasses.asdict(settings),
            }
        )
        if PART not in run.metrics():
            self._train(mixed, inputs, settings, found, run)
        run.forget_states()
        return run.metrics()

    def _train(
        self,
        mixed: mixture.Mixture,
        inputs: Inputs,
        settings: ReaderSettings,
        found: Components,
        run: Run,
    ) -> None:
        kind, device = SMALL[inputs.preset], _device()
        groups = group_rows(mixed)
        assert found.drafter is not None
        check_enough(mixed, groups, found.drafter.config.answers)
        estimate = Estimate(kind.published.config, settings.lora, settings.train, device.type)
        run.say(f"{self.name}: {_expected(estimate, groups, run, device)}")
        weights: Weights = "bfloat16" if device.type == "cuda" else "float32"
        networks = self.networks(kind, weights, run.say)
        context = StageInputs(mixed, groups, networks, settings.as_stage1(), run, device)
        seen = see(context, found)
        config = config_of(inputs.preset, found.settings)
        library = partial(Library.open, inputs.index or [DEFAULT])
        passages = find_passages(context, seen.high_res, Retrieval(library, found, config.retrieve))
        writer = PromptWriter(
            *(seen.low_res, seen.high_res, passages, mixed.facts),
            write=prompt_of(config.decode),
            read=config.decode.max_passages,
        )
        if inputs.components is not None:
            copy_components(inputs.components, run.folder)
        make = PromptMaker(context, writer, kind.form)
        metrics = train(context, make, settings, seen, inputs.preset)
        if metrics["ships"]:
            text = card.written(inputs.preset, kind.published, settings, run.seed, metrics)
            write_text(run.folder / card.CARD, text)
        run.finish(PART, metrics)


STAGE = ReaderStage("reader", ReaderSettings())


@dataclass(frozen=True, slots=True)
class Seen:
    """What the encoders and the drafter make of all photos and questions."""

    low_res: Words
    high_res: Words
    drafter: DrafterModel
    drafted: Mapping[str, Tensor]  # logits of all scored questions


def see(inputs: StageInputs, found: Components) -> Seen:
    """By the components as they ship. Features are not kept: training needs the memory."""
    assert found.vision is not None
    assert found.question is not None
    assert found.tagger is not None
    assert found.drafter is not None
    pixels = photos.decode(inputs.mixed.photos, inputs.run.counted("decoding photos"))
    features = parts.see(inputs, pixels, found.vision, views=1, crops=0)
    names = found.tagger.to(inputs.device)
    probs = tagger.tag(names, pooled(features.views[0]), features.windows)
    words = parts.words_shown(inputs, features, names.config, names.meanings, probs)
    model = parts.drafter_model(inputs, found.drafter, found.question)
    answers, tokenizer = found.drafter.config.answers, inputs.networks.text_tokenizer
    questions = Questions(inputs.mixed.examples, answers, tokenizer, inputs.device)
    drafts = DrafterEval(inputs.scored, DrafterInputs(questions, features, words[0]))
    return Seen(*words, model, drafts.all_logits(model))


def train(
    inputs: StageInputs, make: PromptMaker, settings: ReaderSettings, seen: Seen, preset: str
) -> Metrics:
    """Trains, exports, compares and chooses; the file ships if it is no worse than none."""
    run, training, published = inputs.run, settings.train, SMALL[preset].published
    decoder = inputs.networks.decoder.to(inputs.device)
    prompts = make(None, (inputs.groups[name].tolist() for name in TRAIN_GROUPS))
    questions = ReaderInputs(prompts, inputs.mixed.examples, inputs.groups)
    trainer = ReaderTrainer(questions, run, training, training.recompute)
    learned = adapter.train(decoder, trainer, training, settings.lora)
    path = run.folder / TRAINED / parts.READER
    exported = adapter.export(learned, path, published, settings.lora, preset=preset)
    evaluation = ReaderEval.of(inputs, make)
    before = {
        form: {name: evaluation.accuracy(decoder, form, name) for name in evaluation.rows_of}
        for form in BEFORE
    }
    with exported.beside(decoder):
        shipped = evaluation.accuracies(decoder)
        metrics: Metrics = {
            "ships": shipped["found"][HELD_OUT] >= before["found"][HELD_OUT],
            "prompts": _prompts_seen(training, inputs.groups, run),
            "tokens": sum(map(len, prompts.ids)) / max(1, sum(map(bool, prompts.ids))),
            "bytes": path.stat().st_size,
            "before": before,
            "shipped": shipped,
        }
        if metrics["ships"]:
            decode = {"prompt": config_of(preset).decode.prompt}
            metrics |= evaluation.rank(decoder, seen.drafter, seen.drafted, decode)
            ship(path, run.folder)
    return metrics


def _prompts_seen(training: LoraTraining, groups: Mapping[str, Tensor], run: Run) -> dict[str, int]:
    """In each phase, by its name, at most: a batch of long ones has fewer."""
    of_step, phases = training.batch * run.accumulate, training.phases(groups).items()
    return {name: phase.optimisation.steps * of_step for name, phase in phases}


def _expected(
    estimate: Estimate, groups: Mapping[str, Tensor], run: Run, device: torch.device
) -> str:
    """Computed, not measured."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    seen = sum(_prompts_seen(estimate.training, groups, run).values())
    return (
        f"{estimate.size}, {seen:,} prompts, at most {estimate.peak_bytes() / 1e9:.0f} GB, on "
        f"{where}: about {duration(estimate.seconds(seen))} by computation, scoring not counted"
    )


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
