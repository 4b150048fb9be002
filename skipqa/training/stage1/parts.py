"""The four parts of stage I: encoder, tagger, drafter, reader. Each exports its files and metrics.

Enters: the inputs of the stage and what the parts before exported. Leaves: files in the run's
folder, and what the next part reads. A part that an earlier call finished is read, not trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from skipqa.data.held_out import Split
from skipqa.files import atomic
from skipqa.nn import checkpoint
from skipqa.nn.drafter import ABSTAIN, Drafter, DrafterConfig
from skipqa.nn.tagger import TaggerConfig
from skipqa.training.example import TrainExample
from skipqa.training.export import Truncation, export, read_back, write_delta
from skipqa.training.stage import Metrics
from skipqa.training.stage1 import drafter, encoder, mixture, photos, reader, tagger
from skipqa.training.stage1.drafter import (
    TRAIN_GROUPS,
    DrafterEval,
    DrafterInputs,
    DrafterModel,
    Questions,
)
from skipqa.training.stage1.encoder import LabelledPhotos
from skipqa.training.stage1.inputs import HELD_OUT, PERCEPTUAL, StageInputs
from skipqa.training.stage1.photos import PhotoFeatures, Things
from skipqa.training.stage1.pocket_kb import Thing
from skipqa.training.stage1.reader import ReaderTrainer
from skipqa.training.stage1.reader_quality import PromptMaker, ReaderEval
from skipqa.training.stage1.reading import PromptWriter
from skipqa.training.stage1.tagger import TagProbs, Targets
from skipqa.training.stage1.words import Words, best_words, embed
from skipqa.types import Box

PRESET = "pocket"
SMALL = 0.1  # of an image's area
VISION, TAGGER, DRAFTER, QUESTION, READER = (
    f"{name}.safetensors" for name in ("vision", "tagger", "drafter", "question", "reader")
)


def finetune_encoder(inputs: StageInputs, targets: Targets) -> PhotoFeatures:
    """The features of all photos, with the encoder as it is exported."""
    run, settings, mixed = inputs.run, inputs.settings, inputs.mixed
    pixels = photos.decode(mixed.photos, run.counted("decoding photos"))
    things, published = Things.of(mixed), inputs.networks.vision.float().to(inputs.device)
    path = run.folder / VISION
    if "encoder" not in run.metrics():
        labelled = LabelledPhotos(pixels, things, targets, mixed.train_photos())
        tuned = encoder.finetune(published, labelled, run, settings.encoder)
        write_delta(tuned, published.state_dict(), path, preset=PRESET)
        run.finish("encoder", {"photos": len(labelled.rows), "of_things": len(mixed.things)})
    return see(inputs, pixels, path, views=settings.views)


def see(
    inputs: StageInputs,
    pixels: Tensor,
    delta: Path,
    *,
    views: int,
    crops: int = photos.CROPS,
    bfloat16: bool = False,
) -> PhotoFeatures:
    """The features of all photos, with the encoder as a file has it."""
    published = inputs.networks.vision.float().to(inputs.device)
    exported = copy.deepcopy(published).eval()
    read_back(exported, published.state_dict(), delta)
    things, counted = Things.of(inputs.mixed), inputs.run.counted("seeing photos")
    return photos.extract(
        *(exported, pixels, things),
        views=views,
        crops=crops,
        bfloat16=bfloat16,
        counted=counted,
    )


def train_tagger(
    inputs: StageInputs, features: PhotoFeatures, targets: Targets
) -> tuple[Words, Words]:
    """The words of every photo, at low and at high resolution."""
    networks, run, device = inputs.networks, inputs.run, inputs.device
    text = networks.text.float().to(device)
    config = TaggerConfig(
        targets.names,
        targets.kinds,
        width=features.views.shape[-1],
        text_width=text.config.width,
    )
    tag_words = [config.word(i) for i in range(len(targets.names))]
    meanings = embed(text, networks.text_tokenizer, tag_words)
    path = run.folder / "state" / "tag_probs.safetensors"
    if "tagger" not in run.metrics() or not path.exists():
        trained, probs = tagger.train(features, targets, config, run, inputs.settings.tagger)
        trained.meanings.copy_(meanings)
        checkpoint.save(trained, run.folder / TAGGER, preset=PRESET, eight_bit=True)
        with atomic(path) as partial:
            save_file({"low_res": probs.low_res.cpu(), "high_res": probs.high_res.cpu()}, partial)
        crowded = {
            split: tagger.recognised_in_crowds(trained, features, targets, things)
            for split, things in inputs.mixed.checks.items()
        }
        metrics = _tagger_metrics(inputs, targets, probs)
        run.finish("tagger", metrics | {"recognised_in_crowds": crowded})
    return words_shown(inputs, features, config, meanings, TagProbs(**load_file(path)))


def words_shown(
    inputs: StageInputs,
    features: PhotoFeatures,
    config: TaggerConfig,
    meanings: Tensor,
    probs: TagProbs,
) -> tuple[Words, Words]:
    """The words of every photo, at low and at high resolution, from a tagger's probabilities and
    the encoder's own."""
    known, device = inputs.networks.concepts, inputs.device
    names = word_names(inputs, config)
    embeddings = torch.cat((meanings.to(device), known.embeddings.to(device)))
    low_res, high_res = (
        best_words(names, embeddings, prob.to(device), features.overview, inputs.settings.words)
        for prob in (probs.low_res, probs.high_res)
    )
    return low_res, high_res


def word_names(inputs: StageInputs, config: TaggerConfig) -> tuple[str, ...]:
    """All words that an image may have: the tagger's, then the encoder's own classes."""
    tag_words = (config.word(i) for i in range(len(config.names)))
    return (*tag_words, *(concept.name for concept in inputs.networks.concepts.entries))


def _tagger_metrics(inputs: StageInputs, targets: Targets, probs: TagProbs) -> Metrics:
    shown: dict[str, dict[Split, dict[int, Thing]]] = {"all": {}, "small": {}}
    for split, things in inputs.mixed.checks.items():
        alone = {photo: some[0] for photo, some in things.items() if len(some) == 1}
        small = {p: one for p, one in alone.items() if one.box and _area(one.box) < SMALL}
        shown["all"][split], shown["small"][split] = alone, small
    return {"names": len(targets.names)} | {
        when: {
            "cross_fitted_map": tagger.mean_average_precision(prob.cpu(), targets.labels),
            "recognised": {
                size: {name: tagger.recognised(prob, targets, some) for name, some in sets.items()}
                for size, sets in shown.items()
            },
        }
        for when, prob in (("low_res", probs.low_res), ("high_res", probs.high_res))
    }


def train_drafter(
    inputs: StageInputs, features: PhotoFeatures, words: Words
) -> tuple[DrafterModel, dict[str, Tensor]]:
    """The drafter as it is exported, and its logits for all scored questions."""
    examples, run = inputs.mixed.examples, inputs.run
    answers = (ABSTAIN, *mixture.answer_vocabulary(examples, inputs.settings.answers))
    questions = Questions(examples, answers, inputs.networks.text_tokenizer, inputs.device)
    evaluation = DrafterEval(inputs.scored, DrafterInputs(questions, features, words))
    if "drafter" in run.metrics():
        model = _exported_drafter(inputs)
        return model, evaluation.all_logits(model)
    metrics = _fit_drafter(inputs, evaluation, answers)
    model = _exported_drafter(inputs)
    drafted = evaluation.all_logits(model)
    blind = evaluation.accuracies(evaluation.all_logits(model, blind=True))
    run.finish("drafter", metrics | {"shipped": evaluation.accuracies(drafted), "blind": blind})
    return model, drafted


def _fit_drafter(inputs: StageInputs, evaluation: DrafterEval, answers: tuple[str, ...]) -> Metrics:
    """Writes both files."""
    settings, run, features = inputs.settings, inputs.run, evaluation.inputs.features
    text, tokenizer = inputs.networks.text, inputs.networks.text_tokenizer
    names = embed(text, tokenizer, [answer or "look up" for answer in answers])
    model = drafter.build(answers, names, copy.deepcopy(text), features, settings.drafter, run.seed)
    model.drafter.log_frequency.copy_(log_frequency(answers, inputs.mixed.examples))
    model = drafter.train(model, evaluation.inputs, inputs.groups, run, settings.drafter)
    accuracies = evaluation.accuracies(evaluation.all_logits(model))
    evaluation.calibrate(model, (HELD_OUT, PERCEPTUAL))
    path = run.folder / DRAFTER
    checkpoint.save(model.drafter, path, preset=PRESET, eight_bit=True)
    checkpoint.load(model.drafter, path, preset=PRESET)
    accuracy = partial(evaluation.accuracy, model, HELD_OUT)
    ranks = _export(inputs, model.text, text, accuracy, run.folder / QUESTION)
    return {"all_weights": accuracies, "ranks": ranks}


def log_frequency(answers: Sequence[str], examples: Iterable[TrainExample]) -> Tensor:
    """[answers]: smoothed, relative to all of the vocabulary; to abstain counts as the rarest."""
    known = mixture.answer_counts(examples)
    counts = torch.tensor([known[answer] + 1.0 for answer in answers if answer != ABSTAIN])
    log_freq = (counts / counts.sum()).log()
    return torch.cat((log_freq.min()[None], log_freq))


def _exported_drafter(inputs: StageInputs) -> DrafterModel:
    folder = inputs.run.folder
    exported = Drafter(checkpoint.read_config(folder / DRAFTER, DrafterConfig))
    checkpoint.load(exported, folder / DRAFTER, preset=PRESET)
    return drafter_model(inputs, exported, folder / QUESTION)


def drafter_model(inputs: StageInputs, exported: Drafter, question: Path) -> DrafterModel:
    """An exported drafter with its question encoder, whose delta is in a file."""
    text = inputs.networks.text
    model = DrafterModel(exported, copy.deepcopy(text)).to(inputs.device).eval()
    read_back(model.text, text.state_dict(), question)
    return model


def train_reader(
    inputs: StageInputs, writer: PromptWriter, model: DrafterModel, drafted: dict[str, Tensor]
) -> Metrics:
    networks, run, settings = inputs.networks, inputs.run, inputs.settings
    decoder = copy.deepcopy(networks.decoder).float().to(inputs.device)
    make = PromptMaker(inputs, writer)
    questions = make.to_train_on(inputs.groups[name].tolist() for name in TRAIN_GROUPS)
    trainer = ReaderTrainer(questions, run, settings.reader)
    decoder = reader.train(decoder, trainer, rank=max(settings.ranks))
    evaluation = ReaderEval.of(inputs, make)
    accuracy = partial(evaluation.accuracy, decoder, "found", HELD_OUT)
    ranks = _export(inputs, decoder, networks.decoder, accuracy, run.folder / READER)
    shipped = evaluation.accuracies(decoder)
    reads = {"prompt": "short", "lower_case": True, "passages": "auto"}
    return {"ranks": ranks, "shipped": shipped} | evaluation.rank(decoder, model, drafted, reads)


def _export(
    inputs: StageInputs,
    network: nn.Module,
    published: nn.Module,
    accuracy: Callable[[], float],
    path: Path,
) -> Metrics:
    truncation = Truncation(inputs.settings.ranks, inputs.settings.max_loss)
    return export(network, published.state_dict(), accuracy, path, truncation, preset=PRESET)


def _area(box: Box) -> float:
    left, top, right, bottom = box
    return (right - left) * (bottom - top)
