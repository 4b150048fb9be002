"""The reader's gain: how much likelier a passage makes the right answers.

Enters: gathered records and the pipeline's reader. Leaves: for every question and passage, the
log-probability of the right answers given that passage alone, minus the one without passages, in
nats; in a file next to the records, named by what it depends on, so that a killed measurement goes
on and later stages read it. Prompts are as `ShortReader` writes them. Without a GPU it takes
seconds per question, so only some are measured. It does not know what is trained with the gains.

Shape letters: N questions, K passages.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.caching import uncached
from skipqa.backbones.networks.llama import Llama
from skipqa.backbones.presets.pocket import Pocket
from skipqa.errors import UserError
from skipqa.files import atomic
from skipqa.stages.readers import names_shown, prompt_of, words_shown
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records
from skipqa.training.run import Counted
from skipqa.training.stage1.pocket_kb import scored
from skipqa.training.stage1.reader import Prompts, log_probs

MOST_ANSWERS = 4
LARGEST = 6.0  # nats; beyond, a gain says no more
ON_CPU = 32  # questions that are measured where there is no GPU
Reading = tuple[int, tuple[int, ...]]  # a question, and its passages that are read, the best first


@dataclass(frozen=True, slots=True)
class Gains:
    """NaN where nothing is measured."""

    passage: Tensor  # [N, K] nats, clipped to [-LARGEST, LARGEST]
    unread: Tensor  # [N] log-probability of the right answers without passages

    @property
    def known(self) -> Tensor:
        """[N] bool."""
        return ~self.unread.isnan()

    def of_best(self) -> Tensor:
        """[N] of the passage that gains most; NaN where there is none."""
        found = self.passage.nan_to_num(-torch.inf).amax(1)
        return found.masked_fill(found.isinf(), math.nan)

    @staticmethod
    def unknown(records: Records) -> Gains:
        passages = torch.full(records["passages"].shape, math.nan)
        return Gains(passages, passages[:, 0].clone())


def load_or_measure(context: TrainingContext, on_cpu: int = ON_CPU) -> Gains:
    """Of every question that has answers; without a GPU, of those measured before and of `on_cpu`,
    which are the same in every run."""
    records, scorer = context.records, AnswerScorer.of(context)
    path = context.records_folder / f"gains-{scorer.fingerprint}.safetensors"
    gains = Gains(**load_file(path)) if path.is_file() else Gains.unknown(records)
    order = [i for i in range(len(records)) if scorer.answers[i]]
    if not scorer.on_gpu:
        Random("gains").shuffle(order)
        order = order[:on_cpu]
    measured = gains.known
    todo = [i for i in order if not measured[i]]
    counted = context.run.counted("reading each passage alone")
    for first in range(0, len(todo), scorer.questions_per_save):
        some = todo[first : first + scorer.questions_per_save]
        gains = _measured(gains, scorer, some, _part(counted, first, some, todo))
        with atomic(path) as partial:
            save_file({"passage": gains.passage, "unread": gains.unread}, partial)
    return gains


def _measured(gains: Gains, scorer: AnswerScorer, rows: Sequence[int], counted: Counted) -> Gains:
    passage, unread = gains.passage.clone(), gains.unread.clone()
    places = [(i, k) for i in rows for k in range(len(scorer.passages[i]))]
    found = scorer([(i, ()) for i in rows] + [(i, (k,)) for i, k in places], counted)
    unread[list(rows)] = found[: len(rows)]
    if places:
        i, k = torch.tensor(places).T
        passage[i, k] = (found[len(rows) :] - unread[i]).clamp(-LARGEST, LARGEST)
    return Gains(passage, unread)


def _part(counted: Counted, first: int, some: Sequence[int], todo: Sequence[int]) -> Counted:
    """Progress within `some`, as progress in `todo`."""
    return lambda done, of: counted(first + len(some) * done // of, len(todo))


@dataclass(frozen=True, slots=True)
class AnswerScorer:
    """Log-probabilities of right answers, whatever is read. Of each question:"""

    pocket: Pocket
    write: Callable[[Sequence[str], Sequence[str], str], str]  # a prompt
    questions: list[str]
    shown: list[list[str]]  # the words of its image
    passages: list[list[str]]  # what would be read of each
    answers: list[dict[str, float]]  # the best few that score something

    @staticmethod
    def of(context: TrainingContext) -> AnswerScorer:
        records, backbone = context.records, context.pipeline.backbone
        config = context.pipeline.config.decode

        def words(i: int) -> list[str]:
            if found := words_shown(records.seen_words(i), config):
                return found
            return names_shown(records.after_retrieve(i, len(backbone.concepts)), backbone)

        every = range(len(records))
        return AnswerScorer(
            pocket_of(backbone),
            prompt_of(config),
            [about["question"] for about in records.about],
            [words(i) for i in every],
            [[" ".join(found.text.split()) for found in records.candidates(i)] for i in every],
            [_best(scored(about["answers"])) for about in records.about],
        )

    @property
    def on_gpu(self) -> bool:
        return torch.cuda.is_available()

    @property
    def questions_per_save(self) -> int:
        return 2_048 if self.on_gpu else 8

    @property
    def fingerprint(self) -> str:
        """Of the reader and of all that it may be asked."""
        digest, reader = hashlib.sha256(), self.pocket.learned.reader
        digest.update(reader.read_bytes() if reader is not None else b"as published")
        asked = self.write.__name__, self.questions, self.shown, self.passages, self.answers
        digest.update(json.dumps(asked).encode())
        return digest.hexdigest()[:16]

    def __call__(self, readings: Sequence[Reading], counted: Counted = lambda *_: None) -> Tensor:
        """log of the summed p(answer) * score over the right answers, of each reading."""
        prompts = Prompts(
            [self.prompt(i, passages) for i, passages in readings],
            self.pocket.decoder_tokenizer,
            self.pocket.form,
        )
        pairs = [
            (number, place, answer, math.log(score))
            for number, (i, _) in enumerate(readings)
            for place, (answer, score) in enumerate(self.answers[i].items())
        ]
        numbers, places, answers, log_scores = zip(*pairs, strict=True)
        size = 1_024 if self.on_gpu else 16
        asked = list(zip(numbers, answers, strict=True))
        log_prob = log_probs(self._decoder(), prompts, asked, counted, size)
        weighted = torch.full((len(readings), MOST_ANSWERS), -torch.inf)
        weighted[torch.tensor(numbers), torch.tensor(places)] = log_prob + torch.tensor(log_scores)
        return weighted.logsumexp(1)

    def prompt(self, i: int, passages: Sequence[int]) -> str:
        """With the best passage last, as the decoder reads them."""
        facts = [self.passages[i][k] for k in reversed(passages)]
        return self.write(facts, self.shown[i], self.questions[i])

    def _decoder(self) -> Llama:
        decoder = self.pocket.decoder
        return copy.deepcopy(decoder).float().to("cuda") if self.on_gpu else decoder


def _best(answers: dict[str, float]) -> dict[str, float]:
    return dict(sorted(answers.items(), key=lambda pair: -pair[1])[:MOST_ANSWERS])


def pocket_of(backbone: Backbone) -> Pocket:
    backbone = uncached(backbone)
    if not isinstance(backbone, Pocket):
        raise UserError("this is for the reader of the preset pocket")
    return backbone
