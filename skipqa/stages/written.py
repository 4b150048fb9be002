"""What was read in the image as an answer, and as a fact for the decoder.

Enters: a state with the lines that `read_text` found. Leaves: the text on the most salient tokens
where the question asks what is written, else a fact for the reader. Without lines nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from skipqa.backbones.backbone import Completion
from skipqa.stages.readers import Reading
from skipqa.state import State
from skipqa.types import Decoded, TextLine

MAX_FACTS = 2  # texts that the decoder reads, the most salient last
_NUMBER = re.compile(r"\d+")
_ASKS_NUMBER = re.compile(r"\bnumber\b(?! plate)")
_ASKS_NAME = re.compile(r"\b(?:where|destination|going|who|names?|named)\b")


def quoted(state: State) -> Reading | None:
    """The text itself where the question asks what is written, without the decoder; else None."""
    texts = texts_read(state)
    if not texts or not state.question.asks_what_is_written:
        return None
    said = part_asked(texts[-1], state.question.text)
    answer = Decoded(said, grounded=False, written=True)
    return Reading(answer, "", Completion(said, 0, 0, 0), "as the image says")


def text_facts(state: State) -> list[str]:
    """For a decoder, the best last."""
    return [f"The text says {text}." for text in texts_read(state)[-MAX_FACTS:]]


def texts_read(state: State) -> list[str]:
    """What each block of lines says, the one on the most salient tokens last."""
    found = blocks(state.text_read.lines)
    in_order = sorted(found, key=lambda lines: max(_saliency(line, state) for line in lines))
    return [" ".join(line.text for line in lines) for lines in in_order]


def blocks(lines: Sequence[TextLine]) -> list[list[TextLine]]:
    """Lines that stand below or beside each other belong together, in the order they came in."""
    found: list[list[TextLine]] = []
    for line in lines:
        near = [block for block in found if any(_near(line, other) for other in block)]
        joined = [other for block in near for other in block] + [line]
        found = [block for block in found if block not in near] + [joined]
    return found


def _near(one: TextLine, other: TextLine) -> bool:
    """At most a line's height apart, up and down and sideways."""
    apart = max(one.box[3] - one.box[1], other.box[3] - other.box[1])
    beside = max(one.box[0], other.box[0]) - min(one.box[2], other.box[2])
    below = max(one.box[1], other.box[1]) - min(one.box[3], other.box[3])
    return beside <= apart and below <= apart


def _saliency(line: TextLine, state: State) -> float:
    """Of the token in its middle."""
    kept, grid = state.kept, state.kept.tokens.grid
    x, y = (line.box[0] + line.box[2]) / 2, (line.box[1] + line.box[3]) / 2
    column, row = min(grid - 1, int(x * grid)), min(grid - 1, int(y * grid))
    return float(kept.saliency[row * grid + column])


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
