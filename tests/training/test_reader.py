"""The reader is trained on answers alone, and reads as `Llama.generate` will."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from tiny_training import LLAMA, decoder, tokenizer

from skipqa.backbones.quoting import Verbatim
from skipqa.errors import UserError
from skipqa.evaluation.scoring.okvqa import normalise
from skipqa.training import reader
from skipqa.training.mixture import Example
from skipqa.training.reader import (
    MAX_ANSWER_TOKENS,
    UNWANTED,
    Prompts,
    ReaderTraining,
    facts_shown,
    generate,
    log_probabilities,
    losses,
    write_prompts,
)
from skipqa.training.run import Run
from skipqa.training.words import Words

TEXTS = ["Question: a?\nAnswer:", "Answer:", "Picture: dog\nQuestion: which colour?\nAnswer:"]


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(TEXTS, tokenizer())


def test_only_the_answer_is_to_be_predicted(prompts: Prompts) -> None:
    answers = ["red", "a dog"]
    ids, wanted = prompts.batch([2, 1], answers, torch.device("cpu"))
    for place, (row, answer) in enumerate(zip((2, 1), answers, strict=True)):
        prompt, told = prompts.ids[row], prompts.answer(answer)
        assert told[-1] == prompts.end
        assert ids[place, : len(prompt) + len(told)].tolist() == prompt + told
        expected = [UNWANTED] * len(prompt) + told
        assert wanted[place].tolist() == expected + [UNWANTED] * (ids.shape[1] - len(expected))


def test_losses_are_those_of_the_answers_tokens(prompts: Prompts) -> None:
    network = decoder()
    ids, wanted = prompts.batch([0, 2], ["red", "a dog"], torch.device("cpu"))
    each, chosen = losses(network, ids, wanted)
    scores = network.logits(network.states(network.embedding(ids))).log_softmax(-1)
    expected = [
        -scores[row, place - 1, wanted[row, place]]
        for row, place in (wanted != UNWANTED).nonzero().tolist()
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
        expected.append(
            sum(network.generate(embedded, len(told), (), Verbatim(told)).log_probabilities)
        )
    found = log_probabilities(network, prompts, pairs, size=3)
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_it_learns_to_answer(tmp_path: Path) -> None:
    texts = [f"{colour} Answer:" for colour in ("red", "blue")] * 4
    prompts = Prompts(texts, tokenizer())
    examples = [
        Example(0, text, {text.split()[0]: 1.0, "never": 0.05}, "okvqa", "train") for text in texts
    ]
    network = decoder()
    published = network.embedding.weight.clone()
    groups = {"knowledge": torch.arange(8), "other": torch.zeros(0, dtype=torch.long)}
    training = ReaderTraining(rounds=150.0, focus_rounds=5.0, batch=8, rate=2e-2, focus_rate=1e-3)
    trained = reader.train(network, prompts, examples, groups, Run(tmp_path), training)
    assert generate(trained, prompts, [0, 1]) == ["red", "blue"]
    assert torch.equal(trained.embedding.weight, published)
    assert trained.config == LLAMA


def test_answers_are_drawn_by_the_square_of_their_score() -> None:
    example = Example(0, "?", {"often": 1.0, "seldom": 0.5}, "okvqa", "train")
    draw = random.Random(0)
    drawn = [reader._draw(example, draw) for _ in range(2_000)]
    assert drawn.count("seldom") / 2_000 == pytest.approx(0.25 / 1.25, abs=0.03)


def test_facts_state_the_answer_most_of_the_time() -> None:
    asked = Example(0, "?", {"x": 1.0}, "pocket-kb", "train", (("one", "uno"), ("two",)))
    glosses = {5: "five", 6: "six"}
    found = [facts_shown(asked, [4, 5, 6], glosses, seed) for seed in range(1_000)]
    with_gold = [facts for facts in found if facts and facts[-1] == "two"]
    assert len(with_gold) / 1_000 == pytest.approx(reader.GOLD, abs=0.04)
    assert {facts[-2] for facts in with_gold} == {"one", "uno"}
    assert all(len(facts) <= 3 for facts in with_gold)
    assert {facts[0] for facts in found if facts} >= {"five", "six", "one"}
    assert () in found
    assert found == [facts_shown(asked, [4, 5, 6], glosses, seed) for seed in range(1_000)]


def test_prompts_say_what_is_seen() -> None:
    words = Words(("cup", "dog"), torch.zeros(2, 3), torch.tensor([[1, 0]]), torch.tensor([[0.9, 0.2]]))  # fmt: skip  # noqa: E501
    asked = [Example(0, "What is it?", {"x": 1.0}, "okvqa", "train")]
    (text,) = write_prompts(asked, words, {}, seed=0)
    assert text == "Picture: dog, cup\nQuestion: What is it?\nAnswer:"


def test_a_tokenizer_without_an_end_is_refused() -> None:
    from tokenizers import Tokenizer, models

    with pytest.raises(UserError, match=r"has no <\|im_end\|>"):
        Prompts(["x"], Tokenizer(models.BPE({"x": 0}, [])))
