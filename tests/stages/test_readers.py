"""The readers: whose answer it is, how it is spelled, and what the decoder is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import concepts, kept_tokens, question, retrieved_passage, run, state, verified

from skipqa.backbones.backbone import IMAGE, Completion, Decoding
from skipqa.config import ConfidenceConfig, DecodeConfig
from skipqa.language import content_words
from skipqa.nn import projector as network
from skipqa.nn.projector import Projector, ProjectorConfig
from skipqa.pipeline import Pipeline
from skipqa.stages.decode import Decode
from skipqa.stages.readers import (
    EXAMPLES,
    LONG_NAME,
    ClauseReader,
    InstructedReader,
    QuotingReader,
    Reader,
    ReadTogether,
    ShortReader,
    asks_to_explain,
    best_of_both,
    has_a_word_of,
    log_prior,
    spelled_as_in,
    whole_clause,
    words_shown,
)
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Budget, Draft, Fused, Region, SeenWords

SHORT = DecodeConfig(prompt="short")
FACT = "quork (noun): a soft cheese from the valleys of Zemblia"
ASKED = "Which land does this food come from?"


class Scripted:
    """A backbone whose decoder says one thing and scores by a table: with facts in the prompt, and
    without."""

    concepts = concepts(("pizza", ("food",)), ("table", ()))

    def __init__(
        self,
        says: str,
        with_facts: Mapping[str, float] | None = None,
        without: Mapping[str, float] | None = None,
        projector: Projector | None = None,
    ) -> None:
        self.says, self.with_facts, self.without = says, with_facts or {}, without or {}
        self.projector = projector
        self.asked: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        self.seen: list[torch.Tensor | None] = []

    def generate(
        self, prompt: str, decoding: Decoding, visual: torch.Tensor | None = None
    ) -> Completion:
        names = tuple(name for name, _ in decoding.candidates)
        self.asked.append((prompt, decoding.quote_from, names))
        self.log_prior, self.avoided = dict(decoding.candidates), decoding.avoid
        self.own = decoding.completion_log_prior
        self.seen.append(visual)
        scores = self._scores(prompt, (*names, self.says)) if names else ()
        return completion(self.says, *scores)

    def loglikelihood(self, prompt: str, answers: Sequence[str]) -> tuple[list[float], int]:
        self.asked.append((prompt, (), tuple(answers)))
        return self._scores(prompt, answers), 100

    def _scores(self, prompt: str, answers: Sequence[str]) -> list[float]:
        table = self.with_facts if "Fact: " in prompt else self.without
        return [table[answer] for answer in answers]


def completion(text: str, *log_probs: float) -> Completion:
    return Completion(text, 10, 2, 1_000, log_probs)


def drafted(*candidates: tuple[str, float], others: Sequence[str] = ()) -> Draft:
    names = tuple(name for name, _ in candidates)
    vocabulary = dict.fromkeys((*names, *others), 0.0)
    return Draft(names[0] if names else "", 0.5, "", candidates, vocabulary)


def ranked_by(drafter: float = 0.0, frequency: float = 0.0, own: float = 0.0) -> DecodeConfig:
    return replace(SHORT, drafter_weight=drafter, frequency_weight=frequency, own_weight=own)


def asking(
    draft: Draft | None = None,
    asked: str = ASKED,
    facts: Sequence[str] = (FACT,),
    words: SeenWords | None = None,
) -> State:
    """All that enters decode: facts that were verified and attended to, equally."""
    passages = tuple(retrieved_passage(row, text) for row, text in enumerate(facts))
    found = replace(verified([2] * len(facts), 0), passages=passages, scores=(0.9,) * len(facts))
    kept = kept_tokens(2, [0], 0, num_concepts=2)
    return state(
        question=question(asked, *content_words(asked)),
        draft=draft or drafted(),
        budget=Budget(1, len(facts)),
        kept=replace(kept, tokens=replace(kept.tokens, words=words)),
        regions=(Region((0, 0, 1, 1), (0,), ((0, 0.9),), 1.0),),
        verified=found,
        fused=Fused(torch.zeros(1, 3), torch.ones(1, len(facts)).bool(), (1.0,) * len(facts)),
    )


def quoting(backbone: Scripted, config: DecodeConfig = SHORT) -> QuotingReader:
    given = cast(Any, backbone)
    return QuotingReader(config, given, ReadTogether(given))


def short(backbone: Scripted, config: DecodeConfig = SHORT) -> ShortReader:
    given = cast(Any, backbone)
    explain = ClauseReader(quoting(backbone, config))
    return ShortReader(config, given, ReadTogether(given), explain)


def decode(reader: Reader, entering: State) -> tuple[State, StageRecord]:
    return run(Decode(reader, ConfidenceConfig()), entering)


LIKED = {"italy": -0.5, "france": -3.0, "zemblia": -1.0}


class TestShortReader:
    def test_an_answer_that_the_passages_made_likelier_is_theirs(self) -> None:
        """The drafter and even the decoder's own scores prefer another."""
        backbone = Scripted("zemblia", LIKED, {"zemblia": -3.1})
        draft = drafted(("italy", -0.1), ("france", -2.0))
        leaving, record = decode(short(backbone), asking(draft))
        assert leaving.answer.text == "Zemblia"  # as the passage spells it
        assert leaving.answer.log_prob == -1.0
        assert leaving.answer.grounded is True
        assert record.why.startswith("as the passages say (+2.1 nats)")
        assert record.flops == 1_100
        (read, _, candidates), (unread, _, scored) = backbone.asked
        assert candidates == ("italy", "france")
        assert scored == ("zemblia",)
        assert unread == read.removeprefix(f"Fact: {FACT}\n")
        assert leaving.prompt == read

    @pytest.mark.parametrize("before", [-3.0, -2.9, 0.0])
    def test_a_gain_up_to_the_limit_leaves_the_drafter_its_say(self, before: float) -> None:
        backbone = Scripted("zemblia", LIKED, {"zemblia": before})
        draft = drafted(("italy", -0.1), ("france", -2.0))
        leaving, record = decode(short(backbone), asking(draft))
        assert leaving.answer.text == "italy"
        assert leaving.answer.log_prob == LIKED["italy"]
        assert leaving.answer.grounded is False
        assert record.why.startswith("the drafter's answer; the decoder said 'zemblia'")
        assert record.flops == 1_100

    @pytest.mark.parametrize("says", ["italy", "of the", "ital", "42", "zem blia"])
    def test_what_no_passage_states_is_not_scored_again(self, says: str) -> None:
        backbone = Scripted(says, LIKED | {says: -1.0})
        decode(short(backbone), asking(drafted(("italy", -0.1), ("france", -2.0))))
        assert len(backbone.asked) == 1

    def test_without_passages_nothing_can_be_theirs(self) -> None:
        backbone = Scripted("zemblia", without=LIKED)
        leaving, record = decode(short(backbone), asking(drafted(("italy", -0.1)), facts=()))
        assert leaving.answer.text == "italy"
        assert leaving.answer.grounded is False
        assert len(backbone.asked) == 1
        assert record.flops == 1_000
        assert (record.kept, record.dropped) == (0, 0)

    def test_the_decoder_is_told_what_will_be_added(self) -> None:
        """Else it might leave an answer without a score that would have been the best."""
        backbone = Scripted("zemblia", without=LIKED)
        draft = replace(drafted(("italy", -0.5), ("france", -2.0)), abstain_prob=0.75)
        decode(short(backbone, replace(SHORT, drafter_weight=2.0)), asking(draft, facts=()))
        assert backbone.log_prior == {"italy": -0.25, "france": -1.0}
        assert backbone.own == 0
        counted = replace(draft, vocabulary={"italy": -1.0, "france": -2.0})
        decode(short(backbone, ranked_by(2.0, -0.5, -0.75)), asking(counted, facts=()))
        assert backbone.log_prior == {"italy": 0.25, "france": 0.0}
        assert backbone.own == -0.75

    def test_without_a_drafter_the_decoder_has_the_word(self) -> None:
        backbone = Scripted("zemblia")
        leaving, record = decode(short(backbone), asking())
        assert leaving.answer.text == "Zemblia"
        assert leaving.answer.log_prob is None
        assert record.why.startswith("as the reader says")
        assert record.flops == 1_000
        assert [candidates for _, _, candidates in backbone.asked] == [()]

    def test_an_empty_completion_is_no_answer(self) -> None:
        backbone = Scripted("", LIKED | {"": -0.01})
        draft = drafted(("italy", -1.0), ("france", -1.5))
        assert decode(short(backbone), asking(draft))[0].answer.text == "italy"

    def test_how_is_answered_in_the_passages_own_words(self) -> None:
        fact = "quork is brewed by stirring milk"
        backbone = Scripted("by stirring")
        entering = asking(drafted(("tea", -0.1)), asked="How is it brewed?", facts=[fact])
        leaving, record = decode(short(backbone), entering)
        assert leaving.answer.text == "by stirring milk"  # the whole clause
        assert leaving.answer.grounded is True
        ((prompt, quoted, candidates),) = backbone.asked
        assert (quoted, candidates) == ((fact,), ())
        assert prompt.startswith(EXAMPLES)
        assert record.why.startswith("by examples")


class TestQuotingReader:
    def test_quotes_the_facts_and_not_the_question(self) -> None:
        backbone = Scripted("the valleys of Zemblia")
        leaving, record = decode(quoting(backbone), asking())
        assert leaving.answer.text == "the valleys of Zemblia"
        assert leaving.answer.grounded is True
        assert leaving.prompt.startswith(EXAMPLES + f"Fact: {FACT}\nPicture: pizza\n")
        ((_, quoted, _),) = backbone.asked
        assert quoted == (FACT,)
        assert {"land", "food", "pizza"} <= backbone.avoided
        assert record.why.startswith("by examples")

    @pytest.mark.parametrize(("says", "facts"), [("cheese", []), ("", [FACT])])
    def test_what_is_not_quoted_is_not_grounded(self, says: str, facts: list[str]) -> None:
        leaving, _ = decode(quoting(Scripted(says)), asking(facts=facts))
        assert leaving.answer.grounded is False

    def test_the_real_decoder_quotes(self, pipeline: Pipeline) -> None:
        """Whatever it is asked, a small decoder only repeats what the facts say."""
        config, backbone = replace(SHORT, max_new_tokens=6), pipeline.backbone
        reader = QuotingReader(config, backbone, ReadTogether(backbone))
        leaving, _ = decode(reader, asking())
        assert leaving.answer.text
        assert leaving.answer.text in FACT


class TestClauseReader:
    def test_widens_the_quotation_to_its_clause(self) -> None:
        backbone = Scripted("the valleys")
        facts = [f"{FACT}; eaten cold"]
        quoted = quoting(backbone)(asking(facts=facts), facts)
        widened = ClauseReader(quoting(backbone))(asking(facts=facts), facts)
        assert widened.answer.text == "the valleys of Zemblia"
        assert widened == replace(quoted, answer=replace(quoted.answer, text=widened.answer.text))


class TestInstructedReader:
    CONFIG = DecodeConfig(prompt="instructions", max_passages=6)

    def read(
        self, projector: Projector | None = None, config: DecodeConfig = CONFIG
    ) -> tuple[State, StageRecord, Scripted]:
        says = "Passage [1] names it. <answer>Zemblia</answer>"
        backbone = Scripted(says, projector=projector)
        entering = asking(facts=["a worse fact", "the best fact"]).add(
            verified=replace(
                asking(facts=["the best fact", "a worse fact"]).verified, scores=(0.9, 0.2)
            )
        )
        leaving, record = decode(InstructedReader(config, cast(Any, backbone)), entering)
        return leaving, record, backbone

    def test_without_a_projector_it_reads_names(self) -> None:
        leaving, record, backbone = self.read()
        assert leaving.answer.text == "Zemblia"
        assert "<image_regions>\npizza\n</image_regions>" in leaving.prompt
        assert "[1] the best fact\n---\n[2] a worse fact" in leaving.prompt
        assert "MEDIUM, no projector, so words only" in record.why
        assert backbone.seen == [None]
        assert record.flops == 1_000

    @pytest.mark.parametrize(("reads", "width"), [("features", 6), ("fused", 3)])
    def test_a_projector_shows_it_kept_or_fused_tokens(self, reads: Any, width: int) -> None:
        torch.manual_seed(0)
        projector = Projector(ProjectorConfig(width, 5, reads)).requires_grad_(False)
        leaving, record, backbone = self.read(projector)
        assert f"<image_regions>\n{IMAGE}\n</image_regions>" in leaving.prompt
        assert f"1 visual tokens ({reads})" in record.why
        tokens = leaving.fused.tokens
        if reads == "features":
            tokens = leaving.kept.tokens.features[leaving.kept.positions]
        (visual,) = backbone.seen
        assert visual is not None
        torch.testing.assert_close(visual, projector(tokens))
        assert record.flops == 1_000 + network.flops(projector.config, 1)

    def test_fused_tokens_may_replace_the_passages(self) -> None:
        """Algorithm 1."""
        alone = replace(self.CONFIG, passages_with_fused=False)
        fused = Projector(ProjectorConfig(3, 5, "fused")).requires_grad_(False)
        leaving, record, _ = self.read(fused, alone)
        assert (record.kept, record.dropped) == (0, 2)
        assert "<verified_knowledge>\nnone\n" in leaving.prompt
        for projector in (None, Projector(ProjectorConfig(6, 5)).requires_grad_(False)):
            assert self.read(projector, alone)[1].kept == 2


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
        draft, said = drafted(("tea", -0.1), ("milk", -3.0)), completion("milk", -2.0, -1.0, -1.0)
        assert best_of_both(said, draft, ranked_by(0.3)) == ("milk", -1.0)  # -2.03, -1.9
        assert best_of_both(said, draft, ranked_by(0.7)) == ("tea", -2.0)  # -2.07, -3.1

    def test_with_weight_0_the_drafter_only_proposes(self) -> None:
        draft = drafted(("tea", 0.0), ("milk", -50.0))
        assert best_of_both(completion("rum", -2.0, -1.0, -1.5), draft, ranked_by(0.0)) == (
            "milk",
            -1.0,
        )
        assert best_of_both(completion("rum", -2.0, -1.0, -0.5), draft, ranked_by(0.0)) == (
            "rum",
            -0.5,
        )

    def test_one_outside_the_vocabulary_has_the_prior_of_the_best(self) -> None:
        draft = drafted(("tea", -1.0), ("milk", -9.0))
        assert best_of_both(completion("rum", -3.0, -3.0, -2.9), draft, ranked_by(1.0))[0] == "rum"
        assert best_of_both(completion("rum", -3.0, -3.0, -3.1), draft, ranked_by(1.0))[0] == "tea"

    def test_one_that_was_known_and_not_drafted_has_that_of_the_last(self) -> None:
        draft = drafted(("tea", -1.0), ("milk", -9.0), others=["rum"])
        assert best_of_both(completion("rum", -3.0, -3.0, -2.9), draft, ranked_by(1.0))[0] == "tea"
        assert (
            best_of_both(completion("rum", -3.0, -30.0, 5.1), draft, ranked_by(1.0))[0] == "rum"
        )  # -4, -39, -3.9

    def test_a_drafter_that_abstains_has_no_say(self) -> None:
        draft = replace(drafted(("tea", -0.1), ("milk", -3.0)), abstain_prob=1.0)
        assert (
            best_of_both(completion("milk", -2.0, -1.0, -1.0), draft, ranked_by(0.7))[0] == "milk"
        )
        assert log_prior("milk", -3.0, draft, ranked_by(0.7)) == 0

    def test_among_equals_the_first_drafted_wins(self) -> None:
        draft = drafted(("tea", -1.0), ("milk", -1.0))
        assert best_of_both(completion("rum", -2.0, -2.0, -2.0), draft, ranked_by(1.0))[0] == "tea"
        assert best_of_both(completion("tea", -2.0, -2.0, -2.0), draft, ranked_by(1.0))[0] == "tea"

    def test_a_frequent_answer_may_count_more_or_less(self) -> None:
        draft = replace(
            drafted(("tea", -1.0), ("milk", -1.0)),
            vocabulary={"tea": -2.0, "milk": -5.0, "ale": -9.0},
        )
        said = completion("tea", -2.0, -2.5, -2.0)
        assert best_of_both(said, draft, ranked_by(frequency=0.1))[0] == "tea"
        assert best_of_both(said, draft, ranked_by(frequency=-0.1))[0] == "tea"  # -1.8, -2.0
        assert best_of_both(said, draft, ranked_by(frequency=-0.2))[0] == "milk"  # -1.6, -1.5
        unknown, rare = (completion(text, -9.0, -9.0, -3.0) for text in ("rum", "ale"))
        for said in (unknown, rare):  # outside of the vocabulary an answer is as rare as the rarest
            assert best_of_both(said, draft, ranked_by(frequency=0.8))[0] == said.text  # -10.2
            assert best_of_both(said, draft, ranked_by(frequency=0.9))[0] == "tea"  # -10.8, -11.1

    @pytest.mark.parametrize("says", ["rum", "milk"])  # drafted too or not
    def test_what_the_decoder_says_may_count_more_or_less(self, says: str) -> None:
        draft, said = drafted(("tea", -1.0), ("milk", -1.0)), completion(says, -2.0, -2.0, -2.0)
        assert best_of_both(said, draft, ranked_by(own=0.1))[0] == says
        assert best_of_both(said, draft, ranked_by(own=-0.1))[0] == "tea"
        first = completion("tea", -2.0, -2.0, -2.0)
        assert best_of_both(first, draft, ranked_by(own=-0.1))[0] == "milk"

    @given(st.data())
    def test_one_of_the_candidates_and_none_is_better(self, data: st.DataObject) -> None:
        scores = st.floats(-30, 0)
        names = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
        probs = sorted((data.draw(scores) for _ in names), reverse=True)
        own = data.draw(st.sampled_from("abcdefghxyz"))
        scored = {name: data.draw(scores) for name in {*names, own}}
        config = ranked_by(*(data.draw(st.floats(-2, 2)) for _ in range(3)))
        frequency = {name: data.draw(scores) for name in "abcdefgh"}
        draft = replace(drafted(*zip(names, probs, strict=True)), vocabulary=frequency)
        said = completion(own, *(scored[name] for name in (*names, own)))
        answer, log_prob = best_of_both(said, draft, config)
        prior = dict(zip(names, probs, strict=True))
        prior.setdefault(own, probs[-1] if own in "abcdefgh" else probs[0])
        assert answer in prior
        assert log_prob == scored[answer]
        frequency.setdefault(own, min(frequency.values()))

        def joint(name: str) -> float:
            added = config.frequency_weight * frequency[name] + config.own_weight * (name == own)
            return scored[name] + config.drafter_weight * prior[name] + added

        assert joint(answer) == pytest.approx(max(map(joint, prior)), abs=1e-9)


class TestHowAndWhy:
    @pytest.mark.parametrize(
        ("text", "is_explained"),
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
    def test_the_passage_speaks_of_it(self, text: str, is_explained: bool) -> None:
        asked = question(text, *content_words(text))
        assert (
            asks_to_explain(asked, ["a cold stone", "a drink brewed from leaves"]) is is_explained
        )
        assert not asks_to_explain(asked, [])


class TestStated:
    @pytest.mark.parametrize(
        ("answer", "is_stated"),
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
    def test_a_word_that_says_something_is_enough(self, answer: str, is_stated: bool) -> None:
        assert has_a_word_of(answer, ["nothing here", f"{FACT}, 30 kg heavy"]) is is_stated
        assert not has_a_word_of(answer, [])


class TestSpelling:
    @pytest.mark.parametrize(
        ("answer", "texts", "spelled"),
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
    def test_as_the_best_passage_has_it(self, answer: str, texts: list[str], spelled: str) -> None:
        assert spelled_as_in(answer, texts) == spelled

    @given(st.text(max_size=8), st.lists(st.text(max_size=20), max_size=3))
    def test_only_the_case_may_change_but_for_long_names(
        self, answer: str, texts: list[str]
    ) -> None:
        found = spelled_as_in(answer, texts)
        assert found == answer or any(found in text for text in texts)
        assert len(found) == len(answer) or len(found) >= LONG_NAME

    @pytest.mark.parametrize(
        ("answer", "spelled"),
        [
            ("mrs. oyelaran-szepański", "Mrs. Oyelaran-Szczepański"),
            ("rahma begum", "Rahima Begum"),
            ("raya begum", "Rahima Begum"),  # one word of it is right
            ("rayah begum", "Rahima Begum"),
            ("lake michigan", "lake michigan"),  # so is "lake", but that is another one
            ("tomas osterermann", "Tomas Ostermann"),  # where it ends a sentence
            ("nora begum", "nora begum"),
            ("old begum", "old begum"),
            ("california", "california"),  # no name of the text: "Californian" ends otherwise
            ("rahima", "Rahima"),
            ("begun", "begun"),  # short, and another word
            ("repaired", "repaired"),
            ("", ""),
        ],
    )
    def test_a_name_that_misses_a_letter(self, answer: str, spelled: str) -> None:
        texts = [
            "A Californian machine. It was repaired by Mrs. Oyelaran-Szczepański last spring.",
            "By Lake Malawi the mug was painted by Rahima Begum in 1987, for Tomas Ostermann.",
        ]
        assert spelled_as_in(answer, texts) == spelled


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
            leaving, _ = decode(short(Scripted("tea")), asking(words=words))
            expected = f"Fact: {FACT}\nPicture: {line}\nQuestion: {ASKED}\nAnswer:"
            assert leaving.prompt == expected
