"""The drafter: answers a question from the picture alone, out of a vocabulary.

Enters: frozen features, the words that each picture deserves, questions. Leaves: a `Drafter` and a
question encoder fine-tuned with it, calibrated on the held-out photos, and log-probabilities of
its best answers for the reader to weigh. Answers get credit in proportion to how many people
gave them; cross-entropy beat a sigmoid each by two points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from skipqa.backbones.bert import Bert
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.training.loop import Phase, Run, batches, fit
from skipqa.training.mixture import Example
from skipqa.training.photos import Seen

MAX_ANSWERS = 8  # of one question


@dataclass(frozen=True, slots=True)
class DraftTraining:
    rounds: float = 7
    focus_rounds: float = 3  # on knowledge questions alone, at the lower rate
    batch: int = 256
    rate: float = 4e-4
    focus_rate: float = 1e-4
    text_factor: float = 0.075  # the pretrained question encoder moves more slowly
    knowledge_times: int = 3  # how often a knowledge question comes for each other one
    width: int = 384
    layers: int = 4
    dropout: float = 0.2


@dataclass(frozen=True, slots=True)
class Words:
    """What each picture shows in words: the best of the tagger's and the tower's names."""

    names: tuple[str, ...]
    embeddings: Tensor  # [names, d]
    indices: Tensor  # [P, W], best first
    shares: Tensor  # [P, W]


class Asker(nn.Module):
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
    """Token ids, masks and target answers of all examples, on the device."""

    def __init__(
        self,
        examples: Sequence[Example],
        answers: Sequence[str],
        tokenizer: Tokenizer,
        device: torch.device,
    ) -> None:
        encoded = tokenizer.encode_batch([example.question for example in examples])
        length = max(len(one.ids) for one in encoded)
        self.ids = torch.zeros(len(encoded), length, dtype=torch.long)
        self.mask = torch.zeros(len(encoded), length, dtype=torch.bool)
        for row, one in enumerate(encoded):
            self.ids[row, : len(one.ids)] = torch.tensor(one.ids)
            self.mask[row, : len(one.ids)] = True
        place = {text: i for i, text in enumerate(answers)}
        self.answer = torch.zeros(len(examples), MAX_ANSWERS, dtype=torch.long)
        self.score = torch.zeros(len(examples), MAX_ANSWERS)
        for row, example in enumerate(examples):
            known = [(score, place[t]) for t, score in example.answers.items() if t in place]
            for column, (score, answer) in enumerate(sorted(known, reverse=True)[:MAX_ANSWERS]):
                self.answer[row, column], self.score[row, column] = answer, score
        self.photo = torch.tensor([example.photo for example in examples])
        for name in ("ids", "mask", "answer", "score", "photo"):
            setattr(self, name, getattr(self, name).to(device))

    def text(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and mask, no longer than the longest of these."""
        mask = self.mask[rows]
        length = int(mask.sum(1).max())
        return self.ids[rows, :length], mask[:, :length]

    def accuracy(self, logits: Tensor, rows: Tensor) -> float:
        """The mean soft score of the best answers, in [0, 1]."""
        given = logits.argmax(1, keepdim=True) == self.answer[rows]
        return float((given * self.score[rows]).amax(1).mean())


def train(
    seen: Seen,
    words: Words,
    questions: Questions,
    answers: tuple[str, ...],
    answer_names: Tensor,
    text: Bert,
    groups: dict[str, Tensor],
    run: Run,
    training: DraftTraining,
) -> Asker:
    """`groups` are rows of `questions`: "knowledge" and "other" to train on."""
    device = seen.features.device
    torch.manual_seed(run.seed)
    config = DrafterConfig(
        visual_tokens=seen.features.shape[2],
        visual_width=seen.features.shape[3],
        question_width=text.config.width,
        answers=answers,
        width=training.width,
        layers=training.layers,
        heads=training.width // 64,
        ffn=4 * training.width,
        words=True,
        named_answers=True,
        dropout=training.dropout,
    )
    asker = Asker(Drafter(config), text).to(device)
    asker.drafter.answer_names.copy_(answer_names)
    known = questions.score.sum(1).cpu() > 0
    knowledge = groups["knowledge"][known[groups["knowledge"]]]
    other = groups["other"][known[groups["other"]]]

    def phase(name: str, mixed: list[Tensor], rounds: float, rate: float, start: Asker) -> Asker:
        batch_at = batches(mixed, training.batch, run.seed)

        def loss(step: int) -> Tensor:
            rows = batch_at(step).to(device)
            photo = questions.photo[rows]
            view = torch.randint(len(seen.features), (len(rows),), device=device)
            logits = _logits(start, seen.features[view, photo], rows, questions, words)
            picked = logits.log_softmax(-1).gather(1, questions.answer[rows])
            credit = questions.score[rows]
            return -(picked * credit / credit.sum(1, keepdim=True)).sum(1).mean()

        steps = max(2, int(rounds * sum(map(len, mixed)) / training.batch))
        slower = [(start.text, training.text_factor)]
        return fit(name, start, loss, Phase(steps, rate), run, slower=slower, average=0.998)

    mixed = [knowledge] * training.knowledge_times + [other]
    asker = phase("drafter", mixed, training.rounds, training.rate, asker)
    if training.focus_rounds:
        rounds, rate = training.focus_rounds, training.focus_rate
        asker = phase("drafter-focus", [knowledge], rounds, rate, asker)
    return asker


def _logits(
    asker: Asker, features: Tensor, rows: Tensor, questions: Questions, words: Words
) -> Tensor:
    photo = questions.photo[rows]
    shown = words.embeddings[words.indices[photo]], words.shares[photo]
    kind = features.device.type
    with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
        logits: Tensor = asker(features.float(), *questions.text(rows), shown)
    return logits.float()


@torch.inference_mode()
def answer_all(
    asker: Asker, seen: Seen, rows: Tensor, questions: Questions, words: Words
) -> Tensor:
    """Uncalibrated logits [rows, answers]."""
    device = seen.features.device
    return torch.cat(
        [
            _logits(asker, seen.features[0, questions.photo[part]], part, questions, words)
            for part in rows.to(device).split(512)
        ]
    )
