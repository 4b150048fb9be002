"""What a completion says: regions, queries, scores, questions, answers. Nothing raises.

Enters: the text of a completion. Leaves: what it holds of what was asked for. Where something
cannot be read, the value says so (None, or nothing) and the caller uses its fallback. What comes
later in a text replaces what came before: models think aloud first. All text leaves on one line,
without control characters. It does not know prompts or endpoints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from skipqa.prompted.answer import WHOLE_IMAGE, NamedRegion
from skipqa.prompted.lenient import LONGEST, values
from skipqa.stages.prompts import parse_answer
from skipqa.types import Box, Level

NAMES = ("name", "label", "region", "object", "description", "title", "location")
BOXES = ("box", "bbox", "bbox_2d", "box_2d", "bounding_box", "boundingbox", "coordinates", "coords")
SALIENCE = ("salience", "saliency", "score", "relevance", "importance", "confidence")
PASSAGE = ("passage", "id", "number", "idx", "index", "n")
RELEVANCE = ("relevance", "score", "rating", "value")
REGION = ("region", "id", "number", "idx", "index", "n")
QUERY = ("query", "search", "search_query", "q", "text")
LONGEST_NAME = 100  # characters
UNNAMED = "unnamed"
UNKNOWN_SALIENCE = 0.5
SMALLEST_SIDE = 0.01  # of a box, in the image's; below, it is no place
FRACTIONS = 2.0  # coordinates up to this are fractions, some outside the image
THOUSANDTHS = 1_000.0  # the unit of some models
SLACK = 1.05  # by which pixels may lie outside the image
_LEVELS: tuple[Level, ...] = get_args(Level)
_LEVEL = re.compile(r"\b(EASY|MEDIUM|HARD)\b", re.IGNORECASE)
_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)", re.ASCII)
_RATIO = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)\s*", re.ASCII)
# Repetitions are bounded or stop at the line's end: none of this takes quadratic time.
_NUMBERED = re.compile(
    r"^[^\w\n]{0,8}(?:(?:passage|region)[^\w\n]{0,4})?(\d{1,6})"
    r"(?:[ \t]{0,4}[:)\]=][^\w.\n]{0,8}|\.?[ \t]{1,8}[-–—]?[ \t]{0,4})(.+)$",
    re.MULTILINE | re.ASCII | re.IGNORECASE,
)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)\w*[ \t]*$", re.MULTILINE)
_QUERY_LABEL = re.compile(
    r"^\W*(?:the |a |my )?(?:search |retrieval )?query\s*(?:is)?\s*:\s*", re.IGNORECASE
)
_GROUNDS = re.compile(r"<passages>(.*?)(?:</passages>|(?=<answer>)|\Z)", re.DOTALL | re.IGNORECASE)
_CITED = re.compile(r"\[\s*(\d{1,6}(?:\s*[,;&]\s*\d{1,6})*)\s*\]", re.ASCII)
_QUOTES = "\"'`“”‘’«»*"


@dataclass(frozen=True, slots=True)
class ReadDraft:
    answer: str  # empty: none
    level: Level | None


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    text: str
    tagged: bool
    cited: frozenset[int]  # places of passages, from 0


def one_line(text: str) -> str:
    plain = _CONTROL.sub(" ", text.encode("utf-8", "replace").decode())
    return " ".join(plain.split())


def without_thoughts(text: str) -> str:
    """Without what a reasoning model thinks before it speaks."""
    return _THOUGHT_END.sub("", _THOUGHT.sub("", text))[-LONGEST:]


def read_draft(text: str) -> ReadDraft:
    said = without_thoughts(text)
    answer, level = "", None
    for row in _objects(values(said)):
        answer = _words(_get(row, ("answer", "draft", "draft_answer"))) or answer
        level = _level(_words(_get(row, ("difficulty", "level")))) or level
    if not answer and "<answer>" in said.lower():
        answer = one_line(parse_answer(said))
    return ReadDraft(answer, level or _level(said))


def read_regions(text: str, most: int, size: tuple[int, int]) -> tuple[NamedRegion, ...]:
    """The most salient, best first; none where nothing can be read. `size` is that of the image as
    the model saw it, in pixels.

    A region whose box cannot be read is the whole image.
    """
    found: dict[tuple[str, Any], tuple[str, float]] = {}
    for name, box, salience in _described(values(without_thoughts(text))):
        found[name.lower(), _corners(box)] = (name, salience)
    unit = _unit([corners for _, corners in found if corners is not None], size)
    regions = [
        NamedRegion(name, _box(corners, unit), salience)
        for (_, corners), (name, salience) in found.items()
    ]
    return tuple(sorted(regions, key=lambda region: -region.salience)[:most])


def read_query(text: str, most_words: int) -> str:
    """Empty where there is none."""
    said = without_thoughts(text)
    for row in _objects(values(said)):
        if query := _cut(_words(_get(row, QUERY)), most_words):
            return query
    for line in _FENCE.sub("", said).splitlines():
        query = one_line(_QUERY_LABEL.sub("", line)).strip(_QUOTES).strip()
        if query and not query.endswith(":") and re.search(r"\w", query):
            return _cut(query, most_words)
    return ""


def read_queries(text: str, count: int, most_words: int) -> tuple[str, ...]:
    """One for each of `count` regions, empty where there is none."""
    found = _by_number(without_thoughts(text), count, REGION, QUERY, _words)
    return tuple(_cut(found.get(n, "").strip(_QUOTES), most_words) for n in range(count))


def read_relevance(text: str, count: int) -> tuple[float | None, ...]:
    """Of each of `count` passages, between 0 and 1; None where it is not given."""
    found = _by_number(without_thoughts(text), count, PASSAGE, RELEVANCE, _number)
    return tuple(min(1.0, max(0.0, found[n])) if n in found else None for n in range(count))


def read_question(text: str) -> tuple[str, str]:
    """A question and its answer, each empty where it is not given."""
    question = answer = ""
    for row in _objects(values(without_thoughts(text))):
        question = _words(_get(row, ("question", "q"))) or question
        answer = _words(_get(row, ("answer", "a"))) or answer
    return question, answer


def read_score(text: str, name: str) -> float | None:
    """The one score of this name, between 0 and 1; None where it is not given."""
    said, score = without_thoughts(text), None
    for row in _objects(values(said)):
        number = _number(_get(row, (name, *RELEVANCE)))
        score = score if number is None else number
    if score is None and len(lines := said.split()) == 1:  # the number alone
        score = _number(lines[0])
    return None if score is None else min(1.0, max(0.0, score))


def read_caption(text: str, most_words: int) -> str:
    return _cut(one_line(_FENCE.sub("", without_thoughts(text))), most_words)


def read_answer(text: str, num_passages: int) -> ReadAnswer:
    """The answer, and the passages that it names: between their tags, else wherever it cites."""
    said = without_thoughts(text)
    answer = one_line(_CITED.sub("", parse_answer(_GROUNDS.sub("", said))))
    if grounds := _GROUNDS.findall(said):
        numbers = re.findall(r"\d{1,6}", grounds[-1], re.ASCII)
    else:
        numbers = [n for group in _CITED.findall(said) for n in re.findall(r"\d+", group, re.ASCII)]
    cited = frozenset(int(n) - 1 for n in numbers if 1 <= int(n) <= num_passages)
    return ReadAnswer(answer, "<answer>" in said.lower(), cited)


def _cut(text: str, most_words: int) -> str:
    return " ".join(text.split()[:most_words])


def _objects(found: Any) -> Iterator[Mapping[str, Any]]:
    """All objects, each before those inside it."""
    if isinstance(found, dict):
        yield found
    inside = found.values() if isinstance(found, dict) else found
    for value in inside if isinstance(found, dict | list) else ():
        yield from _objects(value)


def _get(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first of these that the row has, however it is capitalised."""
    plain = {key.strip().lower(): value for key, value in row.items()}
    return next((plain[name] for name in names if plain.get(name) is not None), None)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list):
        return ", ".join(filter(None, map(_words, value)))
    # Dots are the place-holder of the form in the prompt, not words
    return one_line(value) if isinstance(value, str) and value.strip(" .…") else ""


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        if (ratio := _RATIO.fullmatch(value)) and float(ratio[2]) > 0:
            return _finite(float(ratio[1]) / float(ratio[2]))
        if (found := _NUMBER.search(value)) is None:
            return None
        percent = value[found.end() :].lstrip().startswith("%")
        return _finite(float(found[0]) / (100 if percent else 1))
    return float(value) if isinstance(value, bool | float) else None


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _level(text: str) -> Level | None:
    """None where it names none, or several."""
    named = {found.upper() for found in _LEVEL.findall(text)}
    return next((level for level in _LEVELS if named == {level}), None)


def _by_number(
    text: str,
    count: int,
    keys: Sequence[str],
    contents: Sequence[str],
    read: Callable[[Any], Any],
) -> dict[int, Any]:
    """What is said of the first, the second and so on, from 0: as objects with a number, an object
    by number, a list in order, or numbered lines."""
    found: dict[int, Any] = {}

    def add(number: Any, value: Any) -> None:
        place, content = _number(number), read(value)
        if place is not None and 1 <= place <= count and content not in (None, ""):
            found[int(place) - 1] = content

    said = values(text)
    for row in _objects(said):
        if (content := _get(row, contents)) is not None:
            add(_get(row, keys), content)
        else:
            for name, value in row.items():
                add(name, value)
    for listed in _lists(said) if not found else ():
        if len(listed) == count:
            for n, item in enumerate(listed, 1):
                add(float(n), _get(item, contents) if isinstance(item, dict) else item)
    for number, rest in _NUMBERED.findall(text) if not found else ():
        add(number, rest)
    return found


def _lists(found: Any) -> Iterator[list[Any]]:
    if isinstance(found, list):
        yield found
    inside = found.values() if isinstance(found, dict) else found
    for value in inside if isinstance(found, dict | list) else ():
        yield from _lists(value)


def _described(found: Any) -> Iterator[tuple[str, Any, float]]:
    """Name, box and salience of whatever looks like a region."""
    if isinstance(found, str) and (name := _words(found)[:LONGEST_NAME]):
        yield name, None, UNKNOWN_SALIENCE
    elif isinstance(found, list):
        for item in found:
            yield from _described(item)
    elif isinstance(found, dict):
        name, box = _words(_get(found, NAMES))[:LONGEST_NAME], _get(found, BOXES)
        if box is not None or (name and not _has_objects(found)):
            salience = _number(_get(found, SALIENCE))
            s = UNKNOWN_SALIENCE if salience is None else min(1.0, max(0.0, salience))
            yield name or UNNAMED, box, s
            return
        for key, value in found.items():
            if _corners(value) is not None and not isinstance(value, str):  # {"cup": [0, 0, 1, 1]}
                yield one_line(key)[:LONGEST_NAME] or UNNAMED, value, UNKNOWN_SALIENCE
            elif isinstance(value, dict | list):
                yield from _described(value)


def _has_objects(row: Mapping[str, Any]) -> bool:
    """Then its own name is that of a list of regions."""
    inside = [v for value in row.values() for v in (value if isinstance(value, list) else [value])]
    return any(isinstance(value, dict) for value in inside)


def _corners(box: Any) -> tuple[float, ...] | None:
    """Left, top, right and bottom in whatever unit; None if these are not four numbers."""
    if isinstance(box, str):
        box = [_finite(float(n)) for n in _NUMBER.findall(box)]
    if isinstance(box, dict):
        sides = [_number(_get(box, names)) for names in _SIDES]
        width, height = (_number(_get(box, names)) for names in (("width", "w"), ("height", "h")))
        left, top, right, bottom = sides
        if right is None and left is not None and width is not None:
            right = left + width
        if bottom is None and top is not None and height is not None:
            bottom = top + height
        box = [left, top, right, bottom]
    if isinstance(box, list):
        flat = [n for item in box for n in (item if isinstance(item, list) else [item])]
        numbers = [None if isinstance(n, dict | list) else _number(n) for n in flat]
        known = [n for n in numbers if n is not None]
        if len(known) == len(numbers) == 4 and all(map(math.isfinite, known)):
            return tuple(known)
    return None


_SIDES = (
    ("left", "x1", "xmin", "x_min", "x"),
    ("top", "y1", "ymin", "y_min", "y"),
    ("right", "x2", "xmax", "x_max"),
    ("bottom", "y2", "ymax", "y_max"),
)


def _unit(boxes: Sequence[Sequence[float]], size: tuple[int, int]) -> tuple[float, float]:
    """What one is in these coordinates; all boxes of a reply have the same unit."""
    right = max((max(box[0], box[2]) for box in boxes), default=0.0)
    bottom = max((max(box[1], box[3]) for box in boxes), default=0.0)
    if max(right, bottom) <= FRACTIONS:
        return 1.0, 1.0
    width, height = size
    fits = right <= SLACK * width and bottom <= SLACK * height
    if not fits and max(right, bottom) <= THOUSANDTHS:
        return THOUSANDTHS, THOUSANDTHS
    return float(width), float(height)


def _box(corners: Sequence[float] | None, unit: tuple[float, float]) -> Box:
    """As fractions, within the image."""
    if corners is None:
        return WHOLE_IMAGE
    left, right = sorted(min(1.0, max(0.0, x / unit[0])) for x in (corners[0], corners[2]))
    top, bottom = sorted(min(1.0, max(0.0, y / unit[1])) for y in (corners[1], corners[3]))
    if right - left < SMALLEST_SIDE or bottom - top < SMALLEST_SIDE:
        return WHOLE_IMAGE
    return left, top, right, bottom
