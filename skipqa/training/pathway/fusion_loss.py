"""A fusion reader's losses: the answer through the decoder, and what helps it on its way there.

Enters: examples (`fusion_examples.py`), a decoder, a fusion reader. Leaves: the loss of a batch, or
greedy answers. The parts of the loss:

- the cross-entropy of the answer, which the decoder reads off a fact that is fused tokens. Half of
  the prompts have none of the image's words, half one passage as text besides;
- which word holds the answer: minus the log of how much the first pointer points at its first word;
- which passages are gold: the binary cross-entropy of the edges;
- edges beyond beta K per token (the last term of eq. D.3);
- the distance to the same decoder reading the gold passages as text (KL), which nothing trains.

Gold and wrong passages come in any order. Everything is drawn from the seed and the step.

Shapes: B questions, V tokens, K passages, T words, S pointers, d text width, D decoder width, A
tokens of all answers together, L tokens of a prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from skipqa.backbones.backbone import IMAGE
from skipqa.backbones.networks.llama import Llama
from skipqa.nn.fusion_reader import (
    Asked,
    FusionRead,
    FusionReader,
    LocalTokens,
    Opening,
    PassageWords,
)
from skipqa.nn.soft_edges import degree_loss
from skipqa.stages.readers import WritePrompt
from skipqa.tasks.okvqa import normalise
from skipqa.training.pathway.fusion_examples import FusionExample, Scenes
from skipqa.training.stage1.reader import IGNORED, MAX_ANSWER_TOKENS, Prompts

AT_ONCE = 64  # questions that are answered together
WORDS_SHOWN = 0.5  # how often a prompt has the words of its image
BESIDES = 0.5  # how often it has a passage as text
GOLD_BESIDES = 0.7  # how often that one is gold


@dataclass(frozen=True, slots=True)
class ReaderNetworks:
    """A decoder, and how its prompts are written."""

    decoder: Llama
    tokenizer: Tokenizer
    write: WritePrompt
    lower_case: bool  # of passages, also in the prompt
    embed: Callable[[Sequence[str]], Tensor]  # [n, d] by the text encoder
    bfloat16: bool = False  # products of matrices

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16)

    @property
    def device(self) -> torch.device:
        return self.decoder.embedding.weight.device

    @property
    def embedding_rms(self) -> float:
        return float(self.decoder.embedding.weight.detach().float().square().mean().sqrt())


@dataclass(frozen=True, slots=True)
class LossWeights:
    pointer: float = 0.5
    edges: float = 0.2
    degree: float = 0.05  # lambda_e
    distilled: float = 0.5


@dataclass(frozen=True, slots=True)
class Offer:
    """What one question may read: rows of the texts, and which of them are gold."""

    row: int  # of the examples
    texts: tuple[int, ...]
    gold: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """In tokens: what stands before fused ones, nothing without them, and after."""

    before: list[int]
    after: list[int]


@dataclass(frozen=True, slots=True)
class FusionBatch:
    local: LocalTokens
    asked_Bd: Tensor
    asked_ids_BT: Tensor
    asked_lengths_B: Tensor
    pooled_BKd: Tensor
    ids_BKT: Tensor
    lengths_BK: Tensor
    gold_BK: Tensor
    pointer_B2: Tensor  # which passage, the first word of the answer there; -1: unknown


class FusionTables:
    """Examples as numbers: every text once."""

    def __init__(
        self,
        examples: Sequence[FusionExample],
        scenes: Scenes,
        networks: ReaderNetworks,
        longest: int = 96,
    ) -> None:
        """Of a passage at most the `longest` words are read."""
        self.examples, self.scenes, self.networks = examples, scenes, networks
        self.text_decoder = networks.decoder  # stays as it is where another one is trained
        found = (text for one in examples for text in (*one.gold, *one.others))
        self.texts = list(dict.fromkeys(found))
        self.row = {text: number for number, text in enumerate(self.texts)}
        self.written = [" ".join(text.split()) for text in self.texts]
        if networks.lower_case:
            self.written = [text.lower() for text in self.written]
        encoded = networks.tokenizer.encode_batch(self.written, add_special_tokens=False)
        self.ids = [torch.tensor(one.ids[:longest]) for one in encoded]
        self.offsets = [one.offsets[:longest] for one in encoded]
        device = networks.device
        self.pooled_Pd = networks.embed(self.texts).to(device)
        asked = list(dict.fromkeys(one.question for one in examples))
        self.asked_Qd = networks.embed(asked).to(device)
        self.asked_row = {text: number for number, text in enumerate(asked)}
        encoded = networks.tokenizer.encode_batch(asked, add_special_tokens=False)
        self.asked_ids = [torch.tensor(one.ids) for one in encoded]
        self.prompts = Prompts([], networks.tokenizer)

    def offer(self, row: int, most: int, draw: random.Random) -> Offer:
        """The gold passages and others, shuffled; hard negatives first, then whatever there is."""
        one = self.examples[row]
        gold = [self.row[text] for text in one.gold][: max(1, most - 1)]
        hard = [self.row[text] for text in draw.sample(one.others, len(one.others))]
        chosen = [*gold, *hard][:most]
        for _ in range(most - len(chosen)):
            other = draw.randrange(len(self.texts))
            if other not in chosen:
                chosen.append(other)
        draw.shuffle(chosen)
        return Offer(row, tuple(chosen), tuple(text in gold for text in chosen))

    def batch(self, offers: Sequence[Offer]) -> FusionBatch:
        device = self.networks.device
        num_passages = max(1, max(len(offer.texts) for offer in offers))
        lengths = torch.zeros(len(offers), num_passages, dtype=torch.long)
        texts, gold = torch.zeros_like(lengths), torch.zeros_like(lengths, dtype=torch.bool)
        for b, offer in enumerate(offers):
            for k, text in enumerate(offer.texts):
                lengths[b, k], texts[b, k] = len(self.ids[text]), text
                gold[b, k] = offer.gold[k]
        ids = torch.zeros(*lengths.shape, max(1, int(lengths.max())), dtype=torch.long)
        for b, offer in enumerate(offers):
            for k, text in enumerate(offer.texts):
                ids[b, k, : len(self.ids[text])] = self.ids[text]
        rows = [offer.row for offer in offers]
        asked = [self.asked_row[self.examples[row].question] for row in rows]
        asked_ids = [self.asked_ids[number] for number in asked]
        return FusionBatch(
            self.scenes(torch.tensor([self.examples[row].scene for row in rows])),
            self.asked_Qd[asked],
            pad_sequence(asked_ids, batch_first=True).to(device),
            torch.tensor([len(ids) for ids in asked_ids], device=device),
            self.pooled_Pd[texts.to(device)],
            ids.to(device),
            lengths.to(device),
            gold.to(device),
            torch.tensor([self._pointer(offer) for offer in offers], device=device),
        )

    def _pointer(self, offer: Offer) -> tuple[int, int]:
        """Where the answer begins in a gold passage, the last one that has it."""
        answer = self.examples[offer.row].answer.lower()
        for k in reversed(range(len(offer.texts))):
            if not offer.gold[k]:
                continue
            text = offer.texts[k]
            start = self.written[text].lower().find(answer)
            if start < 0:
                continue
            inside = (n for n, (_, end) in enumerate(self.offsets[text]) if end > start)
            if (first := next(inside, None)) is not None:
                return k, first
        return -1, -1

    def prompt(
        self, row: int, facts: Sequence[int] = (), *, words: bool = True, fused: bool = False
    ) -> Prompt:
        """The last fact is the best."""
        one = self.examples[row]
        shown = one.shown if words else ()
        texts = [self.texts[n] for n in facts]
        text = self.networks.write(texts, shown, one.question, fused=fused)
        before, _, after = text.rpartition(IMAGE)
        encode = self.networks.tokenizer.encode
        return Prompt(list(encode(before).ids), list(encode(after).ids))

    def answer(self, row: int) -> list[int]:
        return self.prompts.answer(self.examples[row].answer)[:MAX_ANSWER_TOKENS]


def words_read(
    decoder: Llama, batch: FusionBatch, early_layers: int
) -> tuple[Asked, PassageWords]:
    """As `GenerationMixin.decoder_words` has them, in one pass; causal, so padding is not seen."""
    with torch.no_grad():
        asked = decoder.early_states(decoder.embedding(batch.asked_ids_BT), early_layers)
        embeddings = decoder.embedding(batch.ids_BKT.flatten(0, 1))
        states = decoder.early_states(embeddings, early_layers)
    shape = batch.ids_BKT.shape[:2]
    return Asked(batch.asked_Bd, asked, batch.asked_lengths_B), PassageWords(
        states.unflatten(0, shape), embeddings.unflatten(0, shape), batch.lengths_BK
    )


def embedded(
    decoder: Llama,
    prompts: Sequence[Prompt],
    answers: Sequence[list[int]],
    visual_BLD: Tensor | None = None,
) -> tuple[Tensor, list[int]]:
    """Prompts with what follows them, padded at the end, and where each of these begins. What
    stands before fused tokens is the same in all prompts."""
    device, start = decoder.embedding.weight.device, len(prompts[0].before)
    texts = [one.after + more for one, more in zip(prompts, answers, strict=True)]
    ids = torch.zeros(len(texts), start + max(map(len, texts)), dtype=torch.long)
    for b, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        both = prompt.before + text
        ids[b, : len(both)] = torch.tensor(both)
    x_BLD = decoder.embedding(ids.to(device))
    ends = [len(one.before) + len(one.after) for one in prompts]
    if visual_BLD is None:
        return x_BLD, ends
    parts = (x_BLD[:, :start], visual_BLD.to(x_BLD.dtype), x_BLD[:, start:])
    return torch.cat(parts, dim=1), [end + visual_BLD.shape[1] for end in ends]


def answer_logits(
    decoder: Llama,
    prompts: Sequence[Prompt],
    answers: Sequence[list[int]],
    visual_BLD: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """[A, vocabulary] at the places of the answers' tokens, and these tokens [A]."""
    x_BLD, starts = embedded(decoder, prompts, answers, visual_BLD)
    labels = torch.full(x_BLD.shape[:2], IGNORED)
    for b, (start, answer) in enumerate(zip(starts, answers, strict=True)):
        labels[b, start : start + len(answer)] = torch.tensor(answer)
    labels = labels.to(x_BLD.device)
    hidden = decoder.states(x_BLD)[:, :-1]
    chosen = labels[:, 1:] != IGNORED
    return decoder.logits(hidden[chosen]).float(), labels[:, 1:][chosen]


def losses(
    reader: FusionReader,
    tables: FusionTables,
    offers: Sequence[Offer],
    opening: Opening,
    weights: LossWeights,
    draw: random.Random,
) -> dict[str, Tensor]:
    """Each part, with its weight."""
    decoder, batch = tables.networks.decoder, tables.batch(offers)
    prompts, by_text = zip(*(_prompts(tables, offer, draw) for offer in offers), strict=True)
    answers = [tables.answer(offer.row) for offer in offers]
    with tables.networks.autocast():
        asked, words = words_read(decoder, batch, reader.config.early_layers)
        read = reader.relaxed(batch.local, asked, batch.pooled_BKd, words, opening)
        logits, labels = answer_logits(decoder, prompts, answers, read.tokens_BLD)
        with torch.no_grad():
            target = answer_logits(tables.text_decoder, by_text, answers)[0].log_softmax(-1)
    found = {
        "answer": F.cross_entropy(logits, labels),
        "pointer": weights.pointer * pointer_loss(read, batch.pointer_B2),
        "edges": weights.edges * edge_loss(read, batch),
        "distilled": weights.distilled
        * F.kl_div(logits.log_softmax(-1), target, reduction="batchmean", log_target=True),
    }
    if (beta := reader.config.beta) is not None:
        most_B = beta * (batch.lengths_BK > 0).sum(1)
        found["degree"] = degree_loss(read.edges.gates_BVK.float(), most_B, weights.degree)
    return found


def _prompts(
    tables: FusionTables, offer: Offer, draw: random.Random
) -> tuple[Prompt, Prompt]:
    """What stands around the fused tokens, and what the same decoder reads as text instead."""
    gold = [text for text, right in zip(offer.texts, offer.gold, strict=True) if right]
    besides: list[int] = []
    if draw.random() < BESIDES and offer.texts:
        from_gold = bool(gold) and draw.random() < GOLD_BESIDES
        besides = [draw.choice(gold if from_gold else offer.texts)]
    words = draw.random() < WORDS_SHOWN
    around = tables.prompt(offer.row, besides, words=words, fused=True)
    return around, tables.prompt(offer.row, gold)


def pointer_loss(read: FusionRead, pointer_B2: Tensor) -> Tensor:
    """Over all answers that are known to stand somewhere."""
    assert read.pointed_BSKT is not None
    known_B = pointer_B2[:, 0] >= 0
    passage_B, word_B = pointer_B2.clamp(min=0).unbind(1)
    items_B = torch.arange(len(pointer_B2), device=pointer_B2.device)
    prob_B = read.pointed_BSKT[items_B, 0, passage_B, word_B]
    loss_B = -prob_B.float().clamp_min(1e-6).log()
    return (loss_B * known_B).sum() / known_B.sum().clamp(min=1)


def edge_loss(read: FusionRead, batch: FusionBatch) -> Tensor:
    """Of the passages that are there."""
    logits_BVK = read.edges.logits_BVK.float()
    target_BVK = batch.gold_BK[:, None].expand_as(logits_BVK).float()
    there_BVK = (batch.lengths_BK > 0)[:, None].expand_as(logits_BVK)
    each = F.binary_cross_entropy_with_logits(logits_BVK, target_BVK, reduction="none")
    return (each * there_BVK).sum() / there_BVK.sum().clamp(min=1)


@torch.inference_mode()
def read_hard(
    reader: FusionReader,
    tables: FusionTables,
    offers: Sequence[Offer],
    edges_BVK: Tensor | None = None,
) -> FusionRead:
    """As answering reads, along the edges that the rule keeps, or along these."""
    batch = tables.batch(offers)
    asked, words = words_read(tables.networks.decoder, batch, reader.config.early_layers)
    return reader(batch.local, asked, batch.pooled_BKd, words, edges_BVK)


@torch.inference_mode()
def greedy(
    networks: ReaderNetworks, prompts: Sequence[Prompt], visual_BLD: Tensor | None = None
) -> list[str]:
    """Answers, normalised, of a few prompts at once. No KV cache: they are short."""
    decoder, end = networks.decoder, Prompts([], networks.tokenizer).end
    found: list[list[int]] = [[] for _ in prompts]
    unfinished = list(range(len(prompts)))
    for _ in range(MAX_ANSWER_TOKENS):
        if not unfinished:
            break
        asked, said = [prompts[b] for b in unfinished], [found[b] for b in unfinished]
        visual = None if visual_BLD is None else visual_BLD[unfinished]
        with networks.autocast():
            x_BLD, starts = embedded(decoder, asked, said, visual)
            last = [start + len(ids) - 1 for start, ids in zip(starts, said, strict=True)]
            hidden = decoder.states(x_BLD)[torch.arange(len(last)), last]
            best = decoder.logits(hidden).argmax(-1).tolist()
        still = []
        for b, token in zip(unfinished, best, strict=True):
            if token != end:
                found[b].append(token)
                still.append(b)
        unfinished = still
    return [normalise(networks.tokenizer.decode(ids).strip()) for ids in found]
