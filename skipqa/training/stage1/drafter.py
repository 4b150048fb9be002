"""The drafter: answers a question from the image alone, out of a vocabulary.

Enters: frozen features, the words of each image, questions. Leaves: a `Drafter` and a question
encoder fine-tuned with it, and the logits of its answers, for calibration and for the reader to
combine with. Answers are weighted by how many people gave them. Where a passage is known to hold
what the image does not show, the target is to abstain: the empty answer, the first of the
vocabulary, whose probability lowers every confidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from skipqa.backbones.networks.bert import Bert
from skipqa.config import Count, Fraction, Weight
from skipqa.nn.drafter import ABSTAIN, Drafter, DrafterConfig
from skipqa.training.example import TrainExample
from skipqa.training.loop import Optimisation, batches, fit, steps_for
from skipqa.training.run import Run
from skipqa.training.stage1.photos import PhotoFeatures
from skipqa.training.stage1.words import Words

MAX_ANSWERS = 8  # of one question
HEAD_WIDTH = 64
# Those that may need knowledge, then those made from ConceptNet, which are never repeated, then
# perceptual questions, which are not in a phase that focuses on knowledge either
TRAIN_GROUPS = (
    "okvqa/train",
    "pocket-kb/train",
    "crowded/train",
    "fvqa/train",
    "common/train",
    "coco/train",
)


@dataclass(frozen=True, slots=True)
class DrafterTraining:
    epochs: Weight = 7.0
    focus_epochs: Weight = 3.0  # on all but perceptual questions, at focus_lr; 0: none
    batch: Count = 256
    lr: Weight = 4e-4
    focus_lr: Weight = 1e-4
    text_lr_scale: Fraction = 0.075  # the pretrained question encoder moves more slowly
    knowledge_times: Count = 3  # how often an OK-VQA question is repeated per epoch
    blind: Fraction = 0.08  # of the questions come without the image, to measure what it adds
    width: Count = 384  # heads are 64 wide
    layers: Count = 4
    dropout: Fraction = 0.2


class DrafterModel(nn.Module):
    """The drafter and its question encoder, trained together."""

    def __init__(self, drafter: Drafter, text: Bert) -> None:
        super().__init__()
        self.drafter, self.text = drafter, text
        text.requires_grad_(True)  # all but the embeddings, which stay the published ones
        for part in (text.words, text.places, text.norm):
            part.requires_grad_(False)
        text.segment.requires_grad_(False)

    def forward(
        self, features: Tensor, ids_BT: Tensor, mask_BT: Tensor, words: tuple[Tensor, Tensor]
    ) -> Tensor:
        logits: Tensor = self.drafter(features, self.text(ids_BT, mask_BT), mask_BT, words)
        return logits


class Questions:
    """Token ids, masks and target answers of all examples, on the device.

    `answer` and `score` are what is right; `target` and `target_weight` what the drafter is trained
    on: to abstain from questions that need a passage.
    """

    def __init__(
        self,
        examples: Sequence[TrainExample],
        answers: Sequence[str],
        tokenizer: Tokenizer,
        device: torch.device,
    ) -> None:
        encoded = tokenizer.encode_batch([example.question for example in examples])
        length = max(len(one.ids) for one in encoded)
        ids = torch.zeros(len(encoded), length, dtype=torch.long)
        mask = torch.zeros(len(encoded), length, dtype=torch.bool)
        answer = torch.zeros(len(examples), MAX_ANSWERS, dtype=torch.long)
        score = torch.zeros(len(examples), MAX_ANSWERS)
        place = {text: i for i, text in enumerate(answers)}
        for row, (one, example) in enumerate(zip(encoded, examples, strict=True)):
            ids[row, : len(one.ids)] = torch.tensor(one.ids)
            mask[row, : len(one.ids)] = True
            known = [(score, place[t]) for t, score in example.answers.items() if t in place]
            for column, best in enumerate(sorted(known, reverse=True)[:MAX_ANSWERS]):
                score[row, column], answer[row, column] = best
        photo = torch.tensor([example.photo for example in examples])
        self.ids, self.mask = ids.to(device), mask.to(device)
        self.answer, self.score = answer.to(device), score.to(device)
        self.photo = photo.to(device)
        abstain = torch.tensor([example.needs_knowledge for example in examples])[:, None]
        assert answers[0] == ABSTAIN
        first = torch.arange(MAX_ANSWERS) == 0
        self.target = torch.where(abstain, 0, answer).to(device)
        self.target_weight = torch.where(abstain, first.float(), score).to(device)

    def text(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and mask, no longer than the longest of these."""
        mask = self.mask[rows]
        length = int(mask.sum(1).max())
        return self.ids[rows, :length], mask[:, :length]

    def known(self, rows: Tensor) -> Tensor:
        """Those of the rows that have a target in the vocabulary."""
        return rows[self.target_weight.sum(1).to(rows.device)[rows] > 0]

    def accuracy(self, logits: Tensor, rows: Tensor) -> float:
        """The mean soft score of the best answers, in [0, 1]."""
        rows = rows.to(self.answer.device)
        given = 1 + logits[:, 1:].argmax(1, keepdim=True) == self.answer[rows]
        return float((given * self.score[rows]).amax(1).mean())


def build(
    answers: tuple[str, ...],
    answer_names: Tensor,
    text: Bert,
    features: PhotoFeatures,
    training: DrafterTraining,
    seed: int,
) -> DrafterModel:
    """An untrained drafter; `answer_names` [answers, d] are the embeddings of the answers."""
    torch.manual_seed(seed)
    config = DrafterConfig(
        visual_tokens=features.views.shape[2],
        visual_width=features.views.shape[3],
        question_width=text.config.width,
        answers=answers,
        width=training.width,
        layers=training.layers,
        heads=max(1, training.width // HEAD_WIDTH),
        ffn=4 * training.width,
        words=True,
        named_answers=True,
        counted_answers=True,
        dropout=training.dropout,
    )
    model = DrafterModel(Drafter(config), text).to(features.views.device)
    model.drafter.answer_names.copy_(answer_names)
    return model


@dataclass(frozen=True, slots=True)
class DrafterInputs:
    questions: Questions
    features: PhotoFeatures
    words: Words  # of every photo, at low resolution


def train(
    model: DrafterModel,
    inputs: DrafterInputs,
    groups: Mapping[str, Tensor],
    run: Run,
    training: DrafterTraining,
) -> DrafterModel:
    """`groups` are rows of the questions, by source and split."""
    questions, views = inputs.questions, inputs.features.views
    device = views.device
    okvqa, *others, coco = (questions.known(groups[name]) for name in TRAIN_GROUPS)

    def phase(
        name: str, mixed: list[Tensor], epochs: float, lr: float, start: DrafterModel
    ) -> DrafterModel:
        batch_at = batches(mixed, training.batch, run.seed)

        def loss(step: int) -> Tensor:
            rows = batch_at(step).to(device)
            view = torch.randint(len(views), (len(rows),), device=device)
            blind = torch.rand(len(rows), device=device) < training.blind
            logits = _logits(start, views[view, questions.photo[rows]], rows, inputs, blind)
            log_prob = logits.log_softmax(-1).gather(1, questions.target[rows])
            weight = questions.target_weight[rows]
            return -(log_prob * weight / weight.sum(1, keepdim=True)).sum(1).mean()

        steps = steps_for(epochs, mixed, training.batch)
        lr_scales = [(start.text, training.text_lr_scale)]
        return fit(name, start, loss, Optimisation(steps, lr, ema_decay=0.998), run, lr_scales)

    mixed = [okvqa] * training.knowledge_times + [*others, coco]
    model = phase("drafter", mixed, training.epochs, training.lr, model)
    if training.focus_epochs:
        epochs, lr = training.focus_epochs, training.focus_lr
        model = phase("drafter/focus", [okvqa, *others], epochs, lr, model)
    return model


def _logits(
    model: DrafterModel, features: Tensor, rows: Tensor, inputs: DrafterInputs, blind: Tensor
) -> Tensor:
    """`blind` [B] is true of questions asked without the image."""
    questions, sees = inputs.questions, (~blind).float()[:, None]
    embeddings, probs = inputs.words.embedded(questions.photo[rows])
    shown = embeddings * sees[..., None], probs * sees
    kind = features.device.type
    with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
        logits: Tensor = model(features.float() * sees[..., None], *questions.text(rows), shown)
    return logits.float()


@dataclass(frozen=True, slots=True)
class DrafterEval:
    """Questions that nothing is trained on, and a drafter's logits for them."""

    groups: Mapping[str, Tensor]  # name -> rows of the questions
    inputs: DrafterInputs

    @torch.inference_mode()
    def logits(self, model: DrafterModel, name: str, *, blind: bool = False) -> Tensor:
        """Uncalibrated, [rows, answers]."""
        features, photo = self.inputs.features.views[0], self.inputs.questions.photo
        parts = self.groups[name].to(features.device).split(512)

        def of(rows: Tensor) -> Tensor:
            unseen = torch.full(rows.shape, blind, device=rows.device)
            return _logits(model, features[photo[rows]], rows, self.inputs, unseen)

        return torch.cat([of(part) for part in parts])

    def all_logits(self, model: DrafterModel, *, blind: bool = False) -> dict[str, Tensor]:
        return {name: self.logits(model, name, blind=blind) for name in self.groups}

    def accuracies(self, logits: Mapping[str, Tensor]) -> dict[str, float]:
        questions = self.inputs.questions
        return {name: questions.accuracy(logits[name], self.groups[name]) for name in logits}

    def accuracy(self, model: DrafterModel, name: str) -> float:
        return self.accuracies({name: self.logits(model, name)})[name]

    def calibrate(self, model: DrafterModel, names: Sequence[str]) -> None:
        """The temperature at which confidence matches how often the best answer is right."""
        found = [self.logits(model, name) for name in names]
        logits, rows = torch.cat(found), torch.cat([self.groups[name] for name in names])
        rows, questions = rows.to(logits.device), self.inputs.questions
        score = questions.score[rows]
        best = questions.answer[rows].gather(1, score.argmax(1, keepdim=True))[:, 0]
        known = score.sum(1) > 0
        model.drafter.calibrate(logits[known], best[known])
