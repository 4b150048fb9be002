"""The stage `reader`: a preset's own decoder learns to read; its encoders stay.

Enters: questions and photos as in stage I, the encoders and the drafter that the preset answers
with, passages as retrieval brings them. A decoder that is used as published gets factors beside its
matrices (`adapter.py`), and the pocket's, which ships as factors, goes on learning with these
(`further.py`). Leaves in the run's folder `reader.safetensors` (factors, at most 40 MB), or with
`many=1` the `dense_reader.safetensors` that the dense baseline answers with, and what the stage
began with; of a new reader `settings.toml` with what was chosen with it on held-out
photos, and a model card `README.md`. The file is first in `trained/`, and ships if the decoder
answers held-out questions at least as well as it did before. What it takes is computed in
`estimate.py` and said before it starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from skipqa.assets import Report
from skipqa.backbones.networks.llama import Llama
from skipqa.backbones.presets.build import SMALL
from skipqa.backbones.presets.pocket import Pocket
from skipqa.components import Components, load_for
from skipqa.config import Weights
from skipqa.config import preset as config_of
from skipqa.errors import UserError
from skipqa.files import write_text
from skipqa.knowledge import Library
from skipqa.knowledge.default import DEFAULT
from skipqa.stages.readers import prompt_of
from skipqa.training.export import copy_components, ship
from skipqa.training.pathway.context import TRAINED
from skipqa.training.pipelines import index_digests
from skipqa.training.reader import adapter, card
from skipqa.training.reader.adapter import Beside
from skipqa.training.reader.estimate import Estimate, further_seconds
from skipqa.training.reader.further import Further
from skipqa.training.reader.seeing import Seen, see, things_asked_about, thinned
from skipqa.training.reader.settings import DENSE_PART, PART, ReaderSchedule, ReaderSettings
from skipqa.training.run import Run
from skipqa.training.stage import POCKET, Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import mixture
from skipqa.training.stage1.backbone import add_common, check_enough, duration
from skipqa.training.stage1.finding import Retrieval
from skipqa.training.stage1.inputs import HELD_OUT, StageInputs, group_rows
from skipqa.training.stage1.networks import Networks
from skipqa.training.stage1.reader import ReaderTrainer
from skipqa.training.stage1.reader_quality import READ_FORMS, PromptMaker, ReaderEval
from skipqa.training.stage1.reading import Form, PromptWriter

NEEDED = ("vision", "tagger", "drafter", "question")
# Forms that the decoder is scored in, by the part: as it was, of which the first decides, and as it
# is afterwards
BEFORE: Mapping[str, tuple[Form, ...]] = {PART: ("found", "unread"), DENSE_PART: ("many",)}
AFTER: Mapping[str, tuple[Form, ...]] = {PART: READ_FORMS, DENSE_PART: ("many",)}
BEFORE_PART = "before"  # what the decoder scored before, in the metrics
GetNetworks = Callable[[type[Pocket], Weights, Report], Networks]
L = TypeVar("L", bound=nn.Module)


class Learner(Protocol[L]):
    """What of a decoder is trained, and how it is exported."""

    def train(self, decoder: Llama, trainer: ReaderTrainer, training: ReaderSchedule) -> L: ...

    def exported(self, decoder: Llama, learned: L, path: Path) -> AbstractContextManager[Llama]: ...


@dataclass(frozen=True, slots=True)
class ReaderStage(TrainingStage):
    settings: ReaderSettings
    networks: GetNetworks = Networks.of

    def refuses(self, preset: str) -> str:
        if preset not in SMALL:
            return "its decoder reads visual tokens, and prompts here are words"
        return ""

    def part_of_all(self, preset: str) -> bool:
        """Not of the pocket's, whose reader stage I has just trained."""
        return preset != POCKET and not self.refuses(preset)

    def check(self, metrics: Mapping[str, Any]) -> None:
        if PART in metrics and not metrics[PART]["ships"]:
            raise UserError(
                "the trained reader answers held-out questions worse than the decoder did before: "
                "it stays in trained/, and nothing is built on it"
            )

    def run(self, inputs: Inputs, settings: ReaderSettings, run: Run) -> Metrics:
        settings.check()
        kind, data = SMALL[inputs.preset], inputs.require_data(self.name)
        found = load_for(inputs.preset, inputs.components)
        needed = (*NEEDED, PART) if inputs.preset == POCKET else NEEDED
        if absent := [name for name in needed if getattr(found, name) is None]:
            raise UserError(f"{self.name} builds on {', '.join(absent)}: train stage1")
        if inputs.preset != POCKET:
            adapter.check_size(kind.published.config, settings.lora)
        elif settings.lora != self.settings.lora:
            raise UserError("the factors of the pocket's reader keep their ranks: leave lora out")
        mixed = thinned(mixture.read(data, inputs.pocket_kb, inputs.limit), settings)
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
        if settings.part not in run.metrics():
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
        run.say(f"{self.name}: {_expected(inputs.preset, settings, groups, run, device)}")
        fewer_bits = device.type == "cuda" or settings.train.bfloat16
        frozen: Weights = "bfloat16" if fewer_bits else "float32"
        weights: Weights = "float32" if inputs.preset == POCKET else frozen
        networks = self.networks(kind, weights, run.say)
        context = StageInputs(mixed, groups, networks, settings.as_stage1(), run, device)
        config = config_of(inputs.preset, found.settings)
        library = partial(Library.open, inputs.index or [DEFAULT])
        retrieval = Retrieval(library, found, config.retrieve)
        if settings.part == DENSE_PART:
            retrieval = retrieval.with_whole_passages()
        seen = see(context, found, retrieval, bfloat16=settings.train.bfloat16)
        writer = PromptWriter(
            *(seen.low_res, seen.high_res, seen.passages, mixed.facts),
            write=prompt_of(config.decode),
            read=config.decode.max_passages,
            asked=things_asked_about(mixed) if config.decode.region_words else {},
            many=settings.many,
        )
        # A new reader takes the bundled one's place; one that goes on from it, or that answers for
        # the dense baseline alone, ships with all that it stands beside
        new = inputs.preset != POCKET and settings.part == PART
        own = found.folder if found.folder != found.base else None
        if own is not None and (inputs.components is not None or not new):
            copy_components(own, run.folder)
        make, decoder = PromptMaker(context, writer, kind.form), networks.decoder.to(device)
        if inputs.preset == POCKET:
            assert found.reader is not None
            if settings.train.bfloat16:
                decoder.embedding.bfloat16()
            further = Further.of(decoder, found.reader, inputs.preset, settings.interpolation)
            metrics = train(context, make, settings, decoder, further)
        else:
            beside = Beside(kind.published, settings.lora, inputs.preset)
            ranking = Ranking(seen, {"prompt": config.decode.prompt}) if new else None
            metrics = train(context, make, settings, decoder, beside, ranking)
            if metrics["ships"] and new:
                text = card.written(inputs.preset, kind.published, settings, run.seed, metrics)
                write_text(run.folder / card.CARD, text)
        run.finish(settings.part, metrics)


STAGE = ReaderStage("reader", ReaderSettings())


@dataclass(frozen=True, slots=True)
class Ranking:
    """What the settings of a new reader are chosen with."""

    seen: Seen
    decode: Mapping[str, Any]  # how this decoder reads, which is not chosen


def train(
    inputs: StageInputs,
    make: PromptMaker,
    settings: ReaderSettings,
    decoder: Llama,
    learner: Learner[L],
    ranking: Ranking | None = None,
) -> Metrics:
    """Trains, exports, compares and, for a new reader, chooses settings; the file ships if it is no
    worse than none, or than the reader that the decoder is."""
    run, training, part = inputs.run, settings.schedule, settings.part
    rows = torch.cat(
        [some for phase in training.phases(inputs.groups).values() for some in phase.rows]
    )
    questions = make.to_train_on([rows.unique().tolist()])
    prompts = questions.prompts
    trainer = ReaderTrainer(questions, run, training, training.recompute)
    evaluation = ReaderEval.of(inputs, make, AFTER[part])
    if BEFORE_PART not in run.metrics():
        scores: Metrics = {**evaluation.accuracies(decoder, BEFORE[part])}  # type: ignore[dict-item]
        run.finish(BEFORE_PART, scores)
    before, path = run.metrics()[BEFORE_PART], run.folder / TRAINED / f"{part}.safetensors"
    decisive = BEFORE[part][0]
    learned = learner.train(decoder, trainer, training)
    with learner.exported(decoder, learned, path) as answering:
        shipped = evaluation.accuracies(answering)
        metrics: Metrics = {
            "ships": shipped[decisive][HELD_OUT] >= before[decisive][HELD_OUT],
            "prompts": _prompts_seen(training, inputs.groups, run),
            "tokens": sum(map(len, prompts.ids)) / max(1, sum(map(bool, prompts.ids))),
            "bytes": path.stat().st_size,
            "before": before,
            "shipped": shipped,
        }
        if metrics["ships"]:
            if ranking is not None:
                seen = ranking.seen
                metrics |= evaluation.rank(answering, seen.drafter, seen.drafted, ranking.decode)
            ship(path, run.folder)
    return metrics


def _prompts_seen(
    training: ReaderSchedule, groups: Mapping[str, Tensor], run: Run
) -> dict[str, int]:
    """In each phase, by its name, at most: a batch of long ones has fewer."""
    of_step, phases = training.batch * run.accumulate, training.phases(groups).items()
    return {name: phase.optimisation.steps * of_step for name, phase in phases}


def _expected(
    preset: str,
    settings: ReaderSettings,
    groups: Mapping[str, Tensor],
    run: Run,
    device: torch.device,
) -> str:
    """Computed, not measured."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    config, training = SMALL[preset].published.config, settings.schedule
    seen = sum(_prompts_seen(training, groups, run).values())
    if preset == POCKET:
        what, seconds = "factors as shipped", further_seconds(config, training, seen, device.type)
    else:
        estimate = Estimate(config, settings.lora, training, device.type)
        what = f"{estimate.size}, at most {estimate.peak_bytes / 1e9:.0f} GB"
        seconds = estimate.seconds(seen)
    return (
        f"{what}, {seen:,} prompts, on {where}: about {duration(seconds)} by computation, looking "
        "at photos and scoring not counted"
    )


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
