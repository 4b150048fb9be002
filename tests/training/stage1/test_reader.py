"""The reader is trained on answers alone, and reads as `Llama.generate` will."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from tiny_training import LLAMA, decoder, make_example, tokenizer

from skipqa.backbones.generation.quoting import Verbatim
from skipqa.errors import UserError
from skipqa.nn import low_rank
from skipqa.tasks.okvqa import normalise
from skipqa.training.run import Run
from skipqa.training.stage1 import reader
from skipqa.training.stage1.drafter import TRAIN_GROUPS
from skipqa.training.stage1.reader import (
    IGNORED,
    MAX_ANSWER_TOKENS,
    Prompts,
    ReaderInputs,
    ReaderTrainer,
    ReaderTraining,
    generate,
    log_probs,
    losses,
)

TEXTS = ["Question: a?\nAnswer:", "Answer:", "Picture: dog\nQuestion: which colour?\nAnswer:"]


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(TEXTS, tokenizer())


def test_only_the_answer_is_to_be_predicted(prompts: Prompts) -> None:
    answers = ["red", "a dog"]
    ids, labels = prompts.batch([2, 1], answers, torch.device("cpu"))
    for place, (row, answer) in enumerate(zip((2, 1), answers, strict=True)):
        prompt, told = prompts.ids[row], prompts.answer(answer)
        assert told[-1] == prompts.end
        assert ids[place, : len(prompt) + len(told)].tolist() == prompt + told
        expected = [IGNORED] * len(prompt) + told
        assert labels[place].tolist() == expected + [IGNORED] * (ids.shape[1] - len(expected))


def test_losses_are_those_of_the_answers_tokens(prompts: Prompts) -> None:
    network = decoder()
    ids, labels = prompts.batch([0, 2], ["red", "a dog"], torch.device("cpu"))
    each, chosen = losses(network, ids, labels)
    scores = network.logits(network.states(network.embedding(ids))).log_softmax(-1)
    expected = [
        -scores[row, place - 1, labels[row, place]]
        for row, place in (labels != IGNORED).nonzero().tolist()
    ]
    torch.testing.assert_close(each, torch.stack(expected))
    assert chosen.sum() == len(each) == len(" red") + len(" a dog") + 2


def test_greedy_answers_are_those_of_generate(prompts: Prompts) -> None:
    for seed in range(5):
        network = decoder(seed)
        expected = []
        for ids in prompts.ids:
            embedded = network.embedding(torch.tensor([ids]))
            told = network.generate(embedded, MAX_ANSWER_TOKENS, [prompts.end]).tokens
            expected.append(normalise(prompts.tokenizer.decode(told).strip()))
        assert generate(network, prompts, [0, 1, 2], size=2) == expected


def test_log_probabilities_are_those_of_generate(prompts: Prompts) -> None:
    network = decoder()
    pairs = [(0, "red"), (2, "a dog"), (1, "red"), (0, "blue")]
    expected = []
    for row, answer in pairs:
        embedded = network.embedding(torch.tensor([prompts.ids[row]]))
        told = prompts.answer(answer)
        expected.append(sum(network.generate(embedded, len(told), (), Verbatim(told)).log_probs))
    found = log_probs(network, prompts, pairs, size=3)
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_it_learns_to_answer(tmp_path: Path) -> None:
    texts = [f"{colour} Answer:" for colour in ("red", "blue")] * 4
    prompts = Prompts(texts, tokenizer())
    examples = [
        make_example(0, text, {text.split()[0]: 1.0, "never": 0.05}, "okvqa", "train")
        for text in texts
    ]
    network = decoder()
    published = network.embedding.weight.clone()
    none = torch.zeros(0, dtype=torch.long)
    groups = dict.fromkeys(TRAIN_GROUPS, none)
    groups |= {"okvqa/train": torch.arange(5), "pocket-kb/train": torch.arange(5, 8)}
    training = ReaderTraining(epochs=100.0, focus_epochs=100.0, batch=8, lr=2e-2, focus_lr=1e-2)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    trainer = ReaderTrainer(ReaderInputs(prompts, examples, groups), Run(tmp_path), training)
    trained = reader.train(network, trainer, rank=6)
    assert generate(trained, prompts, [0, 1]) == ["red", "blue"]
    assert torch.equal(trained.embedding.weight, published)
    assert trained.config == LLAMA
    # The last part trained factors: a difference of their rank is the whole of it
    assert trained.state_dict().keys() == before.keys()
    found = low_rank.delta(before, trained.state_dict(), 6)
    assert any(name.endswith(low_rank.UP) for name in found)
    shipped = low_rank.apply(before, found)
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(shipped[name], value, rtol=1e-3, atol=1e-4)


def test_answers_are_drawn_by_the_square_of_their_score() -> None:
    example = make_example(0, "?", {"often": 1.0, "seldom": 0.5}, "okvqa", "train")
    draw = random.Random(0)
    drawn = [reader.draw_answer(example, draw) for _ in range(2_000)]
    assert drawn.count("seldom") / 2_000 == pytest.approx(0.25 / 1.25, abs=0.03)


def test_a_tokenizer_without_an_end_is_refused() -> None:
    from tokenizers import Tokenizer, models

    with pytest.raises(UserError, match=r"has no <\|im_end\|>"):
        Prompts(["x"], Tokenizer(models.BPE({"x": 0}, [])))
