"""hop asks again about what passages name, over the real backbone and a handful of passages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from synthetic import question, retrieved_passage, run, state, verified

from skipqa.answer import Answer
from skipqa.config import HopConfig
from skipqa.knowledge import Library
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.nn.bridge import BridgeConfig, BridgePointer
from skipqa.pipeline import Pipeline
from skipqa.stages import hop
from skipqa.stages.decode import read_order
from skipqa.stages.hop import AskAgain, CapitalisedFinder, TrainedFinder, capitalised
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.text_only import text_only
from skipqa.trace import Trace
from skipqa.types import Bridge, Budget, Fused

QUESTION = "What is the capital of the country where this drink comes from?"
NESTED = "the country where this drink comes from"
ANEW = "What is the capital of Italy?"
PASSAGES = {
    "espresso": "espresso is a strong coffee from Italy",
    "coffee": "coffee is a drink made from roasted beans",
    "capital": "Italy, Capital: name: Rome; etymology: by tradition named after Romulus",
    "tea": "tea is a drink made with leaves in a pot",
    "peak": "Japan, Elevation: highest point: Mount Fuji",
}


@pytest.fixture(scope="module")
def fused(
    pipeline: Pipeline, photo: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Pipeline, State]:
    """A pipeline over these passages, and a question up to `fuse`, with its nested words known."""
    folder = tmp_path_factory.mktemp("hop")
    rows = [{"id": id, "title": id, "text": text} for id, text in PASSAGES.items()]
    (folder / "passages.jsonl").write_text("\n".join(map(json.dumps, rows)))
    build(folder / "index", [JsonLines(folder / "passages.jsonl")], LexicalEncoder.default())
    # What the image shows counts most, so that the first round is about the drink
    here = pipeline.with_library(Library.open([folder / "index"])).with_config(
        budget={"passages": 2}, retrieve={"question_weight": 0.05}
    )
    found = here.run(State(photo, QUESTION), stop="fuse")
    start = QUESTION.index(NESTED)
    asked = replace(found.question, nested=(start, start + len(NESTED)))
    return here, found.add(question=asked, budget=replace(found.budget, rounds=2))


def ids(found: State) -> list[str]:
    return [passage.passage.id.rpartition(":")[2] for passage in found.verified.passages]


def test_one_round_leaves_the_state_as_it_is(fused: tuple[Pipeline, State]) -> None:
    here, entering = fused
    entering = entering.add(budget=replace(entering.budget, rounds=1))
    leaving, record = run(here.stages["hop"], entering)
    assert leaving is entering
    assert (record.flops, record.why) == (0, "one round")


def test_asks_anew_and_keeps_what_both_rounds_found(fused: tuple[Pipeline, State]) -> None:
    here, entering = fused
    leaving, record = run(here.stages["hop"], entering)
    assert leaving.question.text == ANEW
    assert [one.bridge.name for one in leaving.hops] == ["Italy"]
    before = len(entering.verified.passages)
    assert leaving.verified.passages[:before] == entering.verified.passages
    added = leaving.verified.passages[before:]
    assert "capital" in ids(leaving)[before:]
    assert {passage.round for passage in added} == {2}
    bridge = leaving.hops[0].bridge.passage
    assert ids(leaving)[bridge] == "espresso"
    assert {passage.region for passage in added} == {entering.verified.passages[bridge].region}
    assert leaving.retrieved.passages[: len(entering.retrieved.passages)] == (
        entering.retrieved.passages
    )
    rows = [passage.row for passage in leaving.retrieved.passages]
    assert len(rows) == len(set(rows))
    assert record.flops > 0
    assert record.kept == len(added)
    assert record.why == f"round 2: {ANEW!r}"
    lengths = {len(leaving.verified.passages), len(leaving.verified.scores)}
    lengths |= {len(leaving.verified.token_states), len(leaving.verified.embeddings)}
    assert lengths == {leaving.fused.edges.shape[1]} == {len(leaving.verified.characters)}


def test_a_token_reaches_the_second_round_by_the_passage_that_led_there(
    fused: tuple[Pipeline, State],
) -> None:
    here, entering = fused
    leaving, _ = run(here.stages["hop"], entering)
    before, bridge = entering.fused.edges.shape[1], leaving.hops[0].bridge.passage
    assert torch.equal(leaving.fused.edges[:, :before], entering.fused.edges)
    for column in leaving.fused.edges[:, before:].T:
        assert torch.equal(column, entering.fused.edges[:, bridge])
    read = read_order(leaving.verified, leaving.fused)
    assert all(leaving.verified.passages[j].round == 2 for j in read)
    assert read


def test_the_answer_is_read_from_the_second_round(fused: tuple[Pipeline, State]) -> None:
    here, entering = fused
    final = here.run(entering, start="hop")
    assert f"Question: {ANEW}" in final.prompt
    assert "Rome" in final.prompt


class Nothing:
    def __call__(self, state: State, places: Sequence[int]) -> tuple[Bridge | None, int]:
        return None, 5


def test_no_bridge_ends_the_rounds_and_is_said(fused: tuple[Pipeline, State]) -> None:
    here, entering = fused
    leaving, record = run(AskAgain(here.parts, Nothing()), entering)
    assert leaving is entering
    assert (record.flops, record.why) == (5, "no passage of round 1 names what to ask about")


def rounds(here: Pipeline, number: int) -> Parts:
    return here.with_config(budget={"rounds": number}).parts


def test_as_needed_ends_where_the_question_names_everything(
    fused: tuple[Pipeline, State],
) -> None:
    """A fixed H goes on instead, until nothing new is found."""
    here, entering = fused
    entering = entering.add(budget=replace(entering.budget, rounds=3))
    needed, _ = run(AskAgain(rounds(here, 0), CapitalisedFinder()), entering)
    assert len(needed.hops) == 1
    fixed, record = run(AskAgain(rounds(here, 3), CapitalisedFinder()), entering)
    assert fixed.hops[:1] == needed.hops
    assert len(fixed.hops) == 2 or record.why


def test_nothing_nested_needs_no_further_round(fused: tuple[Pipeline, State]) -> None:
    here, entering = fused
    plain = entering.add(question=replace(entering.question, nested=None))
    leaving, _ = run(AskAgain(rounds(here, 0), CapitalisedFinder()), plain)
    assert leaving is plain


class TestBudget:
    def test_rounds_follow_from_the_question(self, fused: tuple[Pipeline, State]) -> None:
        here, entering = fused
        set_budget = here.stages["budget"]
        assert run(set_budget, entering)[0].budget.rounds == 3
        plain = entering.add(question=replace(entering.question, nested=None))
        assert run(set_budget, plain)[0].budget.rounds == 1
        fixed = here.with_config(budget={"rounds": 2}).stages["budget"]
        assert run(fixed, plain)[0].budget.rounds == 2
        closed = here.with_config(budget={"rounds": 2, "passages": 0}).stages["budget"]
        assert run(closed, entering)[0].budget.rounds == 1

    def test_without_an_image_there_is_one(self, pipeline: Pipeline) -> None:
        asked = text_only(pipeline).run(State(None, QUESTION), stop="budget")
        assert asked.budget.rounds == 1


class TestRule:
    @pytest.mark.parametrize(
        ("text", "known", "name"),
        [
            ("The Ragdoll is a cat breed from the United States.", "Ragdoll", "United States"),
            ("Breeders developed the pug, a dog, in China.", "pug", "China"),
            ("The home of anthurium is Colombia.", "anthurium", "Colombia"),
            ("a cat from the Isle of Man, with no tail", "manx cat", "Isle of Man"),
            ("tea is a drink", "tea", None),
            ("Italy", "What is the capital of Italy?", None),
            ("", "", None),
        ],
    )
    def test_the_last_name_that_is_news(self, text: str, known: str, name: str | None) -> None:
        assert capitalised(text, known) == name


def told(*texts: str, mass: Sequence[float]) -> State:
    """Passages of these texts, a token per word between two that are none."""
    lengths = [len(text.split()) + 2 for text in texts]
    found = verified(lengths, seed=1)
    characters = []
    for text in texts:
        places, at = [(0, 0)], 0
        for word in text.split():
            start = text.index(word, at)
            at = start + len(word)
            places.append((start, at))
        characters.append((*places, (0, 0)))
    passages = tuple(retrieved_passage(n, text) for n, text in enumerate(texts))
    found = replace(
        found, passages=passages, scores=(0.5,) * len(texts), characters=tuple(characters)
    )
    edges = torch.ones(1, len(texts), dtype=torch.bool)
    return state(
        question=question(),
        verified=found,
        fused=Fused(torch.zeros(1, 12), edges, tuple(mass)),
        budget=Budget(1, 1, rounds=2),
    )


class PointsAt(BridgePointer):
    """At the token of one number, with some probability."""

    def __init__(self, place: int, prob: float) -> None:
        super().__init__(BridgeConfig(12, 2))
        self.place, self.prob = place, prob

    def forward(
        self, asked_Bd: torch.Tensor, states_BLd: torch.Tensor, there_BL: torch.Tensor
    ) -> torch.Tensor:
        log_prob = torch.full((1, 2, states_BLd.shape[1]), -20.0)
        log_prob[:, :, self.place] = torch.tensor(self.prob).log() / 2
        return log_prob


class TestTrainedFinder:
    def test_the_best_passage_by_worth(self, pipeline: Pipeline) -> None:
        entering = told("from Norway", "from Chile", mass=(0.2, 0.8))
        finder = TrainedFinder(PointsAt(2, 0.9), pipeline.backbone, HopConfig().min_prob)
        found, flops = finder(entering, [0, 1])
        assert found is not None
        assert (found.name, found.passage) == ("Chile", 1)
        assert found.prob == pytest.approx(0.9)
        assert flops > 0

    def test_one_that_is_hardly_probable_is_none(self, pipeline: Pipeline) -> None:
        entering = told("from Norway", mass=(1.0,))
        assert TrainedFinder(PointsAt(2, 0.1), pipeline.backbone, 0.3)(entering, [0])[0] is None
        assert TrainedFinder(PointsAt(0, 0.9), pipeline.backbone, 0.3)(entering, [0])[0] is None

    def test_is_built_where_there_is_a_pointer(self, pipeline: Pipeline) -> None:
        assert isinstance(hop.build(pipeline.parts).finder, CapitalisedFinder)
        pointer = BridgePointer(BridgeConfig())
        assert isinstance(
            hop.build(pipeline.with_components(bridge=pointer).parts).finder, TrainedFinder
        )


def test_the_outline_says_what_was_asked_in_which_round(fused: tuple[Pipeline, State]) -> None:
    here, entering = fused
    final = here.run(entering, start="hop")
    outline = Answer(final, "full", Trace(), here.parts).outline()
    assert outline["asked_as"] == ANEW
    (one,) = outline["hops"]
    assert (one["round"], one["bridge"], one["asked"]) == (2, "Italy", ANEW)
    assert outline["passages"][one["passage"] - 1]["title"] == "espresso"
    assert {passage["round"] for passage in outline["passages"]} == {1, 2}
    evidence = Answer(final, "full", Trace(), here.parts).evidence
    assert [one.round for one in evidence] == [p.round for p in final.verified.passages]


@pytest.mark.parametrize(
    ("question", "nested", "steps"),
    [
        ("What is the capital of the country of this dog?", "the country of this dog", True),
        ("What is the country of origin of this cat?", "the country of origin of this cat", False),
        ("What is the capital of this country?", "", False),
    ],
)
def test_a_question_for_the_bridge_itself_has_one_step(
    pipeline: Pipeline, question: str, nested: str, steps: bool
) -> None:
    plain, _ = pipeline.stages["encode"].question(question)  # type: ignore[attr-defined]
    start = question.index(nested)
    place = (start, start + len(nested)) if nested else None
    assert replace(plain, nested=place).has_steps is steps
