"""When to read text: small heads, on the question and on the strokes in each token.

Enters: photos to render text into (`data/rendered_text`), OK-VQA's questions with their types and
COCO's as questions that need no text. Leaves: a text gate and, chosen on what is held out, the
thresholds of both heads. It ships if around held-out texts its crops hold at least as many of
them, less the area that is read for it, as those of the rule. Nothing is read here: whether a text
can be read is the engine's business.
"""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.components import SETTINGS, change_settings
from skipqa.config import Config, Count, EncodeConfig, Fraction, ReadTextConfig
from skipqa.data.held_out import is_held_out
from skipqa.data.pocket_kb.pictures import Archive
from skipqa.data.rendered_text import build as rendered
from skipqa.files import read_jsonl
from skipqa.image import open_image
from skipqa.nn import checkpoint
from skipqa.nn.text_gate import TextGateConfig, TextGateHeads
from skipqa.stages.read_text import crops_around
from skipqa.stages.text_gate import EVEN, RuleGate, TextGate, TrainedGate, strokes
from skipqa.tasks.pocket_kb import box_from_centre
from skipqa.training.export import copy_components, ship
from skipqa.training.loop import Decay, LearningRate, Optimisation, batches, fit
from skipqa.training.pathway.context import TRAINED
from skipqa.training.pathway.saliency_quality import in_box
from skipqa.training.pipelines import Source
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import mixture
from skipqa.types import Box

PART = "text_gate"
OCR = "ocr"  # OK-VQA's type of questions that need text
RENDERED = "rendered"
STEPS = [round(0.02 * n, 2) for n in range(1, 50)]  # thresholds that are tried
INSIDE = 0.9  # of a text's box: less, and a word is cut


@dataclass(frozen=True, slots=True)
class GateTraining:
    steps: Count = 600
    lr: LearningRate = 3e-2
    batch: Count = 256
    weight_decay: Decay = 0.01


@dataclass(frozen=True, slots=True)
class TextGateSettings:
    train: GateTraining = field(default_factory=GateTraining)
    pictures: Count = 400  # rendered
    others: Count = 6_000  # questions that need no text
    asked: Fraction = 0.98  # of the questions about rendered text that are to open the gate
    covered: Fraction = 0.97  # of held-out texts that are to lie in a crop


@dataclass(frozen=True, slots=True)
class Asked:
    """Q questions."""

    embeddings_QD: Tensor
    needs_text: Tensor  # [Q]
    is_written: Tensor  # [Q]: the text itself is the answer
    held_out: Tensor  # [Q]
    source: tuple[str, ...]

    def select(self, source: str, needs_text: bool) -> Tensor:
        """Rows of held-out questions."""
        of_source = torch.tensor([one == source for one in self.source])
        return (of_source & self.held_out & (self.needs_text == needs_text)).nonzero()[:, 0]


@dataclass(frozen=True, slots=True)
class View:
    """One picture on one grid."""

    image: Image.Image
    grid: int
    boxes: tuple[Box, ...]
    held_out: bool

    @property
    def target_V(self) -> Tensor:
        """[V] bool: tokens that show text."""
        found = torch.zeros(self.grid**2, dtype=torch.bool)
        for box in self.boxes:
            found |= in_box(box, self.grid)
        return found


@dataclass(frozen=True, slots=True)
class TextGateStage(TrainingStage):
    settings: TextGateSettings

    def run(self, inputs: Inputs, settings: TextGateSettings, run: Run) -> Metrics:
        data = inputs.require_data(self.name)
        source = Source(inputs.preset, inputs.components, inputs.index)
        whole = mixture.read(data, inputs.pocket_kb, inputs.limit)
        run.claim(
            {
                "stage": self.name,
                "seed": run.seed,
                "limit": inputs.limit,
                **source.fingerprint((PART,), ("read_text",)),
                "mixture": whole.fingerprint(),
                "settings": dataclasses.asdict(settings),
            }
        )
        if PART not in run.metrics():
            pipeline = source.load()
            folder = _rendered(data, min(settings.pictures, inputs.limit or 10**6), run)
            asked = questions(whole, folder, pipeline.backbone, settings, run)
            seen = list(views(folder, pipeline.config.encode, run))
            heads = train(asked, seen, settings.train, run)
            found = chosen(heads, asked, seen, pipeline.config, settings)
            copy_components(source.folder, run.folder)
            path = run.folder / TRAINED / f"{PART}.safetensors"
            checkpoint.save(heads, path, preset=pipeline.config.preset, eight_bit=True)
            if found["ships"]:
                ship(path, run.folder)
                change_settings(run.folder / SETTINGS, read_text=found["thresholds"])
            run.finish(PART, found)
        run.forget_states()
        return run.metrics()


STAGE = TextGateStage("ocr", TextGateSettings())


def _rendered(data: Path, pictures: int, run: Run) -> Path:
    """Pictures to train on, and none of `val`; drawn once for a run."""
    folder = run.states(PART) / "rendered"
    if not folder.is_dir():
        show = run.progress
        rendered.build(
            data,
            folder,
            run.seed,
            rendered.Knowledge.default(run.say),
            lambda what, done, total: show(what, done, total or 0, None),
            {"train": pictures},
        )
    return folder


def questions(
    whole: mixture.Mixture,
    folder: Path,
    backbone: Backbone,
    settings: TextGateSettings,
    run: Run,
) -> Asked:
    """Those about rendered text, OK-VQA's that need text, and others drawn by chance."""
    # question, whether it needs text, whether it is held out, source, whether it asks for more
    found: list[tuple[str, bool, bool, str, bool]] = []
    for row in read_jsonl(folder / "train.jsonl"):
        needs_text = row["subset"] != ["plain"]
        written = row["subset"] == ["written"]
        found.append((row["question"], needs_text, is_held_out(row["image"]), RENDERED, written))
    others: list[tuple[str, bool, bool, str, bool]] = []
    for one in whole.examples:
        if one.split == "val":
            continue
        row = (one.question, one.type == OCR, one.split == "held-out", one.source, False)
        (found if one.type == OCR else others).append(row)
    random.Random(run.seed).shuffle(others)
    found += others[: settings.others]
    texts = sorted({text for text, *_ in found}, key=lambda text: (len(text), text))
    place_of, embedded = {text: n for n, text in enumerate(texts)}, list[Tensor]()
    for start in range(0, len(texts), 64):
        run.progress("encoding questions", start, len(texts), None)
        embedded.append(backbone.encode_texts(texts[start : start + 64]).embeddings)
    rows = torch.tensor([place_of[text] for text, *_ in found])
    return Asked(
        torch.cat(embedded)[rows],
        torch.tensor([needs for _, needs, _, _, _ in found]),
        torch.tensor([written for *_, written in found]),
        torch.tensor([held_out for _, _, held_out, _, _ in found]),
        tuple(source for _, _, _, source, _ in found),
    )


def views(folder: Path, config: EncodeConfig, run: Run) -> Iterator[View]:
    """Every picture on the grids of low and of high resolution."""
    rows = {row["image"]: row for row in read_jsonl(folder / "train.jsonl")}
    with Archive(folder / "photos.zip") as photos:
        for done, (name, row) in enumerate(rows.items()):
            run.progress("reading pictures", done, len(rows), None)
            image = open_image(io.BytesIO(photos.bytes(name)))
            boxes = tuple(box_from_centre(box) for box in row["boxes"])
            for scale in dict.fromkeys((config.scales[0], config.scales[-1])):
                yield View(image, scale // config.cell, boxes, is_held_out(name))


def train(asked: Asked, seen: Sequence[View], settings: GateTraining, run: Run) -> TextGateHeads:
    """Two logistic regressions, each on its own inputs. Questions that need text and others count
    the same; tokens are balanced by their number alone, as a crop costs what it covers."""
    views_ = [view for view in seen if not view.held_out]
    strokes_NS = torch.cat([strokes(view.image, view.grid)[0] for view in views_])
    target_N = torch.cat([view.target_V for view in views_]).float()
    rows = (~asked.held_out).nonzero()[:, 0]
    needs = rows[asked.needs_text[rows]], rows[~asked.needs_text[rows]]
    torch.manual_seed(run.seed)
    config = TextGateConfig(asked.embeddings_QD.shape[1], strokes_NS.shape[1])
    heads = TextGateHeads(config)
    of_tokens = batches([torch.arange(len(strokes_NS))], 8 * settings.batch, run.seed)
    of_needs, of_others = (batches([some], settings.batch, run.seed) for some in needs)

    def loss(step: int) -> Tensor:
        some = torch.cat((of_needs(step), of_others(step)))
        target = asked.needs_text[some].float()
        needs_Q, written_Q = heads.asks_logits(asked.embeddings_QD[some]).unbind(-1)
        text = target == 1
        asking = (
            F.binary_cross_entropy_with_logits(needs_Q[text], target[text])
            + F.binary_cross_entropy_with_logits(needs_Q[~text], target[~text])
            + F.binary_cross_entropy_with_logits(
                written_Q[text], asked.is_written[some][text].float()
            )
        )
        tokens = of_tokens(step)
        shown = heads.shows_logits(strokes_NS[tokens])
        return asking + F.binary_cross_entropy_with_logits(shown, target_N[tokens])

    steps = Optimisation(settings.steps, settings.lr, weight_decay=settings.weight_decay)
    return fit(PART, heads, loss, steps, run)


@torch.no_grad()
def chosen(
    heads: TextGateHeads,
    asked: Asked,
    seen: Sequence[View],
    config: Config,
    settings: TextGateSettings,
) -> Metrics:
    """The highest thresholds that still open for enough questions and cover enough texts; and how
    crops by them compare with those by the rule."""
    held_out = [view for view in seen if view.held_out] or list(seen)
    probs_Q, written_Q = heads.asks_logits(asked.embeddings_QD).sigmoid().unbind(-1)
    # Wordings are few, the same for all pictures, and some are on no held-out one
    rendered_Q = torch.tensor([source == RENDERED for source in asked.source])
    about_text = probs_Q[rendered_Q & asked.needs_text]
    opens = [t for t in STEPS if float((about_text >= t).float().mean()) >= settings.asked]
    question_prob = max(opens, default=STEPS[0])
    trained = TrainedGate(heads, config.read_text)
    by_threshold = {t: crops_of(trained, held_out, config.read_text, t) for t in STEPS}
    enough = [t for t in STEPS if by_threshold[t]["covered"] >= settings.covered]
    likeness = max(enough, default=STEPS[0])
    rule = crops_of(RuleGate(), held_out, config.read_text, ReadTextConfig().min_likeness)
    gate = by_threshold[likeness]
    sources = sorted(set(asked.source))
    return {
        "ships": gate["covered"] - gate["area"] >= rule["covered"] - rule["area"],
        "thresholds": {"min_question_prob": question_prob, "min_likeness": likeness},
        "crops": {"trained": gate, "rule": rule},
        "written": float(
            ((written_Q >= EVEN) == asked.is_written)[asked.select(RENDERED, True)].float().mean()
        ),
        "opens": {
            f"{source}, {'text' if needs_text else 'other'}": float(
                (probs_Q[rows] >= question_prob).float().mean()
            )
            for source in sources
            for needs_text in (True, False)
            if len(rows := asked.select(source, needs_text))
        },
    }


def crops_of(
    gate: TextGate, seen: Sequence[View], config: ReadTextConfig, min_likeness: float
) -> dict[str, float]:
    """Of all texts, how many lie in a crop if every token that looks like text is kept; and which
    fraction of the pictures the crops are."""
    covered, area, total = 0, 0.0, 0
    for view in seen:
        likeness_V, _ = gate.likeness(view.image, view.grid)
        cells = (likeness_V >= min_likeness).nonzero()[:, 0].tolist()
        size = view.image.size
        crops = crops_around(cells, view.grid, size, config.margin)
        area += sum((c[2] - c[0]) * (c[3] - c[1]) for c in crops) / (size[0] * size[1])
        covered += sum(any(_inside(box, crop, size) for crop in crops) for box in view.boxes)
        total += len(view.boxes)
    return {"covered": covered / max(1, total), "area": area / max(1, len(seen)), "texts": total}


def _inside(box: Box, crop: Sequence[int], size: tuple[int, int]) -> bool:
    left, top, right, bottom = (side * size[n % 2] for n, side in enumerate(box))
    across = min(right, crop[2]) - max(left, crop[0])
    down = min(bottom, crop[3]) - max(top, crop[1])
    whole = max(1e-9, (right - left) * (bottom - top))
    return max(0.0, across) * max(0.0, down) / whole >= INSIDE
