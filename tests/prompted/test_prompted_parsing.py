"""Whatever a model writes is read as far as it goes, and nothing raises."""

from __future__ import annotations

import json
import math
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.prompted.answer import WHOLE_IMAGE, NamedRegion
from skipqa.prompted.lenient import LONGEST, values
from skipqa.prompted.parsing import (
    read_answer,
    read_caption,
    read_draft,
    read_queries,
    read_query,
    read_regions,
    read_relevance,
)

SIZE = (400, 200)
WORDS = 15
CUP = NamedRegion("cup", (0.25, 0.5, 0.75, 1.0), 0.9)
PLATE = NamedRegion("plate", (0.0, 0.5, 0.5, 1.0), 0.4)
REGIONS = """{"regions": [
  {"name": "plate", "box": [0.0, 0.5, 0.5, 1.0], "salience": 0.4},
  {"name": "cup", "box": [0.25, 0.5, 0.75, 1.0], "salience": 0.9}]}"""


def check_everything(text: str) -> None:
    """All readers hold their promises on any text."""
    draft = read_draft(text)
    assert draft.level in (None, "EASY", "MEDIUM", "HARD")
    regions = read_regions(text, 3, SIZE)
    assert len(regions) <= 3
    assert [r.salience for r in regions] == sorted((r.salience for r in regions), reverse=True)
    for region in regions:
        left, top, right, bottom = region.box
        assert 0 <= left < right <= 1
        assert 0 <= top < bottom <= 1
        assert 0 <= region.salience <= 1
        assert 0 < len(region.name) <= 100
    scores = read_relevance(text, 4)
    assert len(scores) == 4
    assert all(score is None or 0 <= score <= 1 for score in scores)
    queries = read_queries(text, 4, WORDS)
    assert len(queries) == 4
    one = read_query(text, WORDS)
    assert all(len(query.split()) <= WORDS for query in (*queries, one))
    answer = read_answer(text, 4)
    assert answer.cited <= {0, 1, 2, 3}
    caption = read_caption(text, 20)
    assert len(caption.split()) <= 20
    named = [region.name for region in regions]
    for line in (draft.answer, *named, *queries, one, answer.text, caption):
        assert line == " ".join(line.split())
        assert not {unicodedata.category(c) for c in line} & {"Cc", "Zl", "Zp"}
        line.encode()  # no half of a surrogate pair: tokenizers and terminals take none


def strict(value: Any) -> Any:
    """As the lenient reader has it: numbers are floats."""
    if isinstance(value, dict):
        return {key: strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [strict(inner) for inner in value]
    return float(value) if type(value) is int else value


plain = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
json_values = st.recursive(
    plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(st.lists(json_values) | st.dictionaries(st.text(), json_values), st.booleans())
def test_json_is_read_as_json(value: Any, ascii: bool) -> None:
    assert values(json.dumps(value, ensure_ascii=ascii)) == [strict(value)]


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    check_everything(text)


pieces = st.sampled_from(
    "{ } [ ] , : \" ' `` ``` <answer> </answer> <think> </think> <passages> regions name box "
    "salience scores passage relevance query difficulty EASY HARD 0.5 1 -3 1e999 90% null true "
    "\\ \\u \\ud800 \n \x1b[31m \u2028 … 1/0 [1,2] 8/10 NaN".split(" ")
)


@given(st.lists(pieces | st.text(max_size=4), max_size=40).map("".join))
def test_any_heap_of_pieces_is_survived(text: str) -> None:
    check_everything(text)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A good reply of some kind, cut, with parts deleted, doubled, replaced or put in."""
    text = draw(st.sampled_from(GOOD))
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(text)))
        last = draw(st.integers(first, min(len(text), first + 20)))
        instead = draw(st.sampled_from(["", text[first:last] * 2]) | pieces | st.text(max_size=3))
        text = text[:first] + instead + text[last:]
    return draw(st.sampled_from([text, text[: draw(st.integers(0, len(text)))]]))


GOOD = (
    REGIONS,
    f"Sure! Here they are:\n```json\n{REGIONS}\n```\nAnything else?",
    '{"answer": "espresso", "difficulty": "HARD"}',
    '{"scores": [{"passage": 1, "relevance": 0.9}, {"passage": 2, "relevance": 0.0}]}',
    '{"queries": [{"region": 1, "query": "espresso brewing"}, {"region": 2, "query": "saucer"}]}',
    "Because of [1].\n<passages>1, 3</passages>\n<answer>under pressure</answer>",
    "<think>maybe {x}</think>espresso machine history",
)


@given(mutated())
def test_any_mutation_of_a_good_reply_is_survived(text: str) -> None:
    check_everything(text)


@pytest.mark.parametrize("mark", [r"\ud800", r"\u001b[31m", r"\u2028", r"\n", r"\u0000"])
@pytest.mark.parametrize("text", GOOD)
def test_marks_that_break_lines_and_terminals(text: str, mark: str) -> None:
    for word in ("cup", "espresso", "pressure", "HARD"):
        check_everything(text.replace(word, mark + word))


@given(st.integers(0, len(REGIONS)))
def test_what_was_whole_before_a_cut_is_read(at: int) -> None:
    found = read_regions(REGIONS[:at], 4, SIZE)
    if at > REGIONS.index("}"):
        assert PLATE in found
    if at == len(REGIONS):
        assert found == (CUP, PLATE)


LONG = LONGEST // 4  # of what is read again at every level


@pytest.mark.parametrize(
    "text",
    [
        *("[" * LONG, '{"a":' * (LONG // 5), '{"' * (LONGEST // 2), "\n" * LONGEST),
        *("1" + " " * LONGEST, "1" * LONGEST, "<think>" * (LONGEST // 7), "[1," * (LONG // 3)),
        *('"' + "\\" * LONGEST, "{" + "a" * LONGEST, "```" * (LONGEST // 3), "-" * LONGEST),
    ],
    ids=lambda text: repr(text[:7]),
)
def test_long_nonsense_takes_linear_time(text: str) -> None:
    """Quadratic time would be hours; of what is a quarter as long, many minutes."""
    begin = time.process_time()
    check_everything(text)
    assert time.process_time() - begin < 30 * len(text) / LONGEST


# Each kind of mess by itself


@pytest.mark.parametrize(
    "text",
    [
        REGIONS,
        f"```json\n{REGIONS}\n```",
        f"The parts [1] that matter {{most}}:\n{REGIONS}\nI hope this helps!",
        f"<think>[maybe] the cup?</think>{REGIONS}",
        REGIONS.replace("}]", "},]").replace("],", ",],"),
        REGIONS.replace('"', "'"),
        REGIONS.replace('"name"', "name").replace('"box"', "box"),
        REGIONS.replace("0.25, 0.5, 0.75, 1.0", "100, 100, 300, 200").replace(
            "0.0, 0.5, 0.5, 1.0", "0, 100, 200, 200"
        ),
        REGIONS.replace("0.25, 0.5, 0.75, 1.0", '"25%", "50%", "75%", "100%"'),
        REGIONS.replace("[0.25, 0.5, 0.75, 1.0]", "[[0.75, 1.0], [0.25, 0.5]]"),
        REGIONS.replace("[0.25, 0.5, 0.75, 1.0]", '{"x": 0.25, "y": 0.5, "w": 0.5, "h": 0.5}'),
        REGIONS.replace("[0.25, 0.5, 0.75, 1.0]", '"0.25, 0.5, 0.75, 1.0"'),
        REGIONS.replace("0.25, 0.5, 0.75, 1.0", "0.25, 0.5, 0.75, 1.4"),
        REGIONS.replace("0.9", '"90%"').replace('"salience"', '"Saliency"'),
        REGIONS.removesuffix("]}"),
        REGIONS[len('{"regions": ') :],
        REGIONS + REGIONS,
        REGIONS.replace('{"regions"', '{"description": "a table", "regions"'),
    ],
)
def test_regions_in_any_dress(text: str) -> None:
    assert read_regions(text, 4, SIZE) == (CUP, PLATE)


def test_thousandths_are_no_pixels() -> None:
    text = '[{"name": "cup", "box": [250, 500, 750, 1000], "salience": 0.9}]'
    assert read_regions(text, 4, SIZE) == (CUP,)
    assert read_regions(text, 4, (1_000, 1_000)) == (CUP,)


@pytest.mark.parametrize(
    "box", ["[]", "[0.1, 0.2]", "[2e9, 1e999, 3, 4]", '"left"', "null", "7", "{}", "[0.5,0,0.5,1]"]
)
def test_a_region_without_a_place_is_the_whole_image(box: str) -> None:
    (found,) = read_regions(f'[{{"name": "cup", "box": {box}}}]', 4, SIZE)
    assert found.name == "cup"
    assert found.box == WHOLE_IMAGE


def test_few_regions_and_the_most_salient() -> None:
    assert read_regions(REGIONS, 1, SIZE) == (CUP,)
    names = read_regions('{"regions": ["cup", "plate", "spoon"]}', 2, SIZE)
    assert [region.name for region in names] == ["cup", "plate"]
    by_name = read_regions('{"cup": [0.25, 0.5, 0.75, 1.0]}', 4, SIZE)
    assert [(region.name, region.box) for region in by_name] == [("cup", CUP.box)]
    echo = '{"regions": [{"name": "...", "box": [0.0, 0.0, 1.0, 1.0], "salience": 1.0}]}'
    assert read_regions(echo, 4, SIZE) == (NamedRegion("unnamed", WHOLE_IMAGE, 1.0),)
    assert read_regions("I see [nothing of the kind] here.", 4, SIZE) == ()


@pytest.mark.parametrize(
    ("text", "answer", "level"),
    [
        ('{"answer": "red", "difficulty": "EASY"}', "red", "EASY"),
        ('{"answer": 4, "difficulty": "hard."}', "4", "HARD"),
        ('{"answer": true, "difficulty": ["medium"]}', "yes", "MEDIUM"),
        ('{"answer": ["red", "blue"], "difficulty": "EASY, MEDIUM or HARD"}', "red, blue", None),
        ("Difficulty: EASY\n<answer>red</answer>", "red", "EASY"),
        ('{"difficulty": "EASY", "answer": "re', "re", "EASY"),
        ("no idea", "", None),
        ('{"answer": "...", "difficulty": "EASY, MEDIUM or HARD"}', "", None),
    ],
)
def test_drafts(text: str, answer: str, level: str | None) -> None:
    found = read_draft(text)
    assert (found.answer, found.level) == (answer, level)


@pytest.mark.parametrize(
    "text",
    [
        "espresso brewing",
        '"espresso brewing"',
        "```\nespresso brewing\n```",
        "Query: espresso brewing",
        "Here is the search query:\n**espresso brewing**\nIt names the drink.",
        '{"query": "espresso brewing"}',
        "<think>coffee?</think>\n\nespresso   brewing",
        "coffee it is</think>espresso brewing",
    ],
)
def test_a_query_in_any_dress(text: str) -> None:
    assert read_query(text, WORDS) == "espresso brewing"


def test_a_query_has_few_words() -> None:
    assert read_query("word " * 40, WORDS).split() == ["word"] * WORDS


@pytest.mark.parametrize(
    "text",
    [
        '{"queries": [{"region": 1, "query": "a b"}, {"region": 3, "query": "c"}]}',
        '{"queries": [{"region": 3, "query": "c"}, {"region": "1", "query": "a b"}]}',
        '{"1": "a b", "3": "c"}',
        "1. a b\n3. c",
        '["a b", "", "c"]',
        "Region 1: a b\nRegion 3: 'c'",
    ],
)
def test_queries_of_several_regions(text: str) -> None:
    assert read_queries(text, 3, WORDS) == ("a b", "", "c")


@pytest.mark.parametrize(
    "text",
    [
        '{"scores": [{"passage": 1, "relevance": 0.8}, {"passage": 3, "relevance": 0}]}',
        '{"scores": [{"passage": "[1]", "relevance": "80%"}, {"passage": 3, "relevance": -2}]}',
        '{"scores": {"1": 0.8, "2": "unclear", "3": false}}',
        '{"1": "8/10", "3": 0.0}',
        "[0.8, null, 0]",
        "1: 0.8\n3: 0",
        "[1] .8\n[3] 0.0",
        '{"scores": [{"relevance": 0.8}, {"reason": "none"}, {"relevance": 0}]}',
        '{"scores": [{"passage": 1, "relevance": 0.8}, {"passage": 9, "relevance": 1},'
        ' {"passage": 3, "relevance": 0.0',
    ],
)
def test_relevance_of_each_passage(text: str) -> None:
    assert read_relevance(text, 3) == (0.8, None, 0.0)


def test_relevance_is_between_0_and_1() -> None:
    assert read_relevance('{"1": 7, "2": 1e999, "3": "NaN"}', 3) == (1.0, None, None)


@pytest.mark.parametrize(
    ("text", "answer", "tagged", "cited"),
    [
        (
            "<passages>1, 3</passages>\n<answer>under pressure</answer>",
            "under pressure",
            True,
            {0, 2},
        ),
        ("It says so [2].\n<answer>under pressure [2].</answer>", "under pressure", True, {1}),
        ("<passages></passages><answer>red</answer>", "red", True, set()),
        ("<passages>2, 7, 99999</passages> red", "red", False, {1}),
        ("Thinking.\nAnswer: red", "red", False, set()),
        ("<answer>red", "red", True, set()),
        ("<passages>2<answer>red</answer>", "red", True, {1}),
        ("<answer></answer>", "", True, set()),
        ("", "", False, set()),
    ],
)
def test_answers(text: str, answer: str, tagged: bool, cited: set[int]) -> None:
    found = read_answer(text, 3)
    assert (found.text, found.tagged, found.cited) == (answer, tagged, cited)


@given(st.floats(0, 1), st.floats(0, 1))
def test_relevance_survives_the_way_there_and_back(first: float, second: float) -> None:
    scores = [{"passage": 1, "relevance": first}, {"passage": 2, "relevance": second}]
    found = read_relevance(json.dumps({"scores": scores}), 2)
    assert all(
        read is not None and math.isclose(read, given)
        for read, given in zip(found, (first, second), strict=True)
    )
