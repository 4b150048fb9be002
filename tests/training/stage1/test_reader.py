"""The reader is trained on answers alone, and reads as `Llama.generate` will."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import LLAMA, decoder, make_example, tokenizer

from skipqa.backbones.generation.quoting import Verbatim
from skipqa.errors import UserError
from skipqa.nn import low_rank
from skipqa.tasks.okvqa import normalise
from skipqa.training.example import TrainExample
from skipqa.training.run import Run
from skipqa.training.stage1 import reader
from skipqa.training.stage1.drafter import TRAIN_GROUPS
from skipqa.training.stage1.reader import (
    FORMS,
    GOLD,
    IGNORED,
    MANY,
    MAX_ANSWER_TOKENS,
    Form,
    HardNegatives,
    Prompts,
    PromptWriter,
    ReaderInputs,
    ReaderTraining,
    facts_shown,
    generate,
    log_probs,
    losses,
)
from skipqa.training.stage1.words import Words

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
    trained = reader.train(
        network, ReaderInputs(prompts, examples, groups), Run(tmp_path), training, rank=6
    )
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
    drawn = [reader._draw(example, draw) for _ in range(2_000)]
    assert drawn.count("seldom") / 2_000 == pytest.approx(0.25 / 1.25, abs=0.03)


# Of ten things, where they come from and what they eat: `thing:what`
FACTS = {
    f"{thing}:{what}": f"{thing} {what}" for thing in "abcdefghij" for what in ("from", "food")
}
HOPS = (("c from", "c food"), ("e food",))
ASKED = make_example(0, "?", {"x": 1.0}, "pocket-kb", "train", HOPS)
RIGHT = {text for hop in HOPS for text in hop}
GLOSSES = [f"gloss {n}" for n in range(20)]


@st.composite
def asked(draw: st.DrawFn) -> TrainExample:
    """Some hops, each with some of the facts."""
    fact = st.sampled_from(sorted(FACTS.values()))
    hops = draw(st.lists(st.lists(fact, min_size=1, max_size=3), max_size=3))
    return make_example(0, "?", {"x": 1.0}, "pocket-kb", "train", tuple(map(tuple, hops)))


@given(asked(), st.integers(0, 10_000), st.integers(1, MANY))
def test_a_hard_negative_never_states_the_answer(
    example: TrainExample, seed: int, count: int
) -> None:
    found = HardNegatives(FACTS).some(example, random.Random(seed), count)
    assert len(found) == len(set(found)) <= count
    assert set(found) <= set(FACTS.values())
    assert not {text for hop in example.hops for text in hop} & set(found)


def test_hard_negatives_are_of_the_same_thing_or_relation() -> None:
    near = HardNegatives(FACTS)
    found = {text for seed in range(200) for text in near.some(ASKED, random.Random(seed), 4)}
    place = near.ids.index("c:from")
    near_by = {FACTS[id] for id in near.ids[place - 3 : place + 4]}
    alike = {text for text in FACTS.values() if text.endswith(" from")}
    assert found == (near_by | alike) - RIGHT


def test_distractors_are_never_about_an_unseen_entity() -> None:
    """Not even of questions about one, which are only scored: its passages are not known here."""
    example = make_example(0, "?", {"x": 1.0}, "unseen", "val", (("Of an unseen thing.",),))
    found = HardNegatives(FACTS).some(example, random.Random(0), 4)
    assert len(found) == 4
    assert {*found} <= {*FACTS.values()}


def test_without_passages_there_are_no_hard_negatives() -> None:
    nothing = make_example(0, "?", {"x": 1.0}, "okvqa", "train")
    assert HardNegatives({}).some(nothing, random.Random(0), 4) == []


@given(asked(), st.sampled_from(sorted(FORMS)), st.integers(0, 10_000), st.integers(0, 20))
def test_every_form_has_its_facts(example: TrainExample, form: Form, seed: int, seen: int) -> None:
    near = HardNegatives(FACTS)
    found = facts_shown(example, form, GLOSSES[:seen], near, random.Random(seed))
    assert found == facts_shown(example, form, GLOSSES[:seen], near, random.Random(seed))
    right = {text for hop in example.hops for text in hop}
    if form in ("blind", "unread"):
        assert found == []
    elif form == "many":
        assert len(found) <= MANY
    else:
        assert len(found) <= max(2, len(example.hops))
        if example.hops:
            assert not set(found) & set(GLOSSES)
        else:
            assert set(found) <= set(GLOSSES[:4])
    if right.isdisjoint(found):
        return
    for hop in example.hops:  # all steps to the answer, or none
        assert not set(hop).isdisjoint(found)


@pytest.mark.parametrize("form", ["few", "many"])
def test_facts_state_the_answer_most_of_the_time(form: Form) -> None:
    near = HardNegatives(FACTS)
    found = [facts_shown(ASKED, form, GLOSSES, near, random.Random(n)) for n in range(1_000)]
    with_gold = [facts for facts in found if RIGHT & set(facts)]
    assert len(with_gold) / 1_000 == pytest.approx(GOLD, abs=0.04)
    assert all("e food" in facts for facts in with_gold)
    assert {text for facts in with_gold for text in RIGHT & set(facts)} == RIGHT
    if form == "few":
        last = sum(facts[-1] == "e food" for facts in with_gold) / len(with_gold)
        assert last == pytest.approx(1 - reader.SHUFFLED / 2, abs=0.04)
        assert [] in found
    else:
        assert {len(facts) for facts in found} == {MANY}


def writer(facts: dict[str, str] | None = None) -> PromptWriter:
    names, embeddings = ("cup", "dog"), torch.zeros(2, 3)
    low_res = Words(names, embeddings, torch.tensor([[1, 0]]), torch.tensor([[0.9, 0.01]]))
    high_res = Words(names, embeddings, torch.tensor([[1, 0]]), torch.tensor([[0.9, 0.2]]))
    return PromptWriter(low_res, high_res, {0: "cup (noun): to drink from"}, facts or {})


def test_prompts_say_what_is_seen() -> None:
    """At low resolution where no passages are read, at high elsewhere, nothing when blind."""
    example = make_example(0, "What is it?", {"x": 1.0}, "okvqa", "train")
    ending = "Question: What is it?\nAnswer:"

    def written(form: Form) -> set[str]:
        found = (writer().prompts([example] * 3, [1], seed, form) for seed in range(40))
        (empty, *texts) = zip(*found, strict=True)
        assert set(empty) == set(texts[1]) == {""}  # of the rows that were asked for
        return set(texts[0])

    assert written("unread") == {f"Picture: dog\n{ending}"}
    assert written("blind") == {f"Picture: \n{ending}"}
    gloss = "Fact: cup (noun): to drink from\n"
    for form in ("few", "many"):
        found = written(form)
        assert f"{gloss}Picture: dog, cup\n{ending}" in found
        assert all(text.endswith(f"Picture: dog, cup\n{ending}") for text in found)
    assert f"Picture: dog, cup\n{ending}" in written("few")


def test_each_question_has_a_form_of_its_own() -> None:
    count = 2_000
    asked = [make_example(0, "?", {"x": 1.0}, "okvqa", "train")] * count
    found = writer(FACTS).prompts(asked, range(count), seed=3)
    assert found == writer(FACTS).prompts(asked, range(count), seed=3)
    assert found != writer(FACTS).prompts(asked, range(count), seed=4)
    facts = [text.count("Fact: ") for text in found]
    probs = {
        "blind": sum("Picture: \n" in text for text in found),
        "unread": sum("Picture: dog\n" in text for text in found),
        "many": sum(number > 4 for number in facts),
    }
    for form, number in probs.items():
        assert number / count == pytest.approx(FORMS[form], abs=0.03)  # type: ignore[index]
    assert sum(FORMS.values()) == pytest.approx(1)


def test_a_tokenizer_without_an_end_is_refused() -> None:
    from tokenizers import Tokenizer, models

    with pytest.raises(UserError, match=r"has no <\|im_end\|>"):
        Prompts(["x"], Tokenizer(models.BPE({"x": 0}, [])))
