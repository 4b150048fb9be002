"""The grounding of QVS: it learns where the thing is that a question asks about.

Enters: questions with boxes (`examples.py`), the components of stage I. Leaves: a grounding, if on
held-out photos it points at the right thing and finds its passages at least as often as the rule it
begins with; and how much regions count by their saliency then.

The loss of a question whose boxes are known: the cross-entropy of a token inside them, which ranks
tokens, a cross-entropy of each token by itself, balanced between inside and outside, which makes
sigmoid(s_i) a probability, and the appendix's 0.1 (mean sigmoid(s_i) - rho)^2. Where no box is
known, the rule's own distribution over tokens is the target: the grounding has to leave it alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.backbones.device import chosen_device
from skipqa.backbones.presets.pocket import Pocket
from skipqa.backbones.presets.pocket_vision import PocketVision
from skipqa.components import SETTINGS, change_settings
from skipqa.config import Count, Fraction, NonNegative, Weight
from skipqa.costs.environment import available_cores
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.grounding import Grounding, GroundingConfig
from skipqa.nn.saliency import squared_budget_loss
from skipqa.pipeline import Pipeline
from skipqa.stages.encode import Encode
from skipqa.stages.regions import in_box
from skipqa.training.export import copy_components, ship
from skipqa.training.grounding.encode import Tables, encode_photos, encode_questions
from skipqa.training.grounding.examples import (
    GroundedExample,
    grounded_examples,
    read_boxes,
)
from skipqa.training.grounding.quality import pointing
from skipqa.training.grounding.retrieval import RULE, Recall, best_sharpness, recall, way
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation, batches, fit
from skipqa.training.pathway import gather
from skipqa.training.pathway.context import TRAINED
from skipqa.training.pathway.gather import Gathered
from skipqa.training.pathway.stage2_saliency import gold_loss
from skipqa.training.pipelines import Source, open_workers
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import mixture

PART = "grounding"
RETRIEVAL = "retrieval"
ENOUGH = 100  # held-out questions of a source, for it to have a say: three of 25 are chance


@dataclass(frozen=True, slots=True)
class GroundingTraining:
    steps: Count = 4_000
    lr: LearningRate = 1e-3
    warmup: NonNegative = 200
    batch: Count = 64
    weight_decay: Decay = 0.05
    dropout: Fraction = 0.1
    width: Count = 128
    layers: Count = 2
    variant: Literal["A", "B"] = "A"
    low_res: Fraction = 0.2  # of the batches
    rivals: Count = 2  # how often a question comes whose thing is not the only one of its kind
    rho: Fraction = 0.11  # the paper's
    unboxed: NonNegative = 600  # questions of each source that know no box
    unboxed_weight: Weight = 0.5


@dataclass(frozen=True, slots=True)
class GroundingSettings:
    train: GroundingTraining = field(default_factory=GroundingTraining)
    crowded: NonNegative = 400  # held-out questions that are looked up to compare and to choose by
    small: NonNegative = 300  # the same, of one small thing
    workers: NonNegative = 0  # processes; 0: as many as there are cores


@dataclass(frozen=True, slots=True)
class GroundingStage(TrainingStage):
    settings: GroundingSettings

    def run(self, inputs: Inputs, settings: GroundingSettings, run: Run) -> Metrics:
        data, pocket_kb = inputs.require_data(self.name), inputs.require_pocket_kb(self.name)
        source = Source(inputs.preset, inputs.components, inputs.index)
        whole = mixture.read(data, pocket_kb, inputs.limit)
        examples = grounded_examples(whole, read_boxes(data), settings.train.unboxed, run.seed)
        run.claim(
            {
                "stage": self.name,
                "seed": run.seed,
                "limit": inputs.limit,
                **source.fingerprint((PART,)),
                "mixture": whole.fingerprint(),
                "settings": dataclasses.asdict(settings),
            }
        )
        if PART not in run.metrics():
            pipeline = source.load()
            tables = encode_all(pipeline, whole, examples, run)
            model = train(tables, examples, settings.train, run)
            pointed = {
                split: pointing(model, tables, examples, split) for split in ("held-out", "val")
            }
            copy_components(source.folder, run.folder)
            preset = pipeline.config.preset
            checkpoint.save(model.cpu(), _trained(run), preset=preset, eight_bit=True)
            run.finish(PART, {"points": points_better(pointed["held-out"]), **pointed})
        if RETRIEVAL not in run.metrics():
            rows = gather.draw(data, pocket_kb, _counts(settings, inputs.limit), run.seed)
            finished(run, recall_of(rows, source, settings.workers, run))
        run.forget_states()
        return run.metrics()


STAGE = GroundingStage(
    "grounding", GroundingSettings(), needs_pocket="it reads maps of pocket's vision encoder"
)


def encode_all(
    pipeline: Pipeline, whole: mixture.Mixture, examples: Sequence[GroundedExample], run: Run
) -> Tables:
    vision, encode = _vision(pipeline), pipeline.stages["encode"]
    assert isinstance(encode, Encode)
    questions = list(dict.fromkeys(example.question for example in examples))
    asked = encode_questions(
        encode, pipeline.backbone.concepts, questions, run.counted("encoding questions")
    )
    needed, device = {example.photo for example in examples}, chosen_device()
    photos = encode_photos(
        vision,
        {place: row for place, row in whole.photos.items() if row in needed},
        pipeline.config.encode,
        device,
        available_cores(),
        run.counted("encoding photos"),
    )
    return Tables(photos, asked.to(device), pipeline.config.prune)


def _vision(pipeline: Pipeline) -> PocketVision:
    if not isinstance(pipeline.backbone, Pocket):
        raise UserError("grounding is trained on the pocket's vision encoder")
    return pipeline.backbone.vision


def train(
    tables: Tables, examples: Sequence[GroundedExample], settings: GroundingTraining, run: Run
) -> Grounding:
    device = tables.photos.low_res.features_PVF.device
    torch.manual_seed(run.seed)
    model = Grounding(grounding_config(tables, settings)).to(device)
    steps = Optimisation(settings.steps, settings.lr, settings.warmup, settings.weight_decay)
    return fit(PART, model, loss_of(tables, examples, settings, model, run.seed), steps, run)


def grounding_config(tables: Tables, settings: GroundingTraining) -> GroundingConfig:
    view = tables.photos.low_res
    return GroundingConfig(
        vision_width=view.features_PVF.shape[2],
        concepts=view.overview_PC.shape[1],
        text_width=tables.questions.states[0].shape[1],
        width=settings.width,
        layers=settings.layers,
        variant=settings.variant,
        dropout=settings.dropout,
    )


def loss_of(
    tables: Tables,
    examples: Sequence[GroundedExample],
    settings: GroundingTraining,
    model: Grounding,
    seed: int,
) -> Loss:
    rows = [i for i, one in enumerate(examples) if one.split == "train"]
    if not rows:
        raise UserError("nothing to learn from: no training question knows where its thing is")
    again = [i for i in rows if examples[i].rivals] * (settings.rivals - 1)
    draw = batches([torch.tensor(rows + again)], settings.batch, seed)

    def loss(step: int) -> Tensor:
        high_res = float(torch.rand(())) >= settings.low_res
        some = [examples[i] for i in draw(step).tolist()]
        batch = tables.batch([e.photo for e in some], [e.question for e in some], high_res)
        logits_BV = model(batch.scene, batch.states_BTd, batch.there_BT)
        inside_BV = torch.stack([inside(one, batch.scene.grid) for one in some])
        inside_BV = inside_BV.to(logits_BV.device)
        boxed_B = inside_BV.any(1)
        total = squared_budget_loss(logits_BV, settings.rho)
        if bool(boxed_B.any()):
            total = total + box_loss(logits_BV[boxed_B], inside_BV[boxed_B])
        if not bool(boxed_B.all()):
            kept = rule_loss(logits_BV[~boxed_B], batch.scene.rule_BV[~boxed_B])
            total = total + settings.unboxed_weight * kept
        return total

    return loss


def box_loss(logits_BV: Tensor, inside_BV: Tensor) -> Tensor:
    """Which token shows the thing, and whether each does."""
    ranked = gold_loss(logits_BV, inside_BV, torch.ones_like(inside_BV))
    each_BV = F.binary_cross_entropy_with_logits(
        logits_BV, inside_BV.to(logits_BV), reduction="none"
    )
    outside_BV = ~inside_BV
    balanced = (each_BV * inside_BV).sum() / inside_BV.sum().clamp(min=1)
    balanced = balanced + (each_BV * outside_BV).sum() / outside_BV.sum().clamp(min=1)
    return ranked + balanced / 2


def rule_loss(logits_BV: Tensor, rule_BV: Tensor) -> Tensor:
    """The divergence from the rule's distribution over tokens."""
    return F.kl_div(
        logits_BV.log_softmax(1), rule_BV.log_softmax(1), log_target=True, reduction="batchmean"
    )


def inside(example: GroundedExample, grid: int) -> Tensor:
    """[V] bool: the tokens in any of its boxes."""
    found = torch.zeros(grid * grid, dtype=torch.bool)
    for box in example.boxes:
        found |= in_box(box, grid)
    return found


def points_better(compared: Metrics) -> bool:
    """At least as often as the rule, in every source and by every measure."""
    return all(
        of_source["trained"][name] >= of_source["rule"][name]
        for of_source in compared.values()
        if of_source["questions"] >= ENOUGH
        for name in of_source["trained"]
    )


def recall_of(rows: Sequence[Gathered], source: Source, processes: int, run: Run) -> Recall:
    """Through pipelines that have the grounding, whether it ships or not."""
    with TemporaryDirectory(dir=run.folder) as folder:
        copy_components(source.folder, Path(folder))
        ship(_trained(run), Path(folder))  # not through a link to what it began with
        with_it = dataclasses.replace(source, components=Path(folder))
        with open_workers(with_it, processes or None) as workers:
            return recall(rows, workers, run.counted("looking up"))


def finished(run: Run, found: Recall) -> None:
    """It ships if it points better and, with the best sharpness, finds as much in every source."""
    sharpness = best_sharpness(found)
    finds = all(of[way(sharpness)] >= of[RULE] for of in found.values())
    ships = finds and run.metrics()[PART]["points"]
    if ships:
        ship(_trained(run), run.folder)
        change_settings(run.folder / SETTINGS, retrieve={"region_sharpness": sharpness})
    run.finish(RETRIEVAL, {"ships": ships, "sharpness": sharpness, "recall": found})


def _trained(run: Run) -> Path:
    return run.folder / TRAINED / f"{PART}.safetensors"


def _counts(settings: GroundingSettings, limit: int | None) -> dict[str, int]:
    counts = {"crowded/held-out": settings.crowded, "pocket-kb/held-out": settings.small}
    return {kind: min(count, limit or count) for kind, count in counts.items()}
