"""Stage I, the backbone: recognise what an image shows, then answer from that.

Enters: questions, labels and photos, the published networks, and the passages that the reader
learns from, with what was learned before of asking for them. Leaves in the run's folder:
`vision` (the encoder), `tagger`, `drafter`, `question` (the drafter's text encoder) and `reader`
(the decoder) as safetensors, the networks as deltas from the published weights, `photos` (what
was kept out of training, by sight), `settings.toml` for the pipeline, and `metrics.json`.
Everything that data chooses (the temperature, the weight of the drafter next to the reader, when
the drafter answers alone, the rank of a delta) is chosen on held-out training photos; validation
questions are only scored. Four parts follow each other, and each reads what the one before it
exported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from skipqa import assets
from skipqa.assets import Report
from skipqa.backbones.networks import efficientnet_lite
from skipqa.components import OF_THE_ENCODER, TRAINING_FREE
from skipqa.components import load as load_components
from skipqa.config import preset
from skipqa.errors import UserError
from skipqa.knowledge import Library
from skipqa.knowledge.default import DEFAULT
from skipqa.training.export import copy_components
from skipqa.training.pipelines import index_digests
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import common_sense, mixture, notes, parts, photos, tagger
from skipqa.training.stage1.finding import Retrieval, find_passages
from skipqa.training.stage1.gallery import describe_gallery
from skipqa.training.stage1.inputs import (
    HELD_OUT,
    PERCEPTUAL,
    Stage1Settings,
    StageInputs,
    group_rows,
)
from skipqa.training.stage1.mentioned import mentioned
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.networks import Networks
from skipqa.training.stage1.pocket_kb import HeldOut
from skipqa.training.stage1.reading import PromptWriter
from skipqa.wordnet import Nouns

# What the image has to add to the question, without passages, before later stages build on it
GATE = {"okvqa/val": 0.05, "pocket-kb/val": 0.15}
PARTS = ("encoder", "tagger", "drafter", "reader")
# At the default settings, per question: measured on an H200, estimated for two cores
SECONDS = {"cuda": 0.01, "cpu": 1.5}


@dataclass(frozen=True, slots=True)
class BackboneStage(TrainingStage):
    settings: Stage1Settings
    networks: Callable[[Report], Networks] = Networks.pocket

    @property
    def makes_backbone(self) -> bool:
        return True

    def run(self, inputs: Inputs, settings: Stage1Settings, run: Run) -> Metrics:
        mixed = mixture.read(inputs.require_data(self.name), inputs.pocket_kb, inputs.limit)
        add_common(mixed, inputs, settings, run.seed)
        run.claim(
            {
                "stage": self.name,
                "seed": run.seed,
                "limit": inputs.limit,
                "examples": len(mixed.examples),
                "photos": len(mixed.photos),
                "data": mixed.fingerprint(),
                "indexes": index_digests(inputs.index),
                "settings": dataclasses.asdict(settings),
            }
        )
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        run.say(f"{self.name}: {_size(mixed, settings, device)}")
        retrieval = partial(_retrieval, inputs, run)
        metrics = train(mixed, settings, run, self.networks, device, retrieval)
        if inputs.pocket_kb is not None:
            vision = run.folder / parts.VISION
            describe_gallery(inputs.pocket_kb, vision, run.folder, parts.PRESET)
        return metrics

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Of a full run, with Pocket-KB."""
        read = metrics["reader"]["shipped"]
        for name, least in GATE.items():
            added = read["unread"][name] - read["blind"][name]
            if added < least:
                raise UserError(
                    f"the image adds {100 * added:.1f} points to the question alone on {name}, and "
                    f"{100 * least:.0f} are needed before later stages build on it; --components "
                    f"takes stage1's folder all the same"
                )


STAGE = BackboneStage("stage1", Stage1Settings(), needs_pocket="it trains pocket's networks")


def _retrieval(inputs: Inputs, run: Run) -> Retrieval:
    """With the queries that were trained before, if any were; their files go to the run's folder,
    and with them whatever does not depend on the vision encoder that was there before."""
    found = TRAINING_FREE
    if (start := inputs.components) is not None:
        stale = [name for name in OF_THE_ENCODER if (start / f"{name}.safetensors").is_file()]
        if stale:
            run.say(f"left out, as learned with another vision encoder: {', '.join(stale)}")
        copy_components(start, run.folder, without=stale)
        found = load_components(start, preset=parts.PRESET)
    open_library = partial(Library.open, inputs.index or [DEFAULT])
    return Retrieval(open_library, found, preset(parts.PRESET, found.settings).retrieve)


def add_common(mixed: Mixture, inputs: Inputs, settings: Stage1Settings, seed: int) -> None:
    """Questions made from ConceptNet, if the library has it, and about made-up notes; for a trial
    as many as of a file."""
    library = Library.open(inputs.index or [DEFAULT])
    held_out = HeldOut.of(inputs.pocket_kb)
    most = {name: getattr(settings, name) for name in ("common", "notes")}
    if inputs.limit is not None:
        most = {name: min(count, inputs.limit) for name, count in most.items()}
    made = common_sense.questions(mixed, library, held_out, most["common"], seed)
    made += notes.questions(mixed, common_sense.COMMON, most["notes"], seed)
    for example in made:
        mixed.ask(example)


def train(
    mixed: Mixture,
    settings: Stage1Settings,
    run: Run,
    networks: Callable[[Report], Networks],
    device: torch.device,
    retrieval: Callable[[], Retrieval],
) -> Metrics:
    """A part that an earlier call finished is read, not trained; the metrics of all come back.
    Only the reader needs `retrieval`."""
    if all(part in run.metrics() for part in PARTS):
        return run.metrics()
    groups = group_rows(mixed)
    check_enough(mixed, groups, mixture.answer_vocabulary(mixed.examples, settings.answers))
    inputs = StageInputs(mixed, groups, networks(run.say), settings, run, device)
    labelled = {name for names in mixed.labels.values() for name in names}
    nouns = Nouns(assets.fetch(assets.WORDNET, run.say))
    targets = tagger.targets(mixed, mentioned(mixed.examples, labelled, nouns))
    features = parts.finetune_encoder(inputs, targets)
    low_res, high_res = parts.train_tagger(inputs, features, targets)
    model, drafted = parts.train_drafter(inputs, features, low_res)
    if "reader" not in run.metrics():
        found = find_passages(inputs, high_res, retrieval())
        writer = PromptWriter(low_res, high_res, found, mixed.facts)
        run.finish("reader", parts.train_reader(inputs, writer, model, drafted))
    run.forget_states()
    return run.metrics()


def _size(mixed: Mixture, settings: Stage1Settings, device: torch.device) -> str:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    return (
        f"{len(mixed.examples):,} questions on {len(mixed.photos):,} photos, "
        f"{memory_bytes(mixed, settings) / 1e9:.1f} GB of features, on {where}: about "
        f"{duration(SECONDS[device.type] * len(mixed.examples))}"
    )


def memory_bytes(mixed: Mixture, settings: Stage1Settings) -> int:
    """Of the photos' features, most of what is kept on the device."""
    views = settings.views * photos.CELLS + 2 * (photos.WINDOWS + photos.CROPS)
    return 2 * len(mixed.photos) * views * efficientnet_lite.LITE2.features


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3_600:.0f} h"


def check_enough(mixed: Mixture, groups: Mapping[str, Tensor], answers: Sequence[str]) -> None:
    """Before anything is computed: there is something to train on and something to choose by."""
    known = set(answers)

    def answered(name: str) -> bool:
        rows = groups.get(name, torch.zeros(0)).tolist()
        return any(not known.isdisjoint(mixed.examples[row].answers) for row in rows)

    if not all(map(answered, (HELD_OUT, PERCEPTUAL, "okvqa/train", "coco/train"))):
        raise UserError("too few questions to train on and to choose by: raise the limit")
