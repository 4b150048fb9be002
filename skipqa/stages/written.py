"""What was read in the image as an answer, and as a fact for the decoder.

Enters: a state with the lines that `read_text` found. Leaves: the text of the most salient region
where the question asks what is written, else a fact for the reader. Without lines nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from skipqa.backbones.backbone import Completion
from skipqa.stages.readers import Reader, Reading
from skipqa.state import State
from skipqa.types import Decoded, TextLine

MAX_FACTS = 2  # texts that the decoder reads, the most salient last
_NUMBER = re.compile(r"\d+")
_ASKS_NUMBER = re.compile(r"\bnumber\b(?! plate)")
_ASKS_NAME = re.compile(r"\b(?:where|destination|going|who|names?|named)\b")


class TextQuoter:
    """Answers with the text itself where that is asked for, and leaves all else to `reader`."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    @property
    def max_passages(self) -> int:
        return self.reader.max_passages

    def __call__(self, state: State, facts: Sequence[str]) -> Reading:
        texts = texts_read(state)
        if not texts or not state.question.asks_what_is_written:
            return self.reader(state, facts)
        answer = Decoded(part_asked(texts[-1], state.question.text), grounded=False, written=True)
        return Reading(answer, "", Completion(answer.text, 0, 0, 0), "as the image says")


def text_facts(state: State) -> list[str]:
    """For a decoder, the best last."""
    return [f"The text says {text}." for text in texts_read(state)[-MAX_FACTS:]]


def texts_read(state: State) -> list[str]:
    """What each crop says, its lines in reading order; that of the most salient region last."""
    by_crop: dict[int, list[TextLine]] = {}
    for line in state.text_read.lines:
        by_crop.setdefault(_crop_of(line, state), []).append(line)

    def salience(lines: Sequence[TextLine]) -> float:
        regions = (state.regions[line.region] for line in lines if line.region is not None)
        return max((region.saliency for region in regions), default=0.0)

    in_order = sorted(by_crop.values(), key=salience)
    return [" ".join(line.text for line in lines) for lines in in_order]


def part_asked(text: str, question: str) -> str:
    """Of "47 Lisbon" the number or the name, where the question asks for one of them."""
    asked, words = question.lower(), text.split()
    numbers = [word for word in words if _NUMBER.fullmatch(word)]
    if not numbers or len(numbers) == len(words):
        return text
    if _ASKS_NUMBER.search(asked):
        return " ".join(numbers)
    if _ASKS_NAME.search(asked):
        return " ".join(word for word in words if word not in numbers)
    return text


def _crop_of(line: TextLine, state: State) -> int:
    """The first crop that holds the middle of the line."""
    x, y = (line.box[0] + line.box[2]) / 2, (line.box[1] + line.box[3]) / 2
    for number, (left, top, right, bottom) in enumerate(state.text_read.crops):
        if left <= x <= right and top <= y <= bottom:
            return number
    return -1
