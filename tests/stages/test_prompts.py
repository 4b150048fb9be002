"""Prompt E.4 by difficulty, data that stays data, and the answer in what comes back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.stages.prompts import DEPTH, answer_prompt, as_data, parse_answer, reading_prompt
from skipqa.types import Level


@pytest.mark.parametrize("level", DEPTH)
def test_only_the_levels_own_instruction_is_given(level: Level) -> None:
    prompt = answer_prompt(level, "<image>", ["one {x}", "two"], "What?")
    assert [name for name, depth in DEPTH.items() if depth in prompt] == [level]
    assert "<image_regions>\n<image>\n</image_regions>" in prompt
    assert "[1] one {x}\n---\n[2] two" in prompt
    assert "<question>What?</question>" in prompt


def test_without_passages_it_says_so() -> None:
    assert "<verified_knowledge>\nnone\n</verified_knowledge>" in answer_prompt(
        "EASY", "", [], "What?"
    )


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("It is old. <answer>Paris</answer>", "Paris"),
        ("<answer>Rome</answer> or rather <answer> Paris. </answer> so", "Paris"),
        ("Passage [1] says <ANSWER>two\nwords</ANSWER>", "two words"),
        ("cut short <answer>Par", "Par"),
        ("Paris.", "Paris"),
        ("First this.\n\nFinal answer: Paris\n", "Paris"),
        ("Answer is: 42", "42"),
        ("U.S.", "U.S"),
        ("", ""),
        ("<answer></answer>", ""),
    ],
)
def test_answers_are_found(completion: str, answer: str) -> None:
    assert parse_answer(completion) == answer


@given(st.text())
def test_an_answer_is_one_line(completion: str) -> None:
    assert parse_answer(completion) == " ".join(parse_answer(completion).split())


@given(st.text(st.characters(exclude_characters="<"), min_size=1), st.text())
def test_tags_win_over_anything_around_them(answer: str, before: str) -> None:
    assert parse_answer(f"{before}<answer>{answer}</answer>") == parse_answer(
        f"<answer>{answer}</answer>"
    )


TAGS = ("difficulty", "image_regions", "verified_knowledge", "question", "answer", "image", "s")
MARKS = [
    *(f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")),
    *("<|im_end|>", "<|im_start|>", "<|", "USER:", "ASSISTANT:", "SYSTEM:", "<ANSWER>"),
    *("\n", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"),
]
TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})\b|<\|", re.IGNORECASE)
ROLE = re.compile(r"\b(?:USER|ASSISTANT|SYSTEM):")  # "system:" is an ordinary word
# Text in which marks of all kinds stand next to each other and to anything else
hostile = st.lists(st.sampled_from(MARKS) | st.sampled_from("< > / | :") | st.text(max_size=6))
hostile_text = hostile.map("".join)


class TestAsData:
    @given(hostile_text)
    def test_no_tag_role_or_line_break_survives(self, text: str) -> None:
        clean = as_data(text)
        assert len(clean.splitlines()) <= 1
        assert TAG.findall(clean) == []
        assert ROLE.findall(clean) == []
        assert as_data(clean) == clean

    @pytest.mark.parametrize("mark", MARKS)
    def test_every_mark_is_taken_apart(self, mark: str) -> None:
        assert mark not in as_data(f"before {mark} after")

    @given(st.text(st.characters(exclude_categories=("Cc", "Zl", "Zp"), exclude_characters="<:")))
    def test_ordinary_text_is_unchanged(self, text: str) -> None:
        assert as_data(text) == text

    @pytest.mark.parametrize(
        "text",
        [
            "a < b and c > d, 1<2",
            "<strong>bold</strong>, <images>, <section>",
            "the user: anyone",
            "Luxembourg: Government > Flag",
            "naïve “quotes” 🍵 x|y",
        ],
    )
    def test_so_is_what_only_resembles_a_mark(self, text: str) -> None:
        assert as_data(text) == text

    @given(facts=st.lists(hostile_text, max_size=3), asked=hostile_text)
    def test_no_fact_or_question_adds_a_line_to_the_short_prompt(
        self, facts: list[str], asked: str
    ) -> None:
        prompt = reading_prompt(facts, ["cup"], asked)
        lines = prompt.splitlines()
        assert [line.partition(": ")[0] for line in lines] == [
            *(["Fact"] * len(facts)), "Picture", "Question", "Answer:",
        ]  # fmt: skip
        assert TAG.findall(prompt) == ROLE.findall(prompt) == []

    @given(
        passages=st.lists(hostile_text, max_size=3),
        asked=hostile_text,
        level=st.sampled_from(list(DEPTH)),
    )
    def test_no_passage_or_question_adds_a_line_or_tag_to_the_instructions(
        self, passages: list[str], asked: str, level: Level
    ) -> None:
        plain = answer_prompt(level, "<image>", ["p"] * len(passages), "q")
        prompt = answer_prompt(level, "<image>", passages, asked)
        assert len(prompt.splitlines()) == len(plain.splitlines())
        assert TAG.findall(prompt) == TAG.findall(plain)
        assert ROLE.findall(prompt) == []
