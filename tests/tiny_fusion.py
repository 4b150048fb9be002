"""A made-up world in which answers stand in passages alone, and tiny networks that can learn it.

Every image shows one of ten things, and the one question is what it is called. Each thing is asked
about five times, with another passage and another name each time: neither image nor question tells
the answer, and it cannot be learned by heart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from skipqa.backbones.networks.llama import Llama, LlamaConfig
from skipqa.backbones.presets.pocket import END
from skipqa.nn.fusion_reader import FusionReader, FusionReaderConfig, Opening
from skipqa.nn.grounding import places
from skipqa.stages.prompts import trained_prompt
from skipqa.training.pathway.fusion_examples import FusionExample, Scenes
from skipqa.training.pathway.fusion_loss import (
    FusionTables,
    LossWeights,
    Offer,
    ReaderNetworks,
    greedy,
    losses,
    read_hard,
)

THINGS = "dog cat cup hat car tree boat lamp shoe bell".split()
NAMES = "rex tom zed kim lou max ida bo uma fay gus ned".split()
QUESTION = "What is it called?"
OTHER_WORDS = "the is called what it fact picture question answer : ? . ,".split()
TEXT_WIDTH, VISION_WIDTH, NUM_TOKENS, READ = 48, 16, 4, 5
TOLD_APART = 5  # names that one thing has


def tokenizer() -> Tokenizer:
    words = [*THINGS, *NAMES, *OTHER_WORDS, END, "[UNK]"]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]"))
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([END])
    return made


def embed(texts: list[str]) -> Tensor:
    """A bag of words, each word a random vector of its own."""
    found = torch.zeros(len(texts), TEXT_WIDTH)
    for row, text in enumerate(texts):
        for word in text.lower().replace("?", " ").replace(".", " ").split():
            if word not in OTHER_WORDS:
                generator = torch.Generator().manual_seed(sum(map(ord, word)) * 31 + len(word))
                found[row] += torch.randn(TEXT_WIDTH, generator=generator)
        if not found[row].any():
            found[row, 0] = 1.0
    return F.normalize(found, dim=-1)


def write(facts: Sequence[str], shown: Sequence[str], question: str, *, fused: bool = False) -> str:
    return trained_prompt(facts, shown, question, fused=fused).lower()


def networks(seed: int = 0) -> ReaderNetworks:
    torch.manual_seed(seed)
    config = LlamaConfig(len(tokenizer().get_vocab()), 32, 2, 4, 2, 48, tied=True)
    return ReaderNetworks(Llama(config), tokenizer(), write, True, embed)


def scenes() -> Scenes:
    """One image per thing; all of its tokens show the thing, each a little differently."""
    generator = torch.Generator().manual_seed(1)
    of_thing = torch.randn(len(THINGS), 1, VISION_WIDTH, generator=generator)
    noise = torch.randn(len(THINGS), NUM_TOKENS, VISION_WIDTH, generator=generator)
    concept = torch.arange(len(THINGS))[:, None, None].expand(-1, NUM_TOKENS, 1)
    return Scenes(
        of_thing + 0.3 * noise,
        torch.full(concept.shape, 0.9),
        concept,
        embed(THINGS)[:, None].expand(-1, NUM_TOKENS, -1),
        places(2)[None].expand(len(THINGS), -1, -1),
        torch.linspace(0.9, 0.6, NUM_TOKENS).expand(len(THINGS), -1),
        len(THINGS),
    )


def told(thing: str, name: str) -> str:
    return f"The {thing} is called {name}."


def examples() -> list[FusionExample]:
    """Fifty."""
    draw = random.Random(0)
    names = {thing: draw.sample(NAMES, TOLD_APART) for thing in THINGS}
    found = []
    for scene, thing in enumerate(THINGS):
        of_others = tuple(told(o, name) for o in THINGS if o != thing for name in names[o])
        for name in names[thing]:
            gold = told(thing, name)
            read = draw.sample([gold, *draw.sample(of_others, READ - 1)], READ)
            scores = tuple(draw.uniform(0.3, 0.7) for _ in read)
            one = FusionExample(QUESTION, name, (gold,), of_others, scene, (thing,))
            if name == names[thing][0]:  # the others are read next to anything
                relative = tuple(draw.uniform(0.1, 1.0) for _ in read)
                one = replace(one, found=tuple(read), scores=scores, retrieved=relative)
            found.append(one)
    return found


def edited(asked: list[FusionExample]) -> list[FusionExample]:
    """Every fact says another name, and that is the answer."""
    found = []
    for one in asked:
        name = NAMES[(NAMES.index(one.answer) + 5) % len(NAMES)]
        [fact] = one.gold
        gold = fact.replace(f" {one.answer}.", f" {name}.")
        found.append(replace(one, answer=name, gold=(gold,)))
    return found


def reader(networks: ReaderNetworks, variant: str = "A", **changes: object) -> FusionReader:
    config = FusionReaderConfig(
        VISION_WIDTH,
        len(THINGS),
        TEXT_WIDTH,
        networks.decoder.config.width,
        heads=2,
        embedding_rms=networks.embedding_rms,
        early_layers=1,
        variant=variant,  # type: ignore[arg-type]
        edge_width=16,
        window=2,
        before=1,
        words=16,
    )
    torch.manual_seed(3)
    return FusionReader(replace(config, **changes))  # type: ignore[arg-type]


def offers(tables: FusionTables, seed: int) -> list[Offer]:
    draw = random.Random(seed)
    return [tables.offer(row, READ, draw) for row in range(len(tables.examples))]


def loss(
    model: FusionReader, tables: FusionTables, step: int, opening: Opening, weights: LossWeights
) -> dict[str, Tensor]:
    draw = random.Random(step)
    drawn = [tables.offer(row, READ, draw) for row in range(len(tables.examples))]
    return losses(model, tables, drawn, opening, weights, draw)


def accuracy(
    model: FusionReader,
    tables: FusionTables,
    asked: list[Offer],
    *,
    zeroed: bool = False,
    edges: Tensor | None = None,
) -> float:
    """With fused tokens alone: neither words nor passages stand in the prompt."""
    visual = read_hard(model, tables, asked, edges).tokens_BLD
    prompts = tables.prompts_of(
        [tables.prompt(offer.row, words=False, fused=True) for offer in asked]
    )
    found = greedy(tables.networks, prompts, torch.zeros_like(visual) if zeroed else visual)
    right = [text == tables.examples[o.row].answer for text, o in zip(found, asked, strict=True)]
    return sum(right) / len(right)
