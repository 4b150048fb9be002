"""Stage I, the backbone: learn what a picture is called, then to answer from that.

Enters: questions, labels and photos, and the published networks. Leaves in the run's folder:
`vision` (the tower), `tagger`, `drafter`, `question` (the drafter's text encoder) and `reader` (the
decoder) as safetensors, the networks as differences from the published weights, `settings.toml`
for the pipeline, and `metrics.json`. What is chosen by data (the temperature, how far the reader
heeds the drafter, when the drafter answers alone, the rank of a difference) is chosen on held-out
training photos; validation questions are only scored. Four parts follow each other, and each reads
what the one before it shipped.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from skipqa.assets import Report
from skipqa.backbones import concepts
from skipqa.backbones.concepts import Concepts
from skipqa.backbones.networks import efficientnet_lite
from skipqa.backbones.networks.bert import Bert
from skipqa.backbones.networks.efficientnet_lite import EfficientNetLite
from skipqa.backbones.networks.llama import SMOLLM2_135M, Llama
from skipqa.backbones.presets.pocket_vision import NUM_WORDS
from skipqa.backbones.text_encoder import MiniLm
from skipqa.backbones.weights import convert, loading
from skipqa.components import SETTINGS, write_settings
from skipqa.config import Between, Count, Fraction
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.drafter import ABSTAIN, Drafter, DrafterConfig
from skipqa.nn.tagger import TaggerConfig
from skipqa.training.export import export, read_back, write_delta
from skipqa.training.run import Run
from skipqa.training.stage1 import drafter as drafts
from skipqa.training.stage1 import encoder as encoder
from skipqa.training.stage1 import mixture, photos, reader
from skipqa.training.stage1 import routing as weighing
from skipqa.training.stage1 import tagger as tags
from skipqa.training.stage1.drafter import DrafterEval, DrafterModel, DraftTraining, Questions
from skipqa.training.stage1.encoder import EncoderTraining
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.photos import Seen, Things
from skipqa.training.stage1.reader import Form, Prompts, ReaderTraining, Seeing
from skipqa.training.stage1.tagger import TagProbs, TagTraining, Targets
from skipqa.training.stage1.words import Words, best_words, embed

PRESET = "pocket"
HELD_OUT = "okvqa/held-out"  # what everything is chosen on
PERCEPTUAL = "coco/held-out"  # and beside it, who may answer alone
SMALL = 0.1  # of a picture
PERCEPTUAL_RATIO = 4  # a question of these for so many of the others
# What the picture has to add to the question, facts beside neither, before later stages build on it
GATE = {"okvqa/val": 0.05, "pocket-kb/val": 0.15}
PARTS = ("encoder", "tagger", "drafter", "reader")
VISION, TAGGER, DRAFTER, QUESTION, READER = (
    f"{name}.safetensors" for name in ("vision", "tagger", "drafter", "question", "reader")
)


@dataclass(frozen=True, slots=True)
class Stage1:
    answers: Count = 4_000
    words: Count = NUM_WORDS  # of a picture; answering takes as many
    views: Annotated[int, Between(1, 8)] = 3
    ranks: Annotated[tuple[int, ...], Between(1, 1_000)] = (64, 144)  # the smallest that will do
    max_loss: Fraction = 0.003  # of held-out accuracy, for a smaller rank
    encoder: EncoderTraining = field(default_factory=EncoderTraining)
    tags: TagTraining = field(default_factory=TagTraining)
    drafts: DraftTraining = field(default_factory=DraftTraining)
    reader: ReaderTraining = field(default_factory=ReaderTraining)


@dataclass(frozen=True, slots=True)
class Networks:
    """The published networks that training starts from."""

    vision: EfficientNetLite
    text: Bert
    text_tokenizer: Tokenizer
    decoder: Llama
    decoder_tokenizer: Tokenizer
    concepts: Concepts  # of the vision tower's classes

    @staticmethod
    def pocket(report: Report = lambda _: None) -> Networks:
        texts, decoder = MiniLm(report), convert.decoder(report)
        return Networks(
            vision=loading.load(EfficientNetLite, convert.vision(report)),
            text=texts.network,
            text_tokenizer=texts.tokenizer,
            decoder=loading.load(lambda: Llama(SMOLLM2_135M), decoder),
            decoder_tokenizer=loading.load_tokenizer(decoder),
            concepts=concepts.load(lambda names: texts.encode(names).embeddings, report),
        )


@dataclass(frozen=True, slots=True)
class Lesson:
    """What all parts work with."""

    mixed: Mixture
    groups: dict[str, Tensor]  # rows of the examples, to train on and to score
    networks: Networks
    settings: Stage1
    run: Run
    device: torch.device

    @property
    def scored(self) -> dict[str, Tensor]:
        """Rows that nothing is trained on."""
        ends = ("held-out", "val")
        return {name: rows for name, rows in self.groups.items() if name.endswith(ends)}


def memory_bytes(mixed: Mixture, settings: Stage1) -> int:
    """Of the photos' features, the most of what is kept on the device."""
    views = settings.views * photos.CELLS + 2 * photos.WINDOWS
    return 2 * len(mixed.photos) * views * efficientnet_lite.LITE2.features


def run(
    mixed: Mixture,
    settings: Stage1,
    run: Run,
    device: torch.device,
    networks: Networks | None = None,
) -> dict[str, Any]:
    """A part that an earlier call finished is read, not trained; the metrics of all come back."""
    if all(part in run.metrics() for part in PARTS):
        return run.metrics()
    groups = group_rows(mixed)
    _check_enough(mixed, groups, settings)
    lesson = Lesson(mixed, groups, networks or Networks.pocket(run.say), settings, run, device)
    targets = tags.targets(mixed)
    seen = _see(lesson, targets)
    low_res, high_res = _learn_tags(lesson, seen, targets)
    drafter_model, drafted = _learn_to_draft(lesson, seen, low_res)
    if "reader" not in run.metrics():
        seeing = Seeing(low_res, high_res, _glosses(low_res, lesson.networks.concepts), mixed.facts)
        run.finish("reader", _learn_to_read(lesson, seeing, drafter_model, drafted))
    run.forget_states()
    return run.metrics()


def check_gate(metrics: Mapping[str, Any]) -> None:
    """Of a whole run, with Pocket-KB."""
    read = metrics["reader"]["shipped"]
    for name, least in GATE.items():
        added = read["unread"][name] - read["blind"][name]
        if added < least:
            raise UserError(
                f"the picture adds {100 * added:.1f} points to the question alone on {name}, and "
                f"{100 * least:.0f} are wanted before later stages build on it; --components takes "
                f"stage1's folder all the same"
            )


def group_rows(mixed: Mixture) -> dict[str, Tensor]:
    """By source and split. Of the held-out perceptual questions as many as there are of them
    among those that the fast path is judged by."""
    kinds = {(example.source, example.split) for example in mixed.examples}
    found = {name: torch.zeros(0, dtype=torch.long) for name in drafts.TAUGHT}
    for source, split in sorted(kinds):
        found[f"{source}/{split}"] = torch.tensor(mixed.select(source, split), dtype=torch.long)
    if PERCEPTUAL in found:
        wanted = max(1, len(found.get(HELD_OUT, ())) // PERCEPTUAL_RATIO)
        found[PERCEPTUAL] = found[PERCEPTUAL][:: max(1, len(found[PERCEPTUAL]) // wanted)]
    return found


def _check_enough(mixed: Mixture, groups: dict[str, Tensor], settings: Stage1) -> None:
    """Before anything is computed: there is something to learn and something to choose by."""
    answers = set(mixture.answer_vocabulary(mixed.examples, settings.answers))

    def answered(name: str) -> bool:
        rows = groups.get(name, torch.zeros(0)).tolist()
        return any(not answers.isdisjoint(mixed.examples[row].answers) for row in rows)

    if not all(map(answered, (HELD_OUT, PERCEPTUAL, "okvqa/train", "coco/train"))):
        raise UserError("too few questions to train on and to choose by: raise the limit")


def _see(lesson: Lesson, targets: Targets) -> Seen:
    """With the tower as it is shipped."""
    run, device, settings = lesson.run, lesson.device, lesson.settings
    pixels = photos.decode(lesson.mixed.photos, run.counted("decoding photos"))
    things, published = Things.of(lesson.mixed), lesson.networks.vision.float().to(device)
    path = run.folder / VISION
    if "encoder" not in run.metrics():
        rows = lesson.mixed.to_learn_from()
        taught = encoder.teach(
            published, pixels, things, targets, rows, run, settings.encoder, device
        )
        write_delta(taught, published.state_dict(), path, preset=PRESET)
        run.finish("encoder", {"photos": len(rows), "of_things": len(lesson.mixed.entities)})
    shipped = copy.deepcopy(published).eval()
    read_back(shipped, published.state_dict(), path)
    counted = run.counted("seeing photos")
    return photos.see(shipped, pixels, things, device, views=settings.views, counted=counted)


def _learn_tags(lesson: Lesson, seen: Seen, targets: Targets) -> tuple[Words, Words]:
    """The words of every photo, at a glance and after a closer look."""
    networks, run, device = lesson.networks, lesson.run, lesson.device
    text = networks.text.float().to(device)
    config = TaggerConfig(
        targets.names,
        targets.kinds,
        width=seen.features.shape[-1],
        text_width=text.config.width,
    )
    tag_words = [config.word(i) for i in range(len(targets.names))]
    meanings = embed(text, networks.text_tokenizer, tag_words)
    path = run.folder / "state" / "shares.safetensors"
    if "tagger" not in run.metrics() or not path.exists():
        tagger, probs = tags.train(seen, targets, config, run, lesson.settings.tags)
        tagger.meanings.copy_(meanings)
        checkpoint.save(tagger, run.folder / TAGGER, preset=PRESET, eight_bit=True)
        save_file({"low_res": probs.low_res.cpu(), "high_res": probs.high_res.cpu()}, path)
        run.finish("tagger", _tagged(lesson, targets, probs))
    known, found = networks.concepts, load_file(path)
    names = (*tag_words, *(concept.name for concept in known.entries))
    embeddings = torch.cat((meanings, known.embeddings.to(device)))
    low_res, high_res = (
        best_words(names, embeddings, prob.to(device), seen.overview, lesson.settings.words)
        for prob in (found["low_res"], found["high_res"])
    )
    return low_res, high_res


def _tagged(lesson: Lesson, targets: Targets, probs: TagProbs) -> dict[str, Any]:
    boxes = lesson.mixed.boxes
    shown = {"all": lesson.mixed.checks, "small": {}}
    for split, things in lesson.mixed.checks.items():
        small = {p: e for p, e in things.items() if p in boxes and math.prod(boxes[p][2:]) < SMALL}
        shown["small"][split] = small
    return {"names": len(targets.names)} | {
        when: {
            "cross_fitted_map": tags.mean_average_precision(prob.cpu(), targets.wanted),
            "recognised": {
                size: {name: tags.recognised(prob, targets, some) for name, some in sets.items()}
                for size, sets in shown.items()
            },
        }
        for when, prob in (("low_res", probs.low_res), ("high_res", probs.high_res))
    }


def _learn_to_draft(
    lesson: Lesson, seen: Seen, words: Words
) -> tuple[DrafterModel, dict[str, Tensor]]:
    """The drafter as it is shipped, and its logits for all scored questions."""
    examples, run = lesson.mixed.examples, lesson.run
    answers = (ABSTAIN, *mixture.answer_vocabulary(examples, lesson.settings.answers))
    questions = Questions(examples, answers, lesson.networks.text_tokenizer, lesson.device)
    drafter_eval = DrafterEval(lesson.scored, questions, seen, words)
    if "drafter" in run.metrics():
        drafter_model = _exported_drafter(lesson)
        return drafter_model, drafter_eval.all_logits(drafter_model)
    metrics = _train_drafter(lesson, drafter_eval, answers)
    drafter_model = _exported_drafter(lesson)
    drafted = drafter_eval.all_logits(drafter_model)
    blind = drafter_eval.accuracies(drafter_eval.all_logits(drafter_model, blind=True))
    run.finish("drafter", metrics | {"shipped": drafter_eval.accuracies(drafted), "blind": blind})
    return drafter_model, drafted


def _train_drafter(
    lesson: Lesson, drafter_eval: DrafterEval, answers: tuple[str, ...]
) -> dict[str, Any]:
    """Writes both files; the metrics come back."""
    settings, run, seen = lesson.settings, lesson.run, drafter_eval.seen
    text, tokenizer = lesson.networks.text, lesson.networks.text_tokenizer
    names = embed(text, tokenizer, [answer or "look it up" for answer in answers])
    drafter_model = drafts.build(
        answers, names, copy.deepcopy(text), seen, settings.drafts, run.seed
    )
    drafter_model = drafts.train(
        drafter_model,
        seen,
        drafter_eval.words,
        drafter_eval.questions,
        lesson.groups,
        run,
        settings.drafts,
    )
    accuracies = drafter_eval.accuracies(drafter_eval.all_logits(drafter_model))
    drafter_eval.calibrate(drafter_model, (HELD_OUT, PERCEPTUAL))
    path = run.folder / DRAFTER
    checkpoint.save(drafter_model.drafter, path, preset=PRESET, eight_bit=True)
    checkpoint.load(drafter_model.drafter, path, preset=PRESET)
    right = partial(drafter_eval.accuracy, drafter_model, HELD_OUT)
    ranks = _export(lesson, drafter_model.text, text, right, run.folder / QUESTION)
    return {"all_weights": accuracies, "ranks": ranks}


def _exported_drafter(lesson: Lesson) -> DrafterModel:
    folder, text = lesson.run.folder, lesson.networks.text
    drafter = Drafter(checkpoint.read_config(folder / DRAFTER, DrafterConfig))
    checkpoint.load(drafter, folder / DRAFTER, preset=PRESET)
    drafter_model = DrafterModel(drafter, copy.deepcopy(text)).to(lesson.device).eval()
    read_back(drafter_model.text, text.state_dict(), folder / QUESTION)
    return drafter_model


def _learn_to_read(
    lesson: Lesson, seeing: Seeing, drafter_model: DrafterModel, drafted: dict[str, Tensor]
) -> dict[str, Any]:
    networks, run, settings = lesson.networks, lesson.run, lesson.settings
    examples, tokenizer = lesson.mixed.examples, networks.decoder_tokenizer
    decoder = copy.deepcopy(networks.decoder).float().to(lesson.device)
    rows_of = {name: rows.tolist() for name, rows in lesson.scored.items()}

    def asked(form: Form | None, groups: Iterable[list[int]]) -> Prompts:
        rows = chain.from_iterable(groups)
        return Prompts(seeing.prompts(examples, rows, run.seed, form), tokenizer)

    taught = asked(None, (lesson.groups[name].tolist() for name in drafts.TAUGHT))
    rank = max(settings.ranks)
    decoder = reader.train(decoder, taught, examples, lesson.groups, run, settings.reader, rank)
    few = asked("few", rows_of.values())

    def accuracy(name: str, prompts: Prompts = few) -> float:
        counted = run.counted(f"reading {name}")
        given = reader.generate(decoder, prompts, rows_of[name], counted)
        pairs = zip(rows_of[name], given, strict=True)
        return _mean(examples[row].answers.get(text, 0.0) for row, text in pairs)

    right = partial(accuracy, HELD_OUT)
    ranks = _export(lesson, decoder, networks.decoder, right, run.folder / READER)
    by_form = {"few": {name: accuracy(name) for name in rows_of}}
    others: tuple[Form, ...] = ("unread", "blind")
    for form in others:
        prompts = asked(form, rows_of.values())
        by_form[form] = {name: accuracy(name, prompts) for name in rows_of}
    answers = drafter_model.drafter.config.answers
    opinions = {name: drafter_model.drafter.log_probs(logits) for name, logits in drafted.items()}
    sets = {
        name: weighing.gather(
            decoder, few, examples, rows, opinions[name], answers, run.counted(f"weighing {name}")
        )
        for name, rows in rows_of.items()
    }
    weight, joint = weighing.loglikelihood(sets, HELD_OUT)
    threshold, routed = weighing.open_fast_path(sets, (HELD_OUT, PERCEPTUAL), weight)
    write_settings(
        run.folder / SETTINGS,
        {
            "draft": {"threshold": threshold, "counting_threshold": threshold},
            "decode": {"prompt": "short", "drafter_weight": weight},
        },
    )
    return {
        "ranks": ranks,
        "shipped": by_form,
        "weight": weight,
        "joint": joint,
        "fast_path": {"threshold": threshold} | routed,
    }


def _export(
    lesson: Lesson,
    network: nn.Module,
    published: nn.Module,
    accuracy: Callable[[], float],
    path: Path,
) -> dict[str, Any]:
    ranks, max_loss = lesson.settings.ranks, lesson.settings.max_loss
    state = published.state_dict()
    return export(network, state, accuracy, path, preset=PRESET, ranks=ranks, max_loss=max_loss)


def _glosses(words: Words, known: Concepts) -> dict[int, str]:
    """Definitions of the tower's classes, which come after the tagger's names."""
    first = len(words.names) - len(known)
    return {
        first + i: f"{concept.name} (noun): {concept.gloss}"
        for i, concept in enumerate(known.entries)
    }


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / max(1, len(found))
