"""A fusion reader's losses: where it points, the answer through the decoder, and what helps both.

Enters: examples (`fusion_examples.py`), a decoder, a fusion reader. Leaves: the loss of a batch, or
greedy answers. The parts of the loss:

- which word holds the answer: minus the log of how much is pointed at its first word, wherever a
  gold passage has it;
- which passages are gold: the binary cross-entropy of the edges, of those where that is known;
- edges beyond beta K per token (the last term of eq. D.3);
- the cross-entropy of the answer, which the decoder reads off a fact that is fused tokens. Half of
  the prompts have none of the image's words, half one passage as text besides;
- the distance to the same decoder reading the gold passages as text (KL), which nothing trains.

The first three need no decoder once it has been through all texts: that is how pointing is learned
from many more examples than answering. Gold and wrong passages come in any order. Everything is
drawn from the seed and the step.

Shapes: B questions, V tokens, K passages, T words, M words of all texts, d text width, D decoder
width, A tokens of all answers together, L tokens of a prompt.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from skipqa.backbones.backbone import IMAGE
from skipqa.backbones.networks.llama import Llama
from skipqa.nn.fusion_reader import (
    LONGEST_READ,
    SURE_OF,
    Asked,
    FusionRead,
    FusionReader,
    LocalTokens,
    Offered,
    Opening,
    PassageWords,
    retrieved_logs,
)
from skipqa.nn.soft_edges import degree_loss
from skipqa.stages.readers import WritePrompt
from skipqa.tasks.okvqa import normalise
from skipqa.training.pathway.fusion_examples import FusionExample, Scenes
from skipqa.training.stage1.reader import IGNORED, MAX_ANSWER_TOKENS, Prompts

AT_ONCE = 64  # questions that are answered together
TEXTS_AT_ONCE = 256  # through the decoder's early layers
WORDS_SHOWN = 0.5  # how often a prompt has the words of its image
BESIDES = 0.5  # how often it has a passage as text
GOLD_BESIDES = 0.7  # how often that one is gold
AS_FOUND = 0.5  # how often passages are those that are found and verified


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
    scores: tuple[float, ...] = ()  # nu_j, where they were verified
    retrieved: tuple[float, ...] = ()  # retrieval scores, where they were retrieved
    neither: tuple[bool, ...] = ()  # which may be right, though nobody knows; none by default


@dataclass(frozen=True, slots=True)
class Prompt:
    """In tokens: what stands before fused ones, nothing without them, and after."""

    before: list[int]
    after: list[int]


@dataclass(frozen=True, slots=True)
class FusionBatch:
    local: LocalTokens
    questions_B: Tensor
    asked_Bd: Tensor
    texts_BK: Tensor
    lengths_BK: Tensor
    offered: Offered
    gold_BK: Tensor
    judged_BK: Tensor  # bool: those that are there and known to be gold or wrong
    starts_BKT: Tensor  # bool: words with which the answer begins in a gold passage


@dataclass(frozen=True, slots=True)
class Written:
    """Texts as the decoder's tokens, one behind another."""

    ids_M: Tensor
    first: Tensor  # of each text
    lengths: Tensor

    @staticmethod
    def of(ids: Sequence[list[int]], device: torch.device) -> Written:
        lengths = torch.tensor([len(one) for one in ids], dtype=torch.long)
        every = torch.tensor([token for one in ids for token in one], dtype=torch.long)
        return Written(
            every.to(device), (lengths.cumsum(0) - lengths).to(device), lengths.to(device)
        )

    def places(self, texts: Tensor, longest: int = 0) -> Tensor:
        """[..., T]: where the words of these texts are; of padding, where some word is."""
        longest = longest or max(1, int(self.lengths[texts].max()))
        places = self.first[texts][..., None] + torch.arange(longest, device=texts.device)
        return places.clamp(max=max(0, len(self.ids_M) - 1))


class FusionTables:
    """Examples as numbers: every text once."""

    def __init__(
        self,
        examples: Sequence[FusionExample],
        scenes: Scenes,
        networks: ReaderNetworks,
    ) -> None:
        self.examples, self.scenes, self.networks = examples, scenes, networks
        self.text_decoder = networks.decoder  # stays as it is where another one is trained
        found = (text for one in examples for text in (*one.gold, *one.others, *one.found))
        self.texts = list(dict.fromkeys(found))
        self.row = {text: number for number, text in enumerate(self.texts)}
        self.written = [" ".join(text.split()) for text in self.texts]
        if networks.lower_case:
            self.written = [text.lower() for text in self.written]
        encoded = networks.tokenizer.encode_batch(self.written, add_special_tokens=False)
        self.offsets = [one.offsets[:LONGEST_READ] for one in encoded]
        device = networks.device
        self.words = Written.of([one.ids[:LONGEST_READ] for one in encoded], device)
        self.pooled_Pd = networks.embed(self.texts).to(device)
        asked = list(dict.fromkeys(one.question for one in examples))
        self.asked_Qd = networks.embed(asked).to(device)
        self.asked_row = {text: number for number, text in enumerate(asked)}
        encoded = networks.tokenizer.encode_batch(asked, add_special_tokens=False)
        self.asked_words = Written.of([one.ids for one in encoded], device)
        self.prompts = Prompts([], networks.tokenizer)
        self._early: dict[int, tuple[Tensor, Tensor]] = {}
        self._starts: dict[tuple[int, int], list[int]] = {}

    def early_states(self, layers: int) -> tuple[Tensor, Tensor]:
        """[M, D] each: of all questions, of all texts. The decoder does not change, so they are
        computed once."""
        if layers not in self._early:
            decoder = self.text_decoder
            self._early[layers] = (
                _states_of_all(self.networks, decoder, self.asked_words, layers),
                _states_of_all(self.networks, decoder, self.words, layers),
            )
        return self._early[layers]

    def offer(self, row: int, most: int, draw: random.Random) -> Offer:
        """The gold passages and others, shuffled; hard negatives first, then whatever there is.
        Every other time what was found and verified for the question, if a gold one is among it."""
        one = self.examples[row]
        if draw.random() < AS_FOUND and (not one.gold or not set(one.gold).isdisjoint(one.found)):
            return self.found(row)
        gold = [self.row[text] for text in one.gold][: max(1, most - 1)]
        hard = [self.row[text] for text in draw.sample(one.others, len(one.others))]
        chosen = [*gold, *hard][:most]
        for _ in range(most - len(chosen)):
            other = draw.randrange(len(self.texts))
            if other not in chosen:
                chosen.append(other)
        draw.shuffle(chosen)
        return Offer(row, tuple(chosen), tuple(text in gold for text in chosen))

    def found(self, row: int, most: int | None = None) -> Offer:
        """What is verified for a question when it is answered, or the best of it."""
        one = self.examples[row]
        texts = one.found[:most]
        rows = tuple(self.row[text] for text in texts)
        right, neither = (
            tuple(text in some for text in texts) for some in (set(one.gold), set(one.neither))
        )
        return Offer(row, rows, right, one.scores[:most], one.retrieved[:most], neither)

    def batch(self, offers: Sequence[Offer]) -> FusionBatch:
        device = self.networks.device
        num_passages = max(1, max(len(offer.texts) for offer in offers))
        texts = torch.zeros(len(offers), num_passages, dtype=torch.long)
        there, gold, neither = (torch.zeros_like(texts, dtype=torch.bool) for _ in range(3))
        scores, retrieved = torch.full(texts.shape, 0.5), torch.zeros(texts.shape)
        for b, offer in enumerate(offers):
            count = len(offer.texts)
            texts[b, :count], there[b, :count] = torch.tensor(offer.texts, dtype=torch.long), True
            gold[b, :count] = torch.tensor(offer.gold, dtype=torch.bool)
            neither[b, : len(offer.neither)] = torch.tensor(offer.neither, dtype=torch.bool)
            scores[b, : len(offer.scores)] = torch.tensor(offer.scores)
            retrieved[b, : len(offer.retrieved)] = retrieved_logs(offer.retrieved)
        lengths = self.words.lengths.cpu()[texts] * there
        starts = torch.zeros(*texts.shape, max(1, int(lengths.max())), dtype=torch.bool)
        for b, offer in enumerate(offers):
            for k, (text, right) in enumerate(zip(offer.texts, offer.gold, strict=True)):
                if right:
                    starts[b, k, self.starts(offer.row, text)] = True
        questions = torch.tensor([self.asked_row[self.examples[o.row].question] for o in offers])
        questions, texts = questions.to(device), texts.to(device)
        return FusionBatch(
            self.scenes(torch.tensor([self.examples[offer.row].scene for offer in offers])),
            questions,
            self.asked_Qd[questions],
            texts,
            lengths.to(device),
            Offered(
                self.pooled_Pd[texts],
                scores.clamp(*SURE_OF).logit().to(device),
                retrieved.to(device),
                there.to(device),
            ),
            gold.to(device),
            ((lengths > 0) & ~neither).to(device),
            starts.to(device),
        )

    def starts(self, row: int, text: int) -> list[int]:
        """Of the words of a text, those with which the answer begins; "art" is not in "a party"."""
        if (row, text) not in self._starts:
            answer, said = self.examples[row].answer.lower(), self.written[text].lower()
            begins = re.finditer(rf"(?<!\w){re.escape(answer)}", said) if answer else ()
            found: list[int] = []
            for first in (match.start() for match in begins):
                found += next(
                    ([n] for n, (_, end) in enumerate(self.offsets[text]) if end > first), []
                )
            self._starts[row, text] = found
        return self._starts[row, text]

    def prompt(
        self, row: int, facts: Sequence[int] = (), *, words: bool = True, fused: bool = False
    ) -> str:
        """The last fact is the best."""
        one = self.examples[row]
        texts = [self.texts[n] for n in facts]
        return self.networks.write(texts, one.shown if words else (), one.question, fused=fused)

    def prompts_of(self, texts: Sequence[str]) -> list[Prompt]:
        parts = [text.rpartition(IMAGE) for text in texts]
        encode = self.networks.tokenizer.encode_batch
        before, after = (encode([part[n] for part in parts]) for n in (0, 2))
        return [Prompt(list(b.ids), list(a.ids)) for b, a in zip(before, after, strict=True)]

    def answer(self, row: int) -> list[int]:
        return self.prompts.answer(self.examples[row].answer)[:MAX_ANSWER_TOKENS]


@torch.no_grad()
def _states_of_all(
    networks: ReaderNetworks, decoder: Llama, written: Written, layers: int
) -> Tensor:
    """[M, D]. Causal, so padding is not seen; the longest first, so that there is little of it."""
    dtype = torch.bfloat16 if networks.bfloat16 else torch.float32
    states_MD = torch.zeros(len(written.ids_M), decoder.config.width, dtype=dtype)
    states_MD = states_MD.to(networks.device)
    for texts in written.lengths.argsort(descending=True).split(TEXTS_AT_ONCE):
        places = written.places(texts)
        there = torch.arange(places.shape[1], device=places.device) < written.lengths[texts, None]
        with networks.autocast():
            found = decoder.early_states(decoder.embedding(written.ids_M[places]), layers)
        states_MD[places[there]] = found[there].to(dtype)
    return states_MD


def words_read(
    tables: FusionTables, batch: FusionBatch, early_layers: int
) -> tuple[Asked, PassageWords]:
    """As `GenerationMixin.decoder_words` has them."""
    decoder = tables.networks.decoder
    asked_places = tables.asked_words.places(batch.questions_B)
    places = tables.words.places(batch.texts_BK, batch.starts_BKT.shape[2])
    with torch.no_grad():
        embeddings = decoder.embedding(tables.words.ids_M[places])
        if decoder is tables.text_decoder:
            of_questions_MD, of_texts_MD = tables.early_states(early_layers)
            asked, states = of_questions_MD[asked_places], of_texts_MD[places]
            asked, states = asked.to(embeddings.dtype), states.to(embeddings.dtype)
        else:  # it is being trained
            raw = decoder.embedding(tables.asked_words.ids_M[asked_places])
            asked = decoder.early_states(raw, early_layers)
            states = decoder.early_states(embeddings.flatten(0, 1), early_layers)
            states = states.view_as(embeddings)
    lengths_B = tables.asked_words.lengths[batch.questions_B]
    read = Asked(batch.asked_Bd, asked, lengths_B)
    return read, PassageWords(states, embeddings, batch.lengths_BK)


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
    local: LocalTokens | None = None,
) -> dict[str, Tensor]:
    """Each part, with its weight. `local` stands in for the tokens of gathering."""
    batch = tables.batch(offers)
    batch = batch if local is None else replace(batch, local=local)
    around, by_text = _prompts(tables, offers, draw)
    answers = [tables.answer(offer.row) for offer in offers]
    with tables.networks.autocast():
        asked, words = words_read(tables, batch, reader.config.early_layers)
        read = reader.relaxed(batch.local, asked, batch.offered, words, opening)
        decoder = tables.networks.decoder
        logits, labels = answer_logits(decoder, around, answers, read.tokens_BLD)
        found = {"answer": F.cross_entropy(logits, labels)}
        if weights.distilled:
            with torch.no_grad():
                by_decoder = answer_logits(tables.text_decoder, by_text, answers)[0]
            found["distilled"] = weights.distilled * F.kl_div(
                logits.log_softmax(-1),
                by_decoder.log_softmax(-1),
                reduction="batchmean",
                log_target=True,
            )
    return {**found, **_of_reading(reader, read, batch, weights)}


def pointing_losses(
    reader: FusionReader,
    tables: FusionTables,
    offers: Sequence[Offer],
    opening: Opening,
    weights: LossWeights,
) -> dict[str, Tensor]:
    """Those of `losses` that need no decoder."""
    batch = tables.batch(offers)
    with tables.networks.autocast():
        asked, words = words_read(tables, batch, reader.config.early_layers)
        read = reader.relaxed(batch.local, asked, batch.offered, words, opening)
    return _of_reading(reader, read, batch, weights)


def _of_reading(
    reader: FusionReader, read: FusionRead, batch: FusionBatch, weights: LossWeights
) -> dict[str, Tensor]:
    found = {
        "pointer": weights.pointer * pointer_loss(read, batch.starts_BKT),
        "edges": weights.edges * edge_loss(read, batch),
    }
    if (beta := reader.config.beta) is not None:
        most_B = beta * (batch.lengths_BK > 0).sum(1)
        found["degree"] = degree_loss(read.edges.gates_BVK.float(), most_B, weights.degree)
    return found


def _prompts(
    tables: FusionTables, offers: Sequence[Offer], draw: random.Random
) -> tuple[list[Prompt], list[Prompt]]:
    """What stands around the fused tokens, and what the same decoder reads as text instead."""
    around, by_text = [], []
    for offer in offers:
        gold = [text for text, right in zip(offer.texts, offer.gold, strict=True) if right]
        besides: list[int] = []
        if draw.random() < BESIDES and offer.texts:
            from_gold = bool(gold) and draw.random() < GOLD_BESIDES
            besides = [draw.choice(gold if from_gold else offer.texts)]
        words = draw.random() < WORDS_SHOWN
        around.append(tables.prompt(offer.row, besides, words=words, fused=True))
        by_text.append(tables.prompt(offer.row, gold))
    return tables.prompts_of(around), tables.prompts_of(by_text)


def pointer_loss(read: FusionRead, starts_BKT: Tensor) -> Tensor:
    """Over all questions whose answer is known to stand somewhere."""
    known_B = starts_BKT.any((1, 2))
    prob_B = (read.pointed_BKT * starts_BKT).sum((1, 2))
    loss_B = -prob_B.float().clamp_min(1e-6).log()
    return (loss_B * known_B).sum() / known_B.sum().clamp(min=1)


def edge_loss(read: FusionRead, batch: FusionBatch) -> Tensor:
    """Of the passages that are known to be gold or wrong."""
    logits_BVK = read.edges.logits_BVK.float()
    target_BVK = batch.gold_BK[:, None].expand_as(logits_BVK).float()
    judged_BVK = batch.judged_BK[:, None].expand_as(logits_BVK)
    each = F.binary_cross_entropy_with_logits(logits_BVK, target_BVK, reduction="none")
    return (each * judged_BVK).sum() / judged_BVK.sum().clamp(min=1)


@torch.inference_mode()
def read_hard(
    reader: FusionReader,
    tables: FusionTables,
    offers: Sequence[Offer],
    given_BVK: Tensor | None = None,
) -> FusionRead:
    """As answering reads, along the edges that the rule keeps, or along these."""
    batch = tables.batch(offers)
    asked, words = words_read(tables, batch, reader.config.early_layers)
    return reader(batch.local, asked, batch.offered, words, given_BVK)


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
