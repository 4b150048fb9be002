"""Text in the image as an answer and as a fact."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from synthetic import kept_tokens, question, state

from skipqa.stages.written import part_asked, quoted, text_facts, texts_read
from skipqa.state import State
from skipqa.types import ReadText, Region, TextLine

LEFT, RIGHT = (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0)
REGIONS = (Region(LEFT, (0,), (), 0.9), Region(RIGHT, (1,), (), 0.4))
KEPT = replace(kept_tokens(2, [0, 1], seed=0), saliency=torch.tensor([0.9, 0.4, 0.1, 0.1]))
LINES = (
    TextLine("TONIC", (0.1, 0.1, 0.3, 0.2), 0.9, 0),
    TextLine("WATER", (0.1, 0.25, 0.3, 0.35), 0.9, 0),
    TextLine("27 Rabat", (0.6, 0.1, 0.9, 0.2), 0.9, 1),
)


def having_read(lines: tuple[TextLine, ...], *, written: bool) -> State:
    asked = replace(question(), asks_for_text=True, asks_what_is_written=written)
    read = ReadText(lines, (LEFT, RIGHT))
    return state(question=asked, regions=REGIONS, kept=KEPT, read_text=read)


def test_lines_near_each_other_are_one_text_and_the_most_salient_is_last() -> None:
    assert texts_read(having_read(LINES, written=True)) == ["27 Rabat", "TONIC WATER"]
    assert texts_read(state(question=question())) == [], "the stage has not run"


def test_what_is_written_is_the_answer_where_that_is_asked() -> None:
    reading = quoted(having_read(LINES, written=True))
    assert reading is not None
    assert (reading.answer.text, reading.answer.written) == ("TONIC WATER", True)
    assert reading.completion.flops == 0
    assert quoted(having_read(LINES, written=False)) is None
    assert quoted(having_read((), written=True)) is None


def test_the_decoder_reads_texts_as_facts() -> None:
    assert text_facts(having_read(LINES, written=False)) == [
        "The text says 27 Rabat.",
        "The text says TONIC WATER.",
    ]
    assert text_facts(having_read((), written=False)) == []


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("What number is on the bus?", "27"),
        ("Where is the bus going?", "Rabat"),
        ("What is the destination of the bus?", "Rabat"),
        ("What does the sign say?", "27 Rabat"),
        ("What is on the number plate?", "27 Rabat"),
    ],
)
def test_a_number_or_a_name_is_the_part_that_is_asked_for(asked: str, part: str) -> None:
    assert part_asked("27 Rabat", asked) == part
    assert part_asked("Rabat", asked) == "Rabat"
    assert part_asked("27", asked) == "27"
