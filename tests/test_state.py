"""The state of a question: nothing is read before it is there, and nothing is overwritten."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.pipeline import NAMES
from skipqa.state import FilledBy, NotRun, State
from skipqa.types import Budget, Decoded, Draft

GIVEN = {"source", "text", "fast_path"}
FILLED_BY = {
    "image": "encode",
    "question": "encode",
    "low_res": "encode",
    "draft": "draft",
    "budget": "budget",
    "tokens": "look",
    "kept": "prune",
    "regions": "regions",
    "read_text": "read_text",
    "retrieved": "retrieve",
    "consulted": "consult",
    "verified": "verify",
    "fused": "fuse",
    "hops": "hop",
    "prompt": "decode",
    "answer": "decode",
}
EMPTY = State("nowhere.png", "What is this?")


def test_every_field_is_given_or_filled_by_a_stage() -> None:
    assert {field.name for field in dataclasses.fields(State)} == GIVEN | FILLED_BY.keys()
    descriptors = {name: d for name, d in vars(State).items() if isinstance(d, FilledBy)}
    assert {name: d.stage for name, d in descriptors.items()} == FILLED_BY
    assert set(FILLED_BY.values()) == set(NAMES) - {"zoom"}, "zoom replaces what others filled"


@pytest.mark.parametrize(("field", "stage"), FILLED_BY.items())
def test_a_field_read_too_early_says_which_stage_has_not_run(field: str, stage: str) -> None:
    assert field not in EMPTY
    with pytest.raises(NotRun, match=f"^{stage} has not run$"):
        getattr(EMPTY, field)


def test_what_was_given_can_be_read_at_once() -> None:
    assert (EMPTY.source, EMPTY.text) == ("nowhere.png", "What is this?")
    assert "source" in EMPTY
    assert "text" in EMPTY


def test_adding_leaves_the_old_state_as_it_was() -> None:
    budget, other = Budget(3, 2), Budget(5, 4)
    first = EMPTY.add(budget=budget)
    second = first.add(budget=other, draft=Draft("tea", 0.5, ""))
    assert "budget" not in EMPTY
    assert first.budget is budget
    assert "draft" not in first
    assert second.budget is other
    assert second.draft.answer == "tea"
    assert (second.source, second.text) == (EMPTY.source, EMPTY.text)


@given(st.lists(st.sampled_from(sorted(FILLED_BY))))
def test_exactly_what_was_added_is_there(fields: list[str]) -> None:
    values: dict[str, Any] = {field: object() for field in fields}
    state = EMPTY
    for field in fields:
        state = state.add(**{field: values[field]})
    assert {field for field in FILLED_BY if field in state} == set(fields)
    assert all(getattr(state, field) is value for field, value in values.items())


def test_empty_is_not_missing() -> None:
    state = EMPTY.add(regions=(), prompt="", answer=Decoded(""))
    assert state.regions == ()
    assert state.prompt == ""
    assert "regions" in state


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="tokenz"):
        EMPTY.add(tokenz=1)
    with pytest.raises(KeyError):
        assert "tokenz" in EMPTY
    with pytest.raises(AttributeError):
        EMPTY.tokenz  # type: ignore[attr-defined]  # noqa: B018


def test_a_state_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EMPTY.text = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        EMPTY.budget = Budget(1, 1)  # type: ignore[misc, assignment]
    assert "budget" not in EMPTY


def test_it_prints_what_is_known() -> None:
    assert repr(EMPTY.add(budget=Budget(1, 1))) == "State('What is this?': source, text, budget)"
