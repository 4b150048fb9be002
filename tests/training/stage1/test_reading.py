"""Prompts of training: passages as retrieval brings them, in the form of each system."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import make_example

from skipqa.training.example import TrainExample
from skipqa.training.stage1 import reading
from skipqa.training.stage1.edits import holds_answer
from skipqa.training.stage1.reading import (
    EDITED,
    FEW,
    FORMS,
    GOLD,
    MANY,
    NAMED,
    PROMOTED,
    STATED,
    Form,
    HardNegatives,
    PromptWriter,
    facts_shown,
    mixed_forms,
)
from skipqa.training.stage1.words import Words

# Of ten things, where they come from and what they eat: `thing:what`
FACTS = {
    f"{thing}:{what}": f"{thing} {what}" for thing in "abcdefghij" for what in ("from", "food")
}
HOPS = (("c from", "c food"), ("e food",))
ASKED = make_example(0, "?", {"x": 1.0}, "pocket-kb", "train", HOPS)
RIGHT = {text for hop in HOPS for text in hop}
FOUND = [f"found {n}" for n in range(20)]


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
    facts = facts_shown(example, form, FOUND[:seen], near, random.Random(seed))
    assert facts == facts_shown(example, form, FOUND[:seen], near, random.Random(seed))
    assert len(facts) == len(set(facts)) or example.hops
    right = {text for hop in example.hops for text in hop}
    if form in ("blind", "unread"):
        assert facts == []
    elif form == "many":
        assert len(facts) <= MANY
    else:
        assert len(facts) <= max(*FEW, len(example.hops))
        if not example.hops:
            assert set(facts) <= set(FOUND[: max(FEW)])
    if right.isdisjoint(facts):
        return
    for hop in example.hops:  # all steps to the answer, or none
        assert not set(hop).isdisjoint(facts)


@pytest.mark.parametrize("form", ["few", "many"])
def test_facts_state_the_answer_most_of_the_time(form: Form) -> None:
    near = HardNegatives(FACTS)
    found = [facts_shown(ASKED, form, FOUND, near, random.Random(n)) for n in range(1_000)]
    with_gold = [facts for facts in found if RIGHT & set(facts)]
    assert len(with_gold) / 1_000 == pytest.approx(GOLD, abs=0.04)
    assert all("e food" in facts for facts in with_gold)
    assert {text for facts in with_gold for text in RIGHT & set(facts)} == RIGHT
    assert any(set(facts) & set(FOUND) for facts in found)  # real and hard negatives
    if form == "few":
        last = sum(facts[-1] == "e food" for facts in with_gold) / len(with_gold)
        assert last > 1 - reading.SHUFFLED
    else:
        assert {len(facts) for facts in found} == {MANY}


def test_what_was_found_is_read_in_its_order_the_best_last() -> None:
    plain = make_example(0, "?", {"x": 1.0}, "okvqa", "train")
    found = [
        facts_shown(plain, "few", FOUND, HardNegatives({}), random.Random(n)) for n in range(500)
    ]
    in_order = [facts for facts in found if facts == FOUND[: len(facts)][::-1]]
    assert {len(facts) for facts in in_order} == set(FEW)
    assert len(in_order) / 500 > 1 - reading.SHUFFLED


@given(asked(), st.integers(0, 10_000), st.integers(0, 20))
def test_nothing_is_promoted_among_what_was_found(
    example: TrainExample, seed: int, seen: int
) -> None:
    """Even if it holds the answer; and it is no form to train in."""
    example = replace(example, fact="an x can do it")
    listed = [*FOUND[:seen], "here is the x"]
    facts = facts_shown(example, "found", listed, HardNegatives(FACTS), random.Random(seed))
    assert facts == listed[: reading.READ][::-1]
    assert facts_shown(example, "found", [], HardNegatives(FACTS), random.Random(seed)) == []
    assert "found" not in FORMS


def test_a_passage_that_holds_the_answer_is_read_more_often_than_it_is_found_first() -> None:
    plain = make_example(0, "?", {"x": 1.0, "y": 0.3}, "okvqa", "train")
    listed = [*FOUND[:8], "here is the x", "and a y"]
    near = HardNegatives({})
    found = [facts_shown(plain, "few", listed, near, random.Random(n)) for n in range(1_000)]
    with_x = sum("here is the x" in facts for facts in found) / 1_000
    assert with_x == pytest.approx(PROMOTED, abs=0.05)
    assert not any("and a y" in facts for facts in found)


def test_a_supporting_sentence_stands_in_for_a_passage() -> None:
    supported = TrainExample(0, "", "?", {"x": 1.0}, fact="an x can do it")
    near = HardNegatives({})
    found = [facts_shown(supported, "few", FOUND, near, random.Random(n)) for n in range(1_000)]
    assert sum("an x can do it" in facts for facts in found) / 1_000 == pytest.approx(
        STATED, abs=0.05
    )


def test_an_answer_is_held_as_whole_words() -> None:
    assert holds_answer("Bears live in North America.", {"north america": 1.0})
    assert not holds_answer("Bears live in North America.", {"north": 0.3, "ears": 1.0})


def writer(facts: dict[str, str] | None = None) -> PromptWriter:
    names, embeddings = ("cup", "dog"), torch.zeros(2, 3)
    low_res = Words(names, embeddings, torch.tensor([[1, 0]]), torch.tensor([[0.9, 0.01]]))
    high_res = Words(names, embeddings, torch.tensor([[1, 0]]), torch.tensor([[0.9, 0.2]]))
    found = {row: tuple(FOUND) for row in range(2_000)}
    return PromptWriter(low_res, high_res, found, facts or {})


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
    as_found = f"Fact: found 1\nFact: found 0\nPicture: dog, cup\n{ending}"
    assert written("found") == {as_found}
    for form, most in (("few", max(FEW)), ("many", MANY)):
        found = written(form)  # type: ignore[arg-type]
        assert all(text.endswith(f"Picture: dog, cup\n{ending}") for text in found)
        assert max(text.count("Fact: found") for text in found) == most


def test_each_question_has_a_form_of_its_own() -> None:
    count = 2_000
    asked = [make_example(0, "?", {"x": 1.0}, "okvqa", "train")] * count
    found, answered = writer(FACTS).to_train_on(asked, range(count), seed=3)
    assert answered == asked  # no question names its passages, so none has another answer
    assert found == writer(FACTS).to_train_on(asked, range(count), seed=3)[0]
    assert found != writer(FACTS).to_train_on(asked, range(count), seed=4)[0]
    facts = [text.count("Fact: ") for text in found]
    probs = {
        "blind": sum("Picture: \n" in text for text in found),
        "unread": sum("Picture: dog\n" in text for text in found),
        "many": sum(number > 4 for number in facts),
    }
    for form, number in probs.items():
        assert number / count == pytest.approx(FORMS[form], abs=0.03)  # type: ignore[index]
    assert sum(FORMS.values()) == pytest.approx(1)


def test_some_passages_say_something_else_and_that_is_right() -> None:
    kinds = {"tea": "drink", "rice": "food", "milk": "drink"}
    asked = [
        TrainExample(
            *(row, "a.jpg", "What is grown?", {answer: 1.0}),
            category=kind,
            source="pocket-kb",
            split="train",
            photo=0,
            hops=((f"They grow {answer} here.",),),
        )
        for row, (answer, kind) in enumerate([*kinds.items()] * 200)
    ]
    texts, answered = writer().to_train_on(asked, range(len(asked)), seed=3)
    changed = [row for row, example in enumerate(asked) if answered[row] != example]
    with_gold = [row for row, example in enumerate(asked) if "they grow" in texts[row]]
    of_drinks = [row for row in with_gold if asked[row].category == "drink"]
    assert len(changed) / len(of_drinks) == pytest.approx(EDITED, abs=0.08)
    for row in changed:
        (before,), (after,) = asked[row].answers, answered[row].answers
        assert {before, after} == {"tea", "milk"}  # nothing else is of rice's kind
        assert f"they grow {after} here." in texts[row]
        assert before not in texts[row]


def test_what_is_asked_about_mostly_comes_first() -> None:
    """As the name of the most salient region does; never where prompts are scored as found."""
    example = make_example(0, "What is it?", {"x": 1.0}, "crowded", "train")
    named = replace(writer(), asked={1: "cup"})

    def first(form: Form) -> list[str]:
        found = (named.prompts([example] * 2, [1], seed, form)[1] for seed in range(300))
        return [text.partition("Picture: ")[2].partition("\n")[0] for text in found]

    assert set(first("few")) == {"cup, dog", "dog, cup"}
    assert first("few").count("cup, dog") / 300 == pytest.approx(NAMED, abs=0.06)
    assert set(first("found")) == {"dog, cup"}
    assert set(first("unread")) == {"dog"}
    assert "cup, dog" in first(None)
    assert "cup" not in first(None)  # blind prompts show nothing


@given(st.floats(0, 1))
def test_a_dense_systems_form_takes_from_the_others_alike(many: float) -> None:
    found = mixed_forms(many)
    assert sum(found.values()) == pytest.approx(1)
    assert found["many"] == many
    assert found["few"] * FORMS["unread"] == pytest.approx(found["unread"] * FORMS["few"])
    assert mixed_forms(FORMS["many"]) == pytest.approx(FORMS)
