"""A pipeline can be entered and left anywhere, and the full path may run next to the drafter."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from skipqa.errors import UserError
from skipqa.pipeline import NAMES, Pipeline
from skipqa.stages import budget, look
from skipqa.stages.stage import Parts, Stage
from skipqa.state import NotRun, State
from skipqa.trace import StageRecord, Stopped, Trace
from skipqa.types import Draft

QUESTION = "How is this drink brewed?"


def identical(one: Any, other: Any) -> bool:
    """Bit by bit, through values of any depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Image.Image):
        return one.tobytes() == other.tobytes()
    if isinstance(one, State):
        return identical(vars(one), vars(other))
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(identical(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    ("preset", "question"),
    [("pipeline", QUESTION), ("trained_pipeline", "What is in the cup?")],
)
def test_it_can_be_entered_and_left_anywhere(
    request: pytest.FixtureRequest, preset: str, question: str, photo: Path
) -> None:
    """One stage at a time, up to any stage or from any stage on: the same bit by bit.

    Two halves, each entered and left anywhere, and the whole: what the first leaves is what the
    second was entered with, so that any way through both is one of these after another.
    """
    few = {"decode": {"max_new_tokens": 3}, "budget": {"passages": 2}}
    system: Pipeline = request.getfixturevalue(preset).with_config(**few)
    whole, states = Trace(), [State(photo, question)]
    for name in NAMES:
        states.append(system.run(states[-1], start=name, stop=name, trace=whole))
    last, half = len(NAMES) - 1, NAMES.index("retrieve")
    ways = {(0, last)}
    for first, end in ((0, half), (half + 1, last)):
        ways |= {(first, n) for n in range(first, end)} | {(n, end) for n in range(first, end + 1)}
    for start, stop in sorted(ways):
        trace, before = Trace(), dict(vars(states[start]))
        left = system.run(states[start], start=NAMES[start], stop=NAMES[stop], trace=trace)
        assert identical(left, states[stop + 1]), (NAMES[start], NAMES[stop])
        assert vars(states[start]) == before, "a run never changes what entered it"
        assert [r.name for r in trace.stages] == list(NAMES[start : stop + 1])
        for record in trace.stages:
            assert replace(record, ms=0) == replace(whole[record.name], ms=0)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_stage_that_is_entered_too_early_says_what_has_not_run(
    pipeline: Pipeline, photo: Path, name: str
) -> None:
    with pytest.raises(NotRun, match=r"^\w+ has not run$") as error:
        pipeline.run(State(photo, QUESTION), start=name, stop=name)
    assert NAMES.index(str(error.value).split()[0]) < NAMES.index(name)


def test_verification_needs_retrieval(pipeline: Pipeline, photo: Path) -> None:
    before = pipeline.run(State(photo, QUESTION), stop="zoom")
    with pytest.raises(NotRun, match=r"^retrieve has not run$"):
        pipeline.run(before, start="verify")


def test_only_stages_of_the_flow_can_be_replaced(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="no stage 'polish'; there is encode, draft"):
        pipeline.with_stages(polish=budget.build)


def test_a_run_that_ends_before_it_starts_is_refused(pipeline: Pipeline) -> None:
    state = State("nowhere.png", "Why?")
    with pytest.raises(UserError, match="fuse comes after prune"):
        pipeline.run(state, start="fuse", stop="prune")
    with pytest.raises(UserError, match="did you mean prune"):
        pipeline.run(state, start="prun")


def test_a_replaced_stage_stays_with_other_settings(pipeline: Pipeline) -> None:
    class NoBudget:
        def __call__(self, state: State, record: StageRecord) -> State:
            raise NotImplementedError

    changed = pipeline.with_stages(budget=lambda parts: NoBudget())
    changed = changed.with_config(fuse={"beta": 1.0}).with_components(saliency=None)
    assert isinstance(changed.stages["budget"], NoBudget)
    assert not isinstance(pipeline.stages["budget"], NoBudget)


def test_a_run_that_was_stopped_ends_before_its_next_stage() -> None:
    trace = Trace()
    with trace.stage("budget"):
        trace.stop()
    with pytest.raises(Stopped), trace.stage("prune"):
        pass
    assert [record.name for record in trace.stages] == ["budget"]


class Unwell(Exception):
    pass


class Drafting:
    """draft: waits until the full path is under way, then accepts, passes on or fails."""

    def __init__(self, outcome: str, under_way: Event) -> None:
        self.outcome, self.under_way = outcome, under_way

    def __call__(self, state: State, record: StageRecord) -> State:
        assert self.under_way.wait(60)
        if self.outcome == "fails":
            raise Unwell
        return state.add(draft=Draft("tea", 1.0, "", accepted=self.outcome == "accepts"))


class Held:
    """look: tells that the full path is under way, and ends when it is let go."""

    def __init__(self, parts: Parts, under_way: Event, let_go: Event) -> None:
        self.stage, self.under_way, self.let_go = look.build(parts), under_way, let_go

    def __call__(self, state: State, record: StageRecord) -> State:
        self.under_way.set()
        assert self.let_go.wait(60)
        return self.stage(state, record)


class Noted:
    """A stage in whose place only its name is noted."""

    def __init__(self, name: str, ran: list[str]) -> None:
        self.name, self.ran = name, ran

    def __call__(self, state: State, record: StageRecord) -> State:
        self.ran.append(self.name)
        raise Unwell


class TestNextToTheDrafter:
    @pytest.fixture
    def let_go(self) -> Iterator[Event]:
        event = Event()
        yield event
        event.set()  # no thread is left waiting, whatever failed

    def system(self, pipeline: Pipeline, outcome: str, let_go: Event, ran: list[str]) -> Pipeline:
        under_way = Event()

        def draft(parts: Parts) -> Stage:
            return Drafting(outcome, under_way)

        def held(parts: Parts) -> Stage:
            return Held(parts, under_way, let_go)

        def prune(parts: Parts) -> Stage:
            return Noted("prune", ran)

        parallel = pipeline.with_config(draft={"parallel": True})
        return parallel.with_stages(draft=draft, look=held, prune=prune)

    def wait_for_the_full_path(self) -> None:
        threads = [t for t in threading.enumerate() if t.name.startswith("full-path")]
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def test_an_accepted_draft_stops_the_full_path(self, pipeline: Pipeline, let_go: Event) -> None:
        ran: list[str] = []
        system = self.system(pipeline, "accepts", let_go, ran)
        answer = system.answer(Image.new("RGB", (8, 8)), QUESTION)
        assert (answer.text, answer.route) == ("tea", "draft")
        assert [record.name for record in answer.trace.stages] == ["encode", "draft"]
        let_go.set()
        self.wait_for_the_full_path()
        assert ran == []

    def test_a_failing_draft_is_raised_and_stops_the_full_path(
        self, pipeline: Pipeline, let_go: Event
    ) -> None:
        ran: list[str] = []
        system = self.system(pipeline, "fails", let_go, ran)
        with pytest.raises(Unwell):
            system.answer(Image.new("RGB", (8, 8)), QUESTION)
        let_go.set()
        self.wait_for_the_full_path()
        assert ran == []

    def test_a_failing_full_path_is_raised_where_it_is_needed(
        self, pipeline: Pipeline, let_go: Event
    ) -> None:
        ran: list[str] = []
        let_go.set()
        with pytest.raises(Unwell):
            self.system(pipeline, "passes on", let_go, ran).answer(
                Image.new("RGB", (8, 8)), QUESTION
            )
        assert ran == ["prune"]
        self.wait_for_the_full_path()

    def test_without_the_fast_path_nothing_runs_ahead(self, pipeline: Pipeline) -> None:
        names: list[str] = []

        class Named:
            def __init__(self, parts: Parts) -> None:
                self.stage = look.build(parts)

            def __call__(self, state: State, record: StageRecord) -> State:
                names.append(threading.current_thread().name)
                return self.stage(state, record)

        parallel = pipeline.with_config(draft={"parallel": True}, decode={"max_new_tokens": 1})
        parallel = parallel.with_stages(look=Named)
        image = Image.new("RGB", (8, 8))
        parallel.answer(image, QUESTION, fast_path=False)
        parallel.answer(image, QUESTION)
        assert names[0] == threading.current_thread().name
        assert names[1].startswith("full-path")
