"""What a record keeps of the way to an answer: what was read, seen and looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from skipqa.evaluation.records import make_record
from skipqa.tasks import Example
from skipqa.tasks.jsonl import JSONL

if TYPE_CHECKING:
    from skipqa.pipeline import Answer

EXAMPLE = Example(1, "a.png", "Why?", {"yes": 1.0})


def test_what_was_read_is_part_of_the_evidence(looked_up: Answer) -> None:
    record = make_record(EXAMPLE, looked_up, JSONL)
    assert record["read"]
    assert set(record["read"]) <= set(record["evidence"]) <= set(record["retrieved"])
    assert 1 <= len(record["concepts"]) <= len(looked_up.state.regions)
    assert record.keys().isdisjoint({"seen", "box_kept"}), "nothing is known of the thing"


def test_the_thing_is_seen_if_a_region_has_its_name(looked_up: Answer) -> None:
    shown = make_record(EXAMPLE, looked_up, JSONL)["concepts"][0]
    for name, seen in ((shown, True), (shown.upper(), True), ("quux", False)):
        assert make_record(replace(EXAMPLE, name=name), looked_up, JSONL)["seen"] is seen


@pytest.mark.parametrize("inside", [True, False])
def test_how_much_of_the_box_was_kept(looked_up: Answer, inside: bool) -> None:
    """The box of one token that was kept, or of one that was not."""
    kept = looked_up.state.kept
    grid = kept.tokens.grid
    positions = set(kept.positions.tolist())
    token = next(p for p in range(grid * grid) if (p in positions) is inside)
    left, top = token % grid / grid, token // grid / grid
    box = (left, top, left + 1 / grid, top + 1 / grid)
    record = make_record(replace(EXAMPLE, box=box), looked_up, JSONL)
    assert record["box_kept"] == float(inside)


def test_a_drafted_answer_looked_at_nothing(looked_up: Answer) -> None:
    state = looked_up.state.add(regions=None, kept=None, retrieved=None, verified=None, fused=None)
    answer = replace(state.answer, read=())
    drafted = replace(looked_up, state=state.add(answer=answer), route="draft")
    record = make_record(replace(EXAMPLE, name="tea"), drafted, JSONL)
    assert record["read"] == []
    assert record.keys().isdisjoint({"concepts", "seen", "box_kept"})
