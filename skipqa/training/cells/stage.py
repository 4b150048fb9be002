"""The cell tagger: it learns what each token of the frozen vision encoder shows.

Enters: the mixture of stage I with COCO's boxes, the vision encoder and the tagger that it goes on
from. Leaves: a cell tagger, calibrated on held-out composites, if on held-out composites and on
held-out photos it names boxes at least as often as the tagger's windows do. Scenes are made anew in
every step, most by pasting (`scenes.py`), the others photos as they are. Whatever else the folder
has stays; what of it reads tokens was learned with other evidence, and the metrics name it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch

from skipqa.backbones.device import chosen_device
from skipqa.backbones.presets.pocket import FineTuned, Pocket
from skipqa.backbones.presets.pocket_vision import TaggedVision
from skipqa.components import OF_TOKENS, load_for
from skipqa.config import Count, Fraction, NonNegative, Weight
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.cell_tagger import CellTagger, CellTaggerConfig
from skipqa.training.cells.album import names_of
from skipqa.training.cells.material import COMPOSITES, PHOTOS, Material
from skipqa.training.cells.quality import CELLS, WINDOWS, feature_maps, quality
from skipqa.training.cells.scenes import (
    Scenes,
    check_scales,
    composed,
    photographed,
    together,
)
from skipqa.training.cells.targets import Targets
from skipqa.training.export import copy_components, ship
from skipqa.training.grounding.examples import read_boxes
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation, fit
from skipqa.training.pathway.context import TRAINED
from skipqa.training.pipelines import Source, components_digest
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import mixture

PART = "cell_tagger"
TEMPERATURES = (0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0)
OFFSETS = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0)  # of the logit of none


@dataclass(frozen=True, slots=True)
class CellTraining:
    steps: Count = 1_500
    lr: LearningRate = 2e-3
    warmup: NonNegative = 100
    batch: Count = 64  # composites
    boxed: NonNegative = 16  # photos of COCO as they are
    pasted: NonNegative = 8  # and of Pocket-KB
    weight_decay: Decay = 0.05
    hidden: Count = 448
    dropout: Fraction = 0.2
    ema_decay: Weight = 0.995


@dataclass(frozen=True, slots=True)
class CellSettings:
    train: CellTraining = field(default_factory=CellTraining)
    calibrated_on: Count = 256  # composites
    scored: Count = 640  # composites, and photos of each kind


@dataclass(frozen=True, slots=True)
class CellStage(TrainingStage):
    settings: CellSettings

    def run(self, inputs: Inputs, settings: CellSettings, run: Run) -> Metrics:
        data, pocket_kb = inputs.require_data(self.name), inputs.pocket_kb
        source = Source(inputs.preset, inputs.components, inputs.index)
        check_scales(source.config.encode)
        whole = mixture.read(data, pocket_kb, inputs.limit)
        run.claim(
            {
                "stage": self.name,
                "seed": run.seed,
                "limit": inputs.limit,
                "preset": inputs.preset,
                "components": components_digest(source.folder, (PART,)),
                "scales": source.config.encode.scales,
                "mixture": whole.fingerprint(),
                "settings": dataclasses.asdict(settings),
            }
        )
        if PART not in run.metrics():
            copy_components(source.folder, run.folder)
            vision, boxes = vision_of(source), read_boxes(data)
            names = names_of(whole, boxes, vision.tagger.config)
            counted = run.counted("decoding photos")
            material = Material.of(whole, boxes, names, counted, run.say)
            model = train(material, vision, settings.train, run)
            model.rescale(*calibrated(model, material, vision, settings, run.seed))
            path = run.folder / TRAINED / f"{PART}.safetensors"
            checkpoint.save(model, path, preset=inputs.preset, eight_bit=True)
            checkpoint.load(model, path, preset=inputs.preset)
            scored = quality(model.eval(), vision, material.scored(settings.scored, run.seed + 1))
            again: list[str] = []
            if ships := names_better(scored):
                ship(path, run.folder)
                again = learned_without(run)
            about = {"ships": ships, "train_again": again, "names": len(model.config.names)}
            run.finish(PART, {**about, **scored})
        run.forget_states()
        return run.metrics()


STAGE = CellStage("cells", CellSettings(), needs_pocket="it reads maps of pocket's vision encoder")


def vision_of(source: Source) -> TaggedVision:
    """The trained encoder and its tagger, on the device of training."""
    learned = load_for(source.preset, source.folder)
    tuned = FineTuned(learned.tagger, learned.vision)
    vision = Pocket(source.config.encode, learned=tuned).vision
    if not isinstance(vision, TaggedVision):
        raise UserError(f"{source.folder} holds no tagger, whose names cells are to have")
    return vision.whole_on(chosen_device())


def train(material: Material, vision: TaggedVision, settings: CellTraining, run: Run) -> CellTagger:
    names = material.train.names
    torch.manual_seed(run.seed)
    config = CellTaggerConfig(
        names=tuple(name for _, name in names),
        kinds=tuple(kind for kind, _ in names),
        width=vision.network.config.features,
        hidden=settings.hidden,
        dropout=settings.dropout,
    )
    model = CellTagger(config).to(chosen_device())
    steps = Optimisation(
        settings.steps, settings.lr, settings.warmup, settings.weight_decay, settings.ema_decay
    )
    return fit(PART, model, loss_of(material, vision, settings, model, run.seed), steps, run)


def loss_of(
    material: Material, vision: TaggedVision, settings: CellTraining, model: CellTagger, seed: int
) -> Loss:
    album, pixels = material.train, material.pixels
    device = next(model.parameters()).device

    def drawn(step: int) -> Scenes:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        parts = [composed(album, pixels, settings.batch, generator)]
        for some, count in ((album.boxed, settings.boxed), (album.pasted, settings.pasted)):
            if some and count:
                chosen = torch.randint(len(some), (count,), generator=generator).tolist()
                photographs = [some[i] for i in chosen]
                parts.append(photographed(pixels, photographs, len(album.names)))
        return together(*parts)

    def loss(step: int) -> torch.Tensor:
        scenes = drawn(step)
        with torch.no_grad():
            maps = feature_maps(vision, scenes)
        targets = Targets.of(scenes, maps[-1].shape[-1], device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(*maps)
        return targets.loss(logits)

    return loss


@torch.inference_mode()
def calibrated(
    model: CellTagger, material: Material, vision: TaggedVision, settings: CellSettings, seed: int
) -> tuple[float, float]:
    """The temperature, and what to add to the logit of none, with the least held-out loss."""
    total = {(t, none): 0.0 for t in TEMPERATURES for none in OFFSETS}
    for scenes in material.composites(settings.calibrated_on, seed):
        maps = feature_maps(vision, scenes)
        logits = model(*maps)
        targets = Targets.of(scenes, maps[-1].shape[-1], logits.device)
        for temperature, none in total:
            changed = logits / temperature
            changed[..., -1] += none
            total[temperature, none] += float(targets.loss(changed))
    return min(total, key=lambda pair: (total[pair], pair != (1.0, 0.0)))


def learned_without(run: Run) -> list[str]:
    """What reads tokens next to the new cell tagger, and learned what they show before it."""
    found = [name for name in OF_TOKENS if (run.folder / f"{name}.safetensors").is_file()]
    if found:
        run.say(f"learned with other evidence than tokens have now: train again {', '.join(found)}")
    return found


def names_better(scored: Metrics) -> bool:
    """At least as many boxes, in composites and in photos in which nothing was pasted."""
    compared = [scored[what] for what in (COMPOSITES, PHOTOS) if what in scored]
    return bool(compared) and all(
        of[CELLS]["all"]["named"] >= of[WINDOWS]["all"]["named"] for of in compared
    )
