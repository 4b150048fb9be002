"""The reader: the language model is fine-tuned to answer in few words from words and passages.

Enters: questions, the words and passages of their prompts, answers with their scores. Leaves: the
decoder with all layers trained, its greedy answers and its log-probabilities of others. The answer
to train on is drawn anew each time in proportion to the square of its score, so that the model
learns how people's answers are distributed, with more weight where they agree.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from skipqa.backbones.networks.llama import SMOLLM2_135M, Llama
from skipqa.backbones.presets.pocket import END, Pocket, PromptForm
from skipqa.config import Count, Weight
from skipqa.errors import UserError
from skipqa.nn import low_rank
from skipqa.tasks.okvqa import normalise
from skipqa.training.example import TrainExample
from skipqa.training.loop import Optimisation, bucketed, fit, steps_for
from skipqa.training.run import Counted, Run
from skipqa.training.stage1.drafter import TRAIN_GROUPS

MAX_ANSWER_TOKENS = 8
PLAIN_ATTENTION = 256  # tokens at most, on a CPU
IGNORED = -100  # no label: the prompt and padding


M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class ReaderTraining:
    epochs: Weight = 1.5
    focus_epochs: Weight = 3.0  # on knowledge questions alone, at focus_lr; 0: none
    batch: Count = 128
    most_tokens: Count = 24_576  # of a batch: with many passages it has fewer questions
    lr: Weight = 2e-4
    focus_lr: Weight = 5e-5
    # How often a question is repeated per epoch: knowledge questions at first; then OK-VQA's, which
    # are few next to those that passages answer
    knowledge_times: Count = 2
    focus_okvqa_times: Count = 3

    def mixed(self, groups: Mapping[str, Tensor]) -> list[Tensor]:
        """Rows of all groups that are trained on."""
        *knowledge, common, perceptual = (groups[name] for name in TRAIN_GROUPS)
        return knowledge * self.knowledge_times + [common, perceptual]

    def focused(self, groups: Mapping[str, Tensor]) -> list[Tensor]:
        """Rows of those that may need knowledge."""
        okvqa, *others, _ = (groups[name] for name in TRAIN_GROUPS)
        return [okvqa] * self.focus_okvqa_times + others


class Prompts:
    """Prompts and answers as token ids, in the decoder's form."""

    def __init__(
        self, texts: Sequence[str], tokenizer: Tokenizer, form: PromptForm = Pocket.form
    ) -> None:
        end = tokenizer.token_to_id(END)
        if end is None:
            raise UserError(f"the decoder's tokenizer has no {END}")
        written = [form.written(text) if text else "" for text in texts]
        self.ids = [one.ids for one in tokenizer.encode_batch(written)]
        self.tokenizer, self.form, self.end = tokenizer, form, end
        self._answers: dict[str, list[int]] = {}

    def answer(self, text: str) -> list[int]:
        """And then the end."""
        if text not in self._answers:
            self._answers[text] = [*self.form.answer_ids(text, self.tokenizer), self.end]
        return self._answers[text]

    def batch(
        self, rows: Sequence[int], answers: Sequence[str], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Ids [B, L] padded at the end, and the labels, IGNORED elsewhere."""
        prompts = [self.ids[row] for row in rows]
        pairs = list(zip(prompts, map(self.answer, answers), strict=True))
        length = max(len(prompt) + len(answer) for prompt, answer in pairs)
        ids = torch.zeros(len(pairs), length, dtype=torch.long)
        labels = torch.full((len(pairs), length), IGNORED)
        for place, (prompt, answer) in enumerate(pairs):
            end = len(prompt) + len(answer)
            ids[place, :end] = torch.tensor(prompt + answer)
            labels[place, len(prompt) : end] = torch.tensor(answer)
        return ids.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def in_bfloat16(decoder: Llama) -> torch.autocast:
    """Products of matrices on a GPU, and on a CPU if the embedding, which is never trained, is in
    bfloat16."""
    weight = decoder.embedding.weight
    kind = weight.device.type
    enabled = kind == "cuda" or weight.dtype == torch.bfloat16
    return torch.autocast(kind, torch.bfloat16, enabled=enabled)


def _attention(ids: Tensor, recompute: bool) -> AbstractContextManager[None]:
    """A CPU's fused attention is slow backwards: for short prompts two plain products take a sixth
    off a step; for long ones they need too much memory. With `recompute`, layers run again outside
    of this block, which would not apply to them."""
    trained = torch.is_grad_enabled() and not recompute
    plain = ids.device.type == "cpu" and trained and ids.shape[1] <= PLAIN_ATTENTION
    return sdpa_kernel(SDPBackend.MATH) if plain else nullcontext()


def embedded(decoder: Llama, ids: Tensor) -> Tensor:
    """[B, T, D], as precise as the sums of the layers are to be, whatever the embedding is in."""
    found: Tensor = decoder.embedding(ids).to(decoder.norm.weight.dtype)
    return found


def losses(
    decoder: Llama, ids: Tensor, labels: Tensor, *, recompute: bool = False
) -> tuple[Tensor, Tensor]:
    """The loss of each labelled token, and which these are, [B, L - 1]. `recompute` as of
    `Llama.states`."""
    with in_bfloat16(decoder), _attention(ids, recompute):
        hidden = decoder.states(embedded(decoder, ids), recompute=recompute)[:, :-1]
        chosen = labels[:, 1:] != IGNORED
        logits = decoder.logits(hidden[chosen])
    return F.cross_entropy(logits.float(), labels[:, 1:][chosen], reduction="none"), chosen


@dataclass(frozen=True, slots=True)
class ReaderInputs:
    prompts: Prompts
    examples: Sequence[TrainExample]
    groups: Mapping[str, Tensor]  # rows of prompts and examples alike, by source and split


@dataclass(frozen=True, slots=True)
class ReaderTrainer:
    """Prompts and how they are trained on."""

    inputs: ReaderInputs
    run: Run
    training: ReaderTraining
    recompute: bool = False  # as of `Llama.states`

    def phase(
        self,
        name: str,
        decoder: Llama,
        module: M,
        mixed: Sequence[Tensor],
        optimisation: Optimisation,
    ) -> M:
        """`module` is trained: the decoder, or what stands beside it. `mixed` are rows of the
        prompts."""
        prompts, examples, seed = self.inputs.prompts, self.inputs.examples, self.run.seed
        device, batch = decoder.embedding.weight.device, self.training.batch
        lengths = torch.tensor([len(ids) for ids in prompts.ids])
        batch_at = bucketed(mixed, lengths, batch, seed, most=self.training.most_tokens)

        def loss(step: int) -> Tensor:
            rows = batch_at(step).tolist()
            draw = random.Random(seed * 1_000_003 + step)
            answers = [draw_answer(examples[row], draw) for row in rows]
            ids, labels = prompts.batch(rows, answers, device)
            return losses(decoder, ids, labels, recompute=self.recompute)[0].mean()

        return fit(name, module, loss, optimisation, self.run)

    def all_weights(
        self, name: str, decoder: Llama, mixed: Sequence[Tensor], epochs: float, lr: float
    ) -> Llama:
        steps = steps_for(epochs, mixed, self.training.batch)
        return self.phase(name, decoder, decoder, mixed, Optimisation(steps, lr))


def train(decoder: Llama, trainer: ReaderTrainer, rank: int) -> Llama:
    """All weights are trained on the mixture, then factors of `rank` on knowledge questions, so
    that truncating the delta to it costs nothing."""
    training, published = trainer.training, copy.deepcopy(decoder.state_dict())
    groups = trainer.inputs.groups
    train_all_but_embeddings(decoder)
    mixed = training.mixed(groups)
    decoder = trainer.all_weights("reader", decoder, mixed, training.epochs, training.lr)
    if training.focus_epochs:
        low_rank.factor(decoder, published, rank)
        focused, epochs, lr = training.focused(groups), training.focus_epochs, training.focus_lr
        decoder = trainer.all_weights("reader/focus", decoder, focused, epochs, lr)
        low_rank.merge(decoder)
    return decoder


def train_all_but_embeddings(decoder: Llama) -> None:
    decoder.requires_grad_(True)
    decoder.embedding.requires_grad_(False)  # shared by everything learned before, and large


def draw_answer(example: TrainExample, draw: random.Random) -> str:
    texts = list(example.answers)
    return draw.choices(texts, [example.answers[text] ** 2 for text in texts])[0]


def mean_score(
    examples: Sequence[TrainExample], rows: Sequence[int], given: Sequence[str]
) -> float:
    """Of the answers given to these rows."""
    scores = [examples[row].answers.get(text, 0.0) for row, text in zip(rows, given, strict=True)]
    return sum(scores) / max(1, len(scores))


def _at_once(decoder: Llama, most: int) -> int:
    """Prompts that are scored together: `most` by the smallest decoder, by a larger one as many as
    fill the same memory."""
    return max(1, min(most, most * SMOLLM2_135M.ffn // decoder.config.ffn))


@torch.inference_mode()
def generate(
    decoder: Llama,
    prompts: Prompts,
    rows: Sequence[int],
    counted: Counted = lambda *_: None,
    size: int | None = None,
) -> list[str]:
    """Greedy answers, normalised. No KV cache: the prompts are short and few."""
    size = size or _at_once(decoder, 256)
    device = decoder.embedding.weight.device
    found: dict[int, list[int]] = {row: [] for row in rows}
    order = sorted(rows, key=lambda row: len(prompts.ids[row]))
    for start in range(0, len(order), size):
        open_rows = order[start : start + size]
        for _ in range(MAX_ANSWER_TOKENS):
            if not open_rows:
                break
            texts = [prompts.ids[row] + found[row] for row in open_rows]
            ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
            for place, text in enumerate(texts):
                ids[place, : len(text)] = torch.tensor(text)
            with in_bfloat16(decoder):
                hidden = decoder.states(embedded(decoder, ids.to(device)))
                last = torch.tensor([len(text) - 1 for text in texts], device=device)
                best = decoder.logits(hidden[torch.arange(len(texts)), last]).argmax(-1).tolist()
            still = []
            for row, token in zip(open_rows, best, strict=True):
                if token != prompts.end:
                    found[row].append(token)
                    still.append(row)
            open_rows = still
        counted(min(start + size, len(order)), len(order))
    return [normalise(prompts.tokenizer.decode(found[row]).strip()) for row in rows]


@torch.inference_mode()
def log_probs(
    decoder: Llama,
    prompts: Prompts,
    pairs: Sequence[tuple[int, str]],
    counted: Counted = lambda *_: None,
    size: int | None = None,
) -> Tensor:
    """Log-probability of each (row, answer), the end token included."""
    size = size or _at_once(decoder, 1_024)
    device = decoder.embedding.weight.device
    found = torch.zeros(len(pairs))
    order = sorted(range(len(pairs)), key=lambda i: len(prompts.ids[pairs[i][0]]))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        rows, answers = zip(*(pairs[i] for i in chosen), strict=True)
        each, where = losses(decoder, *prompts.batch(rows, answers, device))
        table = torch.zeros(where.shape, device=device).masked_scatter_(where, each)
        found[torch.tensor(chosen)] = -table.sum(1).cpu()
        counted(start + len(chosen), len(order))
    return found
