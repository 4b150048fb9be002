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
from skipqa.backbones import concepts, convert, efficientnet_lite, loading
from skipqa.backbones.bert import Bert
from skipqa.backbones.concepts import Concepts
from skipqa.backbones.efficientnet_lite import EfficientNetLite
from skipqa.backbones.llama import SMOLLM2_135M, Llama
from skipqa.backbones.minilm import MiniLm
from skipqa.backbones.pocket import NUM_WORDS
from skipqa.components import SETTINGS, write_settings
from skipqa.config import Between, Count, Share
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.drafter import LOOK_IT_UP, Drafter, DrafterConfig
from skipqa.nn.tagger import TaggerConfig
from skipqa.training import drafts, mixture, photos, reader, tags, tower, weighing
from skipqa.training.drafts import Asker, DraftTraining, Exam, Questions
from skipqa.training.mixture import Mixture
from skipqa.training.photos import Seen, Things
from skipqa.training.reader import Form, Prompts, ReaderTraining, Seeing
from skipqa.training.run import Run
from skipqa.training.shipping import read_back, ship, write_difference
from skipqa.training.tags import Shares, TagTraining, Targets
from skipqa.training.tower import TowerTraining
from skipqa.training.words import Words, best_words, embed

PRESET = "pocket"
HELD_OUT = "okvqa/held-out"  # what everything is chosen on
PERCEPTUAL = "coco/held-out"  # and beside it, who may answer alone
SMALL = 0.1  # of a picture
PERCEPTUAL_SHARE = 4  # a question of these for so many of the others
# What the picture has to add to the question, facts beside neither, before later stages build on it
GATE = {"okvqa/val": 0.05, "pocket-kb/val": 0.15}
PARTS = ("tower", "tagger", "drafter", "reader")
VISION, TAGGER, DRAFTER, QUESTION, READER = (
    f"{name}.safetensors" for name in ("vision", "tagger", "drafter", "question", "reader")
)


@dataclass(frozen=True, slots=True)
class Stage1:
    answers: Count = 4_000
    words: Count = NUM_WORDS  # of a picture; answering takes as many
    views: Annotated[int, Between(1, 8)] = 3
    ranks: Annotated[tuple[int, ...], Between(1, 1_000)] = (64, 144)  # the smallest that will do
    max_loss: Share = 0.003  # of held-out accuracy, for a smaller rank
    tower: TowerTraining = field(default_factory=TowerTraining)
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
    glance, closer = _learn_tags(lesson, seen, targets)
    asker, drafted = _learn_to_draft(lesson, seen, glance)
    if "reader" not in run.metrics():
        seeing = Seeing(glance, closer, _glosses(glance, lesson.networks.concepts), mixed.facts)
        run.finish("reader", _learn_to_read(lesson, seeing, asker, drafted))
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
        wanted = max(1, len(found.get(HELD_OUT, ())) // PERCEPTUAL_SHARE)
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
    if "tower" not in run.metrics():
        rows = lesson.mixed.to_learn_from()
        taught = tower.teach(published, pixels, things, targets, rows, run, settings.tower, device)
        write_difference(taught, published.state_dict(), path, preset=PRESET)
        run.finish("tower", {"photos": len(rows), "of_things": len(lesson.mixed.entities)})
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
        tagger, shares = tags.train(seen, targets, config, run, lesson.settings.tags)
        tagger.meanings.copy_(meanings)
        checkpoint.save(tagger, run.folder / TAGGER, preset=PRESET, eight_bit=True)
        save_file({"glance": shares.glance.cpu(), "closer": shares.closer.cpu()}, path)
        run.finish("tagger", _tagged(lesson, targets, shares))
    known, found = networks.concepts, load_file(path)
    names = (*tag_words, *(concept.name for concept in known.entries))
    embeddings = torch.cat((meanings, known.embeddings.to(device)))
    glance, closer = (
        best_words(names, embeddings, share.to(device), seen.overview, lesson.settings.words)
        for share in (found["glance"], found["closer"])
    )
    return glance, closer


def _tagged(lesson: Lesson, targets: Targets, shares: Shares) -> dict[str, Any]:
    boxes = lesson.mixed.boxes
    shown = {"all": lesson.mixed.checks, "small": {}}
    for split, things in lesson.mixed.checks.items():
        small = {p: e for p, e in things.items() if p in boxes and math.prod(boxes[p][2:]) < SMALL}
        shown["small"][split] = small
    return {"names": len(targets.names)} | {
        when: {
            "cross_fitted_map": tags.mean_average_precision(share.cpu(), targets.wanted),
            "recognised": {
                size: {name: tags.recognised(share, targets, some) for name, some in sets.items()}
                for size, sets in shown.items()
            },
        }
        for when, share in (("glance", shares.glance), ("closer", shares.closer))
    }


def _learn_to_draft(lesson: Lesson, seen: Seen, words: Words) -> tuple[Asker, dict[str, Tensor]]:
    """The drafter as it is shipped, and its logits for all scored questions."""
    examples, run = lesson.mixed.examples, lesson.run
    answers = (LOOK_IT_UP, *mixture.answer_vocabulary(examples, lesson.settings.answers))
    questions = Questions(examples, answers, lesson.networks.text_tokenizer, lesson.device)
    exam = Exam(lesson.scored, questions, seen, words)
    if "drafter" in run.metrics():
        asker = _shipped_asker(lesson)
        return asker, exam.all_logits(asker)
    metrics = _train_drafter(lesson, exam, answers)
    asker = _shipped_asker(lesson)
    drafted = exam.all_logits(asker)
    blind = exam.accuracies(exam.all_logits(asker, blind=True))
    run.finish("drafter", metrics | {"shipped": exam.accuracies(drafted), "blind": blind})
    return asker, drafted


def _train_drafter(lesson: Lesson, exam: Exam, answers: tuple[str, ...]) -> dict[str, Any]:
    """Writes both files; the metrics come back."""
    settings, run, seen = lesson.settings, lesson.run, exam.seen
    text, tokenizer = lesson.networks.text, lesson.networks.text_tokenizer
    names = embed(text, tokenizer, [answer or "look it up" for answer in answers])
    asker = drafts.build(answers, names, copy.deepcopy(text), seen, settings.drafts, run.seed)
    asker = drafts.train(
        asker, seen, exam.words, exam.questions, lesson.groups, run, settings.drafts
    )
    accuracies = exam.accuracies(exam.all_logits(asker))
    exam.calibrate(asker, (HELD_OUT, PERCEPTUAL))
    path = run.folder / DRAFTER
    checkpoint.save(asker.drafter, path, preset=PRESET, eight_bit=True)
    checkpoint.load(asker.drafter, path, preset=PRESET)
    right = partial(exam.accuracy, asker, HELD_OUT)
    ranks = _ship(lesson, asker.text, text, right, run.folder / QUESTION)
    return {"all_weights": accuracies, "ranks": ranks}


def _shipped_asker(lesson: Lesson) -> Asker:
    folder, text = lesson.run.folder, lesson.networks.text
    drafter = Drafter(checkpoint.read_config(folder / DRAFTER, DrafterConfig))
    checkpoint.load(drafter, folder / DRAFTER, preset=PRESET)
    asker = Asker(drafter, copy.deepcopy(text)).to(lesson.device).eval()
    read_back(asker.text, text.state_dict(), folder / QUESTION)
    return asker


def _learn_to_read(
    lesson: Lesson, seeing: Seeing, asker: Asker, drafted: dict[str, Tensor]
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
    ranks = _ship(lesson, decoder, networks.decoder, right, run.folder / READER)
    by_form = {"few": {name: accuracy(name) for name in rows_of}}
    others: tuple[Form, ...] = ("unread", "blind")
    for form in others:
        prompts = asked(form, rows_of.values())
        by_form[form] = {name: accuracy(name, prompts) for name in rows_of}
    answers = asker.drafter.config.answers
    opinions = {name: asker.drafter.log_shares(logits) for name, logits in drafted.items()}
    sets = {
        name: weighing.gather(
            decoder, few, examples, rows, opinions[name], answers, run.counted(f"weighing {name}")
        )
        for name, rows in rows_of.items()
    }
    weight, joint = weighing.weigh(sets, HELD_OUT)
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


def _ship(
    lesson: Lesson,
    network: nn.Module,
    published: nn.Module,
    accuracy: Callable[[], float],
    path: Path,
) -> dict[str, Any]:
    ranks, max_loss = lesson.settings.ranks, lesson.settings.max_loss
    state = published.state_dict()
    return ship(network, state, accuracy, path, preset=PRESET, ranks=ranks, max_loss=max_loss)


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
