"""decode with a trained reader: whose answer it is, how it is spelt, what the picture shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import concepts, kept_tokens, question, retrieved_passage, verified

from skipqa.backbones.backbone import Completion, Decoding
from skipqa.config import DecodeConfig
from skipqa.language import content_words
from skipqa.stages.decode import (
    agree,
    as_written,
    decode,
    explained,
    stated,
    whole_clause,
    words_shown,
)
from skipqa.trace import StageRecord
from skipqa.types import Budget, Draft, Fused, Region, SeenWords

SHORT = DecodeConfig(prompt="short")
FACT = "quork (noun): a soft cheese from the valleys of Zemblia"
ASKED = "Which land does this food come from?"


class Reader:
    """Says one thing and weighs by a table: with facts in the prompt, and without."""

    concepts = concepts(("pizza", ("food",)), ("table", ()))
    projector = None

    def __init__(
        self, says: str, with_facts: Mapping[str, float], without: Mapping[str, float]
    ) -> None:
        self.says, self.with_facts, self.without = says, with_facts, without
        self.asked: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []

    def generate(self, prompt: str, decoding: Decoding, visual: Any = None) -> Completion:
        names = tuple(name for name, _ in decoding.candidates)
        self.asked.append((prompt, decoding.quote_from, names))
        self.backed = dict(decoding.candidates)
        weights = self._weights(prompt, (*names, self.says)) if names else ()
        return Completion(self.says, 10, 2, 1_000, tuple(weights))

    def loglikelihood(self, prompt: str, answers: Sequence[str]) -> tuple[list[float], int]:
        self.asked.append((prompt, (), tuple(answers)))
        return self._weights(prompt, answers), 100

    def _weights(self, prompt: str, answers: Sequence[str]) -> list[float]:
        table = self.with_facts if "Fact: " in prompt else self.without
        return [table[answer] for answer in answers]


def drafted(*candidates: tuple[str, float], others: Sequence[str] = ()) -> Draft:
    names = tuple(name for name, _ in candidates)
    return Draft(names[0] if names else "", 0.5, "", candidates, (*names, *others))


def run(
    reader: Reader,
    draft: Draft,
    config: DecodeConfig = SHORT,
    asked: str = ASKED,
    facts: Sequence[str] = (FACT,),
    words: SeenWords | None = None,
) -> tuple[str, StageRecord]:
    passages = tuple(retrieved_passage(row, text) for row, text in enumerate(facts))
    found = dataclasses.replace(
        verified([2] * len(facts), 0), passages=passages, scores=(0.9,) * len(facts)
    )
    fused = Fused(torch.zeros(1, 3), torch.ones(1, len(facts)).bool(), (1.0,) * len(facts))
    kept = kept_tokens(2, [0], 0, num_concepts=2)
    kept = dataclasses.replace(kept, tokens=dataclasses.replace(kept.tokens, words=words))
    record = StageRecord("decode")
    text = decode(
        question(asked, *content_words(asked)),
        draft,
        Budget(1, len(facts)),
        kept,
        (Region((0, 0, 1, 1), (0,), ((0, 0.9),), 1.0),),
        found,
        fused,
        reader,  # type: ignore[arg-type]
        config,
        record,
    )
    return text, record


LIKED = {"italy": -0.5, "france": -3.0, "zemblia": -1.0}


class TestWhoseAnswerItIs:
    def test_an_answer_that_the_passages_made_likelier_is_theirs(self) -> None:
        """The drafter and even the reader's own weights prefer another."""
        reader = Reader("zemblia", LIKED, {"zemblia": -3.1})
        text, record = run(reader, drafted(("italy", -0.1), ("france", -2.0)))
        assert text == "Zemblia"  # as the passage spells it
        assert record.why.startswith("as the passages say (+2.1 nats)")
        assert record.flops == 1_100
        (read, _, candidates), (unread, _, weighed) = reader.asked
        assert candidates == ("italy", "france")
        assert weighed == ("zemblia",)
        assert unread == read.removeprefix(f"Fact: {FACT}\n")
        assert record.result == read

    @pytest.mark.parametrize("before", [-3.0, -2.9, 0.0])
    def test_a_gain_up_to_the_limit_leaves_the_drafter_its_say(self, before: float) -> None:
        reader = Reader("zemblia", LIKED, {"zemblia": before})
        text, record = run(reader, drafted(("italy", -0.1), ("france", -2.0)))
        assert text == "italy"
        assert record.why.startswith("not 'zemblia', drafted")

    @pytest.mark.parametrize("says", ["italy", "of the", "ital", "42", "zem blia"])
    def test_what_no_passage_states_is_not_asked_again(self, says: str) -> None:
        reader = Reader(says, LIKED | {says: -1.0}, {})
        run(reader, drafted(("italy", -0.1), ("france", -2.0)))
        assert len(reader.asked) == 1

    def test_without_passages_nothing_can_be_theirs(self) -> None:
        reader = Reader("zemblia", {}, LIKED)
        text, record = run(reader, drafted(("italy", -0.1)), facts=())
        assert text == "italy"
        assert len(reader.asked) == 1
        assert record.flops == 1_000
        assert (record.kept, record.dropped) == (0, 0)

    def test_the_reader_is_told_what_will_be_added(self) -> None:
        """Else it might leave an answer unweighed that would have been the best."""
        reader, draft = Reader("zemblia", {}, LIKED), drafted(("italy", -0.5), ("france", -2.0))
        run(reader, replace(draft, abstain_prob=0.75), replace(SHORT, drafter_weight=2.0), facts=())
        assert reader.backed == {"italy": -0.25, "france": -1.0}

    def test_without_a_drafter_the_reader_has_the_word(self) -> None:
        reader = Reader("zemblia", {}, {})
        text, record = run(reader, drafted())
        assert text == "Zemblia"
        assert record.why.startswith("as the reader says")
        assert record.flops == 1_000
        assert [candidates for _, _, candidates in reader.asked] == [()]

    def test_a_reader_that_says_nothing_is_not_heard(self) -> None:
        reader = Reader("", LIKED | {"": -0.01}, {})
        assert run(reader, drafted(("italy", -1.0), ("france", -1.5)))[0] == "italy"


def completion(text: str, *weights: float) -> Completion:
    return Completion(text, 1, 1, 1, weights)


@pytest.mark.parametrize(
    ("quoted", "whole"),
    [
        ("by forcing hot water", "by forcing hot water under pressure"),
        ("under pressure", "by forcing hot water under pressure"),
        ("at a cafe", "at a cafe"),
        ("ink", "ink"),
        ("said nowhere", "said nowhere"),
        ("", ""),
    ],
)
def test_a_quotation_is_of_a_whole_clause(quoted: str, whole: str) -> None:
    """From what is asked about to its end."""
    texts = ["coffee brewed by forcing hot water under pressure; drunk at a cafe, no ink."]
    assert whole_clause(quoted, texts, question("How is it brewed?", "brewed")) == whole


class TestAgreement:
    def test_the_sum_decides(self) -> None:
        draft = drafted(("tea", -0.1), ("milk", -3.0))
        assert agree(completion("milk", -2.0, -1.0, -1.0), draft, 0.3)[0] == "milk"  # -2.03, -1.9
        assert agree(completion("milk", -2.0, -1.0, -1.0), draft, 0.7)[0] == "tea"  # -2.07, -3.1

    def test_without_weight_the_drafter_only_proposes(self) -> None:
        draft = drafted(("tea", 0.0), ("milk", -50.0))
        assert agree(completion("rum", -2.0, -1.0, -1.5), draft, 0.0)[0] == "milk"
        assert agree(completion("rum", -2.0, -1.0, -0.5), draft, 0.0)[0] == "rum"

    def test_one_outside_the_vocabulary_has_the_support_of_the_best(self) -> None:
        draft = drafted(("tea", -1.0), ("milk", -9.0))
        assert agree(completion("rum", -3.0, -3.0, -2.9), draft, 1.0) == (
            "rum",
            "as the reader says",
        )
        assert agree(completion("rum", -3.0, -3.0, -3.1), draft, 1.0)[0] == "tea"

    def test_one_that_was_known_and_not_drafted_has_that_of_the_last(self) -> None:
        draft = drafted(("tea", -1.0), ("milk", -9.0), others=["rum"])
        assert agree(completion("rum", -3.0, -3.0, -2.9), draft, 1.0)[0] == "tea"
        assert agree(completion("rum", -3.0, -30.0, 5.1), draft, 1.0)[0] == "rum"  # -4, -39, -3.9

    def test_who_would_look_it_up_has_no_say(self) -> None:
        draft = replace(drafted(("tea", -0.1), ("milk", -3.0)), abstain_prob=1.0)
        assert agree(completion("milk", -2.0, -1.0, -1.0), draft, 0.7)[0] == "milk"

    def test_among_equals_the_first_drafted_wins(self) -> None:
        draft = drafted(("tea", -1.0), ("milk", -1.0))
        assert agree(completion("rum", -2.0, -2.0, -2.0), draft, 1.0) == (
            "tea",
            "not 'rum', drafted",
        )
        assert agree(completion("tea", -2.0, -2.0, -2.0), draft, 1.0) == (
            "tea",
            "as the reader says",
        )

    @given(st.data())
    def test_one_of_the_candidates_and_none_is_better(self, data: st.DataObject) -> None:
        scores = st.floats(-30, 0)
        names = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
        probs = sorted((data.draw(scores) for _ in names), reverse=True)
        own = data.draw(st.sampled_from("abcdefghxyz"))
        weights = {name: data.draw(scores) for name in {*names, own}}
        weight = data.draw(st.floats(0, 2))
        draft = drafted(*zip(names, probs, strict=True), others="abcdefgh")
        answer, _ = agree(completion(own, *(weights[n] for n in (*names, own))), draft, weight)
        support = dict(zip(names, probs, strict=True))
        support.setdefault(own, probs[-1] if own in "abcdefgh" else probs[0])
        assert answer in support
        best = max(weights[name] + weight * support[name] for name in support)
        assert weights[answer] + weight * support[answer] == best


class TestHowAndWhy:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("How is this drink brewed?", True),
            ("how are the drinks made?", True),  # plurals are the same word
            ("Why is this brewed?", True),
            ("How is this animal fed?", False),  # no passage speaks of it
            ("How many drinks are there?", False),
            ("How much is this drink?", False),
            ("What is this drink?", False),
            ("Whyever drink it?", False),
            ("Tell me how this drink is brewed", False),
            ("Why is it so?", False),  # nothing is asked about
        ],
    )
    def test_the_passage_speaks_of_it(self, text: str, wanted: bool) -> None:
        asked = question(text, *content_words(text))
        assert explained(asked, ["a cold stone", "a drink brewed from leaves"]) is wanted
        assert not explained(asked, [])

    def test_the_passages_own_words_are_the_answer(self) -> None:
        fact = "quork is brewed by stirring milk"
        reader = Reader("by stirring milk", {}, {})
        text, record = run(reader, drafted(("tea", -0.1)), asked="How is it brewed?", facts=[fact])
        assert text == "by stirring milk"
        ((prompt, quoted, candidates),) = reader.asked
        assert (quoted, candidates) == ((fact,), ())
        assert prompt.startswith("Fact: lantern")  # worked examples
        assert record.why.startswith("by examples")


class TestStated:
    @pytest.mark.parametrize(
        ("answer", "wanted"),
        [
            ("Zemblia", True),
            ("in zemblia", True),
            ("valley", True),  # a plural is the same word
            ("30 kg", True),
            ("31 litres", False),
            ("of the", False),  # says nothing
            ("cheesecake", False),
            ("", False),
        ],
    )
    def test_a_word_that_says_something_is_enough(self, answer: str, wanted: bool) -> None:
        assert stated(answer, ["nothing here", f"{FACT}, 30 kg heavy"]) is wanted
        assert not stated(answer, [])


class TestSpelling:
    @pytest.mark.parametrize(
        ("answer", "texts", "wanted"),
        [
            ("united states", ["made in the United States."], "United States"),
            ("united states", ["UNITED STATES", "the United States"], "United States"),  # best last
            ("rum", ["a Drum", "rumour"], "rum"),  # parts of words
            ("rum", ["a Drum of Rum"], "Rum"),
            ("c++", ["written in C++, mostly"], "C++"),
            ("u.s.", ["from the U.S. of old"], "U.S."),
            ("u.s", ["from the USA, a bus"], "u.s"),  # a full stop is no wildcard
            ("(a|b", ["(A|B"], "(A|B"),
            ("são paulo", ["in São Paulo"], "São Paulo"),
            ("", ["anything"], ""),
            ("tea", [], "tea"),
        ],
    )
    def test_as_the_best_passage_has_it(self, answer: str, texts: list[str], wanted: str) -> None:
        assert as_written(answer, texts) == wanted

    @given(st.text(max_size=8), st.lists(st.text(max_size=20), max_size=3))
    def test_only_the_case_may_change(self, answer: str, texts: list[str]) -> None:
        found = as_written(answer, texts)
        assert found == answer or any(found in text for text in texts)
        assert len(found) == len(answer)


class TestWordsShown:
    WORDS = SeenWords(("cup", "spoon", "sea"), torch.tensor([0.5, 0.04, 0.03]), torch.zeros(3, 2))

    def test_those_with_enough_evidence(self) -> None:
        assert words_shown(self.WORDS, DecodeConfig(min_prob=0.035)) == ["cup", "spoon"]
        assert words_shown(self.WORDS, DecodeConfig(min_prob=0.5)) == []
        assert words_shown(self.WORDS, DecodeConfig(min_prob=0.0, words=1)) == ["cup"]
        assert words_shown(self.WORDS, DecodeConfig(words=0)) == []
        assert words_shown(None, DecodeConfig()) == []

    def test_they_stand_in_the_prompt(self) -> None:
        for words, line in ((self.WORDS, "cup, spoon"), (None, "pizza")):  # else the regions' names
            _, record = run(Reader("tea", {}, {}), drafted(), words=words)
            wanted = f"Fact: {FACT}\nPicture: {line}\nQuestion: {ASKED}\nAnswer:"
            assert record.result == wanted
