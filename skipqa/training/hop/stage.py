"""The bridge of SKIP-Iter: which words of a question stand for one, and what passages name it.

Enters: Pocket-KB, OK-VQA's questions, a library that has Pocket-KB's passages. Leaves: a bridge, if
on held-out entities and wordings it finds what passages name at least as often as the rule it
replaces. Three parts that share nothing but their file: whether a question has words for a bridge,
which they are (`retrieval/spans.py` trains such a head), and a pointer into passages. No photo is
read, so it takes minutes on two cores; `benchmarks/multihop.py` measures what it does for answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from skipqa.backbones.text_encoder import MiniLm
from skipqa.config import Count, NonNegative
from skipqa.data.pocket_kb.text import plain
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.bridge import NONE, BridgeConfig, BridgePointer
from skipqa.stages.hop import capitalised
from skipqa.training.export import copy_components, ship
from skipqa.training.hop import questions
from skipqa.training.hop.passages import Encoded, PointedAt, encode, pointed_at
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation, batches, fit
from skipqa.training.pathway.context import TRAINED
from skipqa.training.pipelines import Source, text_digest
from skipqa.training.retrieval import spans
from skipqa.training.retrieval.about import TRAIN
from skipqa.training.retrieval.spans import Spanned, SpanTraining, Tokens
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage

PART = "bridge"
DECAY, ITERATIONS = 3e-7, 400  # of the logistic regression


@dataclass(frozen=True, slots=True)
class PointerTraining:
    rank: Count = 8
    steps: Count = 2_000
    batch: Count = 64
    lr: LearningRate = 3e-3
    weight_decay: Decay = 0.05


@dataclass(frozen=True, slots=True)
class HopSettings:
    span: SpanTraining = field(default_factory=lambda: SpanTraining(steps=2_000))
    pointer: PointerTraining = field(default_factory=PointerTraining)
    made: NonNegative = 2  # questions of two steps from each first step, and about each flag


@dataclass(frozen=True, slots=True)
class HopStage(TrainingStage):
    settings: HopSettings

    def run(self, inputs: Inputs, settings: HopSettings, run: Run) -> Metrics:
        data, pocket_kb = inputs.require_data(self.name), inputs.require_pocket_kb(self.name)
        source = Source(inputs.preset, inputs.components, inputs.index)
        run.claim(
            {
                "stage": self.name,
                "seed": run.seed,
                "limit": inputs.limit,
                "pocket_kb": text_digest(pocket_kb / TRAIN),
                **source.fingerprint((PART,)),
                "settings": dataclasses.asdict(settings),
            }
        )
        if PART not in run.metrics():
            pipeline = source.load()
            rows = questions.read_rows(pocket_kb)[: inputs.limit]
            made = settings.made
            both = questions.asked_in_two_steps(rows, run.seed, made)
            if not both:
                raise UserError("nothing to learn from: Pocket-KB asks no question of two steps")
            most = settings.span.most
            both = questions.some(both, most)
            steps = [step for _, step in both]
            asked = [
                *(question for question, _ in both),
                *questions.asked_in_one_step(rows),
                *questions.some(questions.reworded_in_one_step(rows, run.seed, made), most),
                *questions.some(questions.from_okvqa(data / "okvqa", pocket_kb), most),
            ]
            text = MiniLm()
            tokens = spans.prepare(asked, text.network, text.tokenizer)
            head, of_span = spans.train(tokens, settings.span, run)
            several, of_steps = train_steps(tokens, asked)
            examples = pointed_at(steps, pipeline, run.counted("searching"))
            texts = [one.text for one in examples] + [one.phrase for one in examples]
            encoded = encode(texts, pipeline.backbone, run.counted("encoding passages"))
            model = train(examples, encoded, settings.pointer, run)
            model.nested, model.steps = head, several
            measured = quality(model, examples, encoded)
            ships = measured["found"] >= measured["found by the rule"]
            copy_components(source.folder, run.folder)
            path = run.folder / TRAINED / f"{PART}.safetensors"
            checkpoint.save(model, path, preset=pipeline.config.preset, eight_bit=True)
            if ships:
                ship(path, run.folder)
            found = {"steps": of_steps, "nested": of_span, "pointer": measured}
            run.finish(PART, {"ships": ships, **found})
        run.forget_states()
        return run.metrics()


STAGE = HopStage("hop", HopSettings(), needs_pocket="it reads states of pocket's text encoder")


def train_steps(tokens: Tokens, asked: Sequence[Spanned]) -> tuple[nn.Linear, Metrics]:
    """Whether a question has words for a bridge, by its embedding: a logistic regression. And of
    held-out questions of each kind, how many are judged rightly."""
    sums_QD = torch.zeros(len(asked), tokens.states.shape[1])
    sums_QD.index_add_(0, tokens.question, tokens.states)
    embeddings_QD = F.normalize(sums_QD, dim=1)  # as the text encoder pools
    has_Q = torch.tensor([one.span is not None for one in asked])
    own_Q = ~tokens.held_out
    module = nn.Linear(embeddings_QD.shape[1], 1)
    nn.init.zeros_(module.weight)
    optimiser = torch.optim.LBFGS(module.parameters(), max_iter=ITERATIONS)

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = module(embeddings_QD[own_Q])[:, 0]
        value = F.binary_cross_entropy_with_logits(logits, has_Q[own_Q].float())
        value = value + DECAY * module.weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    with torch.no_grad():
        right_Q = (module(embeddings_QD)[:, 0] > 0) == has_Q
    okvqa_Q = tokens.source == spans.SOURCES.index(spans.OKVQA)
    kinds = {"two": has_Q, "one": ~has_Q & ~okvqa_Q, "okvqa": okvqa_Q}
    return module, {
        name: {"questions": int(chosen.sum()), "right": _mean(right_Q[chosen].tolist())}
        for name, of_kind in kinds.items()
        if (chosen := of_kind & tokens.held_out).any()
    }


def train(
    examples: Sequence[PointedAt],
    encoded: Mapping[str, Encoded],
    settings: PointerTraining,
    run: Run,
) -> BridgePointer:
    torch.manual_seed(run.seed)
    width = next(iter(encoded.values())).states_Ld.shape[1]
    model = BridgePointer(BridgeConfig(width, settings.rank))
    optimisation = Optimisation(
        settings.steps, settings.lr, settings.steps // 20, settings.weight_decay
    )
    own = [one for one in examples if not one.held_out]
    loss = loss_of(own, encoded, settings, model, run.seed)
    return fit("pointer", model, loss, optimisation, run)


def loss_of(
    examples: Sequence[PointedAt],
    encoded: Mapping[str, Encoded],
    settings: PointerTraining,
    model: BridgePointer,
    seed: int,
) -> Loss:
    """The cross-entropy of the first and the last token of any right span, or of none. As many
    passages that name a bridge as others, per epoch."""
    naming = torch.tensor([n for n, one in enumerate(examples) if one.spans])
    others = torch.tensor([n for n, one in enumerate(examples) if not one.spans])
    times = max(1, round(len(naming) / max(1, len(others))))
    draw = batches([naming, others.long().repeat(times)], settings.batch, seed)

    def loss(step: int) -> Tensor:
        some = [examples[n] for n in draw(step).tolist()]
        log_prob_B2L = read(model, some, encoded)
        right_B2L = torch.zeros_like(log_prob_B2L, dtype=torch.bool)
        for row, one in enumerate(some):
            for first, last in target_tokens(one, encoded[one.text]):
                right_B2L[row, 0, first] = right_B2L[row, 1, last] = True
        return -log_prob_B2L.masked_fill(~right_B2L, -torch.inf).logsumexp(-1).mean()

    return loss


def read(
    model: BridgePointer, examples: Sequence[PointedAt], encoded: Mapping[str, Encoded]
) -> Tensor:
    """Log-probabilities [B, 2, L]."""
    asked_Bd = torch.stack([encoded[one.phrase].embedding_d for one in examples])
    states = [encoded[one.text].states_Ld for one in examples]
    lengths_B = torch.tensor([len(one) for one in states])
    there_BL = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
    return model(asked_Bd, pad_sequence(states, batch_first=True), there_BL)


def target_tokens(example: PointedAt, text: Encoded) -> list[tuple[int, int]]:
    """(first, last) of each right span that was not cut off, else the token that means none."""
    found = []
    for start, end in example.spans:
        inside = [n for n, (at, to) in enumerate(text.characters) if at < end and start < to]
        if inside:
            found.append((inside[0], inside[-1]))
    return found or [(NONE, NONE)]


@torch.inference_mode()
def quality(
    model: BridgePointer, examples: Sequence[PointedAt], encoded: Mapping[str, Encoded]
) -> Metrics:
    """Of held-out entities and wordings: how often the right name is found where a passage has it,
    by the pointer and by the rule, and how often none where it has not."""
    naming = [one for one in examples if one.held_out and one.spans]
    others = [one for one in examples if one.held_out and not one.spans]
    found = [_right(one, _pointed(model, one, encoded)) for one in naming]
    by_rule = [_right(one, capitalised(one.text, one.title)) for one in naming]
    none = [_pointed(model, one, encoded) is None for one in others]
    return {
        "trained on": sum(not one.held_out for one in examples),
        "naming": len(naming),
        "found": _mean(found),
        "found by the rule": _mean(by_rule),
        "others": len(others),
        "none": _mean(none),
    }


def _pointed(
    model: BridgePointer, example: PointedAt, encoded: Mapping[str, Encoded]
) -> str | None:
    text = encoded[example.text]
    span = model.find(encoded[example.phrase].embedding_d, text.states_Ld)
    if span is None:
        return None
    characters = text.characters[span.first : span.end]
    return example.text[characters[0][0] : characters[-1][1]]


def _right(example: PointedAt, said: str | None) -> bool:
    right = {plain(example.text[slice(*place)]) for place in example.spans}
    return said is not None and plain(said) in right


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / max(1, len(values))
