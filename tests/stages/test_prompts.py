"""Prompt E.4 by difficulty, and the answer in what comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.stages.prompts import DEPTH, answer_prompt, parse_answer
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
