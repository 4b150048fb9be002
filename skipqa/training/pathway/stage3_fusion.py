"""Stage III, fusion (BSCA): local tokens learn to read passages for the decoder.

Enters: gathered records with the features of kept tokens, the decoder as it reads text today.
Leaves: a fusion reader (`nn/fusion_reader.py`), and how held-out questions are answered with it and
by text. It ships, with `decode.passages`, by the rule in `fusion_quality.py`. There are up to three
phases:

1. to point: which passages are gold and where in them the answer stands, from questions of the
   records and generated ones; the decoder has been through all texts before and takes no part;
2. to answer, with a frozen decoder, also questions to which no passage is known; tau_G falls along
   a cosine from 1.0 to 0.1 and tau_e rises from 0.3 to 0.6 over both phases. Every other step reads
   along the edges that the rule keeps, as answering does, the others along all of them;
3. where `decoder_steps` says so, the decoder is trained, too, at a lower lr, and leaves as another
   delta of the reader. Text is compared as read by the decoder from before.

`fusion_loss.py` has the losses. The region queries of this stage have a file of their own
(`stage3_region_query.py`) and come first.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skipqa.backbones.networks.llama import Llama
from skipqa.backbones.presets.pocket import Pocket
from skipqa.backbones.weights import convert, loading
from skipqa.config import Count, Fraction, NonNegative, Weight
from skipqa.errors import UserError
from skipqa.nn.fusion_reader import FusionReader, FusionReaderConfig, Opening, check_window
from skipqa.nn.relaxation import cosine_schedule, linear_schedule
from skipqa.stages.readers import prompt_of
from skipqa.training.export import Truncation, export, ship
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation, fit
from skipqa.training.pathway.context import TRAINED, TrainingContext
from skipqa.training.pathway.fusion_examples import (
    Scenes,
    answerable,
    from_records,
    generated,
)
from skipqa.training.pathway.fusion_loss import (
    FusionTables,
    LossWeights,
    Offer,
    ReaderNetworks,
    losses,
    pointing_losses,
)
from skipqa.training.pathway.fusion_quality import (
    FUSED_BEST,
    HeldOut,
    compare_reading,
    fusion_ships,
)
from skipqa.training.pathway.gains import pocket_of
from skipqa.training.pathway.read_today import read_as_text
from skipqa.training.pathway.stage import PathwayPart, PathwaySettings, PathwayStage
from skipqa.training.pathway.stage3_region_query import RegionQueryPart, RegionQueryTraining
from skipqa.training.sampling import inverse_frequency
from skipqa.training.stage import Metrics
from skipqa.training.stage1.pocket_kb import scored

TAU_G, TAU_E = (1.0, 0.1), (0.3, 0.6)
TEXTS_AT_ONCE = 256  # through the text encoder
READER = "reader"


@dataclass(frozen=True, slots=True)
class FusionTraining:
    pointing_steps: NonNegative = 4_000
    pointing_batch: Count = 512
    steps: Count = 1_500
    decoder_steps: NonNegative = 0
    lr: LearningRate = 1e-3
    decoder_lr_scale: Weight = 0.15
    warmup: NonNegative = 150
    batch: Count = 128
    weight_decay: Decay = 0.01
    pointers: Count = 3
    windows: Count = 2
    window: Count = 11
    before: NonNegative = 3
    early_layers: Count = 6
    edge_width: Count = 128
    variant: Literal["A", "B"] = "A"
    beta: Fraction = 0.2
    read: Count = 6  # passages that a question may read, the gold ones among them
    generated: NonNegative = 60_000  # questions
    copying: Fraction = 0.35  # of the questions are generated ones
    unanswered: Fraction = 0.1  # of the second phase's are questions without a known passage
    ranks: tuple[int, ...] = (16, 48, 144)  # of the decoder's delta
    max_loss: Fraction = 0.003  # of a smaller rank
    bfloat16: bool = False  # on a CPU, too: several times as fast on one that computes in it
    region_query: RegionQueryTraining = field(default_factory=RegionQueryTraining)
    weights: LossWeights = field(default_factory=LossWeights)

    def __post_init__(self) -> None:
        check_window(self.window, self.before)  # now, not after an hour of preparing questions


@dataclass(frozen=True, slots=True)
class FusionInputs:
    """What the losses read besides the steps."""

    networks: ReaderNetworks
    published: Callable[[], Mapping[str, Tensor]]  # weights that the decoder's delta is added to
    tables: FusionTables
    asked: Sequence[int]  # rows of the tables: questions of the records
    copied: Sequence[int]  # generated ones
    unanswered: Sequence[int]  # questions of the records without a known passage
    scenes: Scenes


Loaded = tuple[ReaderNetworks, Callable[[], Mapping[str, Tensor]]]  # and published weights
Networks = Callable[[TrainingContext, bool], Loaded]  # bfloat16
Openings = Callable[[int], Opening]  # of a step


def networks_of(context: TrainingContext, bfloat16: bool) -> Loaded:
    """The pocket's decoder as it reads today, on a GPU where there is one."""
    pocket, config = pocket_of(context.pipeline.backbone), context.pipeline.config.decode
    if config.prompt != "short":
        raise UserError("fused tokens are for a trained reader: begin with the components of one")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    decoder = copy.deepcopy(pocket.decoder).float().to(device).eval().requires_grad_(False)
    networks = ReaderNetworks(
        decoder,
        pocket.decoder_tokenizer,
        prompt_of(config),
        config.lower_case,
        lambda texts: embedded(context, texts),
        bfloat16 or device.type == "cuda",
    )
    return networks, lambda: published_weights(pocket)


def published_weights(pocket: Pocket) -> Mapping[str, Tensor]:
    folder = convert.decoder(pocket.report, None, published=pocket.published, weights="float32")
    return loading.load(lambda: Llama(pocket.published.config), folder).state_dict()


def embedded(context: TrainingContext, texts: Sequence[str]) -> Tensor:
    """By the text encoder, a few at a time: there are thousands."""
    parts = [texts[n : n + TEXTS_AT_ONCE] for n in range(0, len(texts), TEXTS_AT_ONCE)]
    none = torch.zeros(0, context.pipeline.backbone.widths.text)
    return torch.cat([none, *(context.embed(part) for part in parts)])


class FusionPart(PathwayPart[FusionTraining, FusionInputs, nn.ModuleDict]):
    """The model has a `fusion_reader` and, once that is trained, a `decoder`."""

    name = "fusion"

    def __init__(self, networks: Networks = networks_of) -> None:
        self.networks = networks

    def _networks(self, context: TrainingContext, settings: FusionTraining) -> Loaded:
        """Once: a decoder is large."""
        if self.name not in context.computed:
            context.computed[self.name] = self.networks(context, settings.bfloat16)
        found: Loaded = context.computed[self.name]
        return found

    def prepare(self, context: TrainingContext, settings: FusionTraining) -> FusionInputs:
        networks, published = self._networks(context, settings)
        records, concepts = context.records, context.pipeline.backbone.concepts
        num_concepts = len(concepts) - concepts.from_photos
        scenes = Scenes.of(records, num_concepts, networks.device)
        rows, unknown = (answerable(records, "train", known=known) for known in (True, False))
        today = context.spread(read_as_text, [*rows, *unknown], "verifying passages")
        asked = from_records(context, rows, today[: len(rows)])
        made = generated(context, rows, settings.generated, context.run.seed)
        others = from_records(context, unknown, today[len(rows) :])
        tables = FusionTables([*asked, *made, *others], scenes, networks)
        numbers, until = range(len(tables.examples)), len(asked) + len(made)
        kinds = numbers[: len(asked)], numbers[len(asked) : until], numbers[until:]
        return FusionInputs(networks, published, tables, *kinds, scenes)

    def build(self, context: TrainingContext, settings: FusionTraining) -> nn.ModuleDict:
        reader = context.learned.fusion_reader
        if reader is None:
            networks, _ = self._networks(context, settings)
            concepts, widths = context.pipeline.backbone.concepts, context.pipeline.backbone.widths
            config = FusionReaderConfig(
                widths.vision,
                len(concepts) - concepts.from_photos,
                widths.text,
                networks.decoder.config.width,
                networks.decoder.config.heads,
                networks.embedding_rms,
                early_layers=settings.early_layers,
                variant=settings.variant,
                edge_width=settings.edge_width,
                beta=settings.beta,
                pointers=settings.pointers,
                windows=settings.windows,
                window=settings.window,
                before=settings.before,
            )
            torch.manual_seed(context.run.seed)
            reader = FusionReader(config)
        return nn.ModuleDict({"fusion_reader": copy.deepcopy(reader).requires_grad_(True)})

    def loss(
        self,
        context: TrainingContext,
        settings: FusionTraining,
        data: FusionInputs,
        model: nn.ModuleDict,
    ) -> Loss:
        openings = annealed(settings.pointing_steps + settings.steps, settings.pointing_steps)
        return loss_at(context, settings, data, reader_of(model), openings)

    def optimisation(self, settings: FusionTraining) -> Optimisation:
        return Optimisation(settings.steps, settings.lr, settings.warmup, settings.weight_decay)

    def train(
        self, context: TrainingContext, settings: FusionTraining, data: FusionInputs
    ) -> nn.ModuleDict:
        model = self.build(context, settings).to(data.networks.device)
        run, whole = context.run, self.optimisation(settings)
        if settings.pointing_steps:
            openings = annealed(settings.pointing_steps + settings.steps)
            loss = pointing_at(context, settings, data, reader_of(model), openings)
            steps = replace(whole, steps=settings.pointing_steps)
            model = fit(f"{self.name}/point", model, loss, steps, run).train()
        model = fit(self.name, model, self.loss(context, settings, data, model), whole, run)
        if not settings.decoder_steps:
            return model
        decoder = copy.deepcopy(data.networks.decoder).requires_grad_(True)
        decoder.embedding.requires_grad_(False)  # what fused tokens are made of
        model = nn.ModuleDict({**model, "decoder": decoder}).train()
        loss = loss_at(context, settings, with_decoder(data, model), reader_of(model), sharp)
        steps = replace(whole, steps=settings.decoder_steps)
        scales = [(decoder, settings.decoder_lr_scale)]
        model = fit(f"{self.name}/decoder", model, loss, steps, run, scales)
        self._export_decoder(context, settings, data, model)
        return model

    def compare(
        self,
        context: TrainingContext,
        settings: FusionTraining,
        data: FusionInputs,
        model: nn.ModuleDict,
    ) -> Metrics:
        held_out = held_out_of(context, with_decoder(data, model))
        return {"held-out": compare_reading(reader_of(model), held_out, data.networks)}

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        return {"fusion_reader": fusion_ships(compared["held-out"])}

    def components(self, settings: FusionTraining, model: nn.ModuleDict) -> Mapping[str, nn.Module]:
        return {"fusion_reader": reader_of(model).cpu()}

    def chosen_settings(
        self, context: TrainingContext, compared: Metrics, ships: Mapping[str, bool]
    ) -> dict[str, dict[str, Any]]:
        return {"decode": {"passages": "fused+best"}} if ships["fusion_reader"] else {}

    def export(
        self,
        context: TrainingContext,
        settings: FusionTraining,
        model: nn.ModuleDict,
        ships: Mapping[str, bool],
    ) -> None:
        super().export(context, settings, model, ships)
        if "decoder" in model and ships["fusion_reader"]:  # they were compared together
            ship(context.run.folder / TRAINED / f"{READER}.safetensors", context.run.folder)

    def _export_decoder(
        self,
        context: TrainingContext,
        settings: FusionTraining,
        data: FusionInputs,
        model: nn.ModuleDict,
    ) -> None:
        """The smallest delta that loses next to nothing; the decoder is left as it will be read
        back, so that rounding is part of what is compared."""
        held_out, reader = held_out_of(context, with_decoder(data, model)), reader_of(model)

        def score() -> float:
            found = compare_reading(reader, held_out, data.networks)
            return float(found["scores"][FUSED_BEST])

        found = export(
            model["decoder"],
            data.published(),
            score,
            context.run.folder / TRAINED / f"{READER}.safetensors",
            Truncation(settings.ranks, settings.max_loss),
            preset=context.pipeline.config.preset,
        )
        context.run.say(f"the decoder's delta has rank {found['rank']}")


STAGE = PathwayStage("stage3", PathwaySettings(FusionTraining()), (RegionQueryPart(), FusionPart()))


def reader_of(model: nn.ModuleDict) -> FusionReader:
    reader = model["fusion_reader"]
    assert isinstance(reader, FusionReader)
    return reader


def with_decoder(data: FusionInputs, model: nn.ModuleDict) -> FusionInputs:
    """With the model's own decoder in place of the one it began with, where it has one."""
    if "decoder" not in model:
        return data
    decoder = model["decoder"]
    assert isinstance(decoder, Llama)
    networks = replace(data.networks, decoder=decoder)
    tables = copy.copy(data.tables)
    tables.networks = networks
    return replace(data, networks=networks, tables=tables)


def held_out_of(context: TrainingContext, data: FusionInputs) -> HeldOut:
    records = context.records
    rows = answerable(records, "held-out")
    today = context.spread(read_as_text, rows, "verifying passages")
    answers = [scored(records.about[i]["answers"]) for i in rows]
    examples = from_records(context, rows, today)
    before = replace(data.networks, decoder=data.tables.text_decoder)
    found = HeldOut.of(examples, today, answers, data.scenes, before)
    found.tables.networks = data.networks  # one that was trained may change until it is exported
    return found


def annealed(steps: int, start: int = 0) -> Openings:
    """Over all phases with a frozen decoder, of which `start` steps were made before."""
    return lambda step: Opening(
        cosine_schedule(*TAU_G, start + step, steps),
        linear_schedule(*TAU_E, start + step, steps),
        hard=step % 2 == 1,
    )


def sharp(step: int) -> Opening:
    """Where the schedules end."""
    return Opening(TAU_G[1], TAU_E[1], hard=step % 2 == 1)


def loss_at(
    context: TrainingContext,
    settings: FusionTraining,
    data: FusionInputs,
    reader: FusionReader,
    openings: Openings,
) -> Loss:
    """Of the batch of a step."""
    counts = {
        "copied": round(settings.copying * settings.batch),
        "unanswered": round(settings.unanswered * settings.batch),
    }
    offers_of = drawn(context, settings, data, settings.batch, counts)

    def loss(step: int) -> Tensor:
        draw, offers = offers_of(step)
        found = losses(reader, data.tables, offers, openings(step), settings.weights, draw)
        return torch.stack(list(found.values())).sum()

    return loss


def pointing_at(
    context: TrainingContext,
    settings: FusionTraining,
    data: FusionInputs,
    reader: FusionReader,
    openings: Openings,
) -> Loss:
    """As `loss_at`, without the decoder."""
    counts = {"copied": round(settings.copying * settings.pointing_batch)}
    offers_of = drawn(context, settings, data, settings.pointing_batch, counts)

    def loss(step: int) -> Tensor:
        _, offers = offers_of(step)
        found = pointing_losses(reader, data.tables, offers, openings(step), settings.weights)
        return torch.stack(list(found.values())).sum()

    return loss


def drawn(
    context: TrainingContext,
    settings: FusionTraining,
    data: FusionInputs,
    batch: int,
    counts: Mapping[str, int],
) -> Callable[[int], tuple[random.Random, list[Offer]]]:
    """What the questions of a step may read, and the step's draws: so many of some kinds, and the
    rest of the records' questions, rare categories as often as common ones."""
    seed, tables = context.run.seed, data.tables
    pools = {name: list(getattr(data, name)) for name in counts}
    of_pools = sum(counts[name] for name, pool in pools.items() if pool)
    asked = list(data.asked)
    categories = [tables.examples[row].category for row in asked]
    rare_alike = inverse_frequency(asked, categories, batch, seed)

    def at(step: int) -> tuple[random.Random, list[Offer]]:
        draw = random.Random(seed * 1_000_003 + step)
        rows = rare_alike(step).tolist()[: batch - of_pools]
        for name, pool in pools.items():
            rows += draw.choices(pool, k=counts[name]) if pool else []
        return draw, [tables.offer(row, settings.read, draw) for row in rows]

    return at
