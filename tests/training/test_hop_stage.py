"""Two-step questions, the passages that name their bridges, and the stage that learns from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import write_lines

from skipqa.components import bundled, load
from skipqa.errors import UserError
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.nn.bridge import BridgeConfig, BridgePointer
from skipqa.training.hop import questions
from skipqa.training.hop.passages import Encoded, PointedAt, places
from skipqa.training.hop.stage import (
    STAGE,
    HopSettings,
    PointerTraining,
    loss_of,
    quality,
    target_tokens,
)
from skipqa.training.retrieval.spans import SpanTraining
from skipqa.training.run import Run
from skipqa.training.stage import Inputs

BREEDS = {"pug": "China", "samoyed": "Russia", "saluki": "Iran", "kelpie": "Australia"}
QUESTION = "What is the capital of the country where this dog breed comes from?"
ORIGIN = "Which country does this dog breed come from?"


def row(number: int, breed: str, **more: Any) -> dict[str, Any]:
    return {
        "question_id": f"train-{number}",
        "image": f"{number}.webp",
        "question": ORIGIN,
        "answers": {BREEDS[breed].lower(): 1.0},
        "category": "dog",
        "relation": "origin",
        "entity": f"dog:{breed}",
        "name": breed,
        "gold": [f"passages:dog:{breed}:origin"],
        **more,
    }


def rows() -> list[dict[str, Any]]:
    found = [row(number, breed) for number, breed in enumerate(BREEDS)]
    for breed, country in BREEDS.items():
        gold = [f"passages:dog:{breed}:origin"]
        step = {"question": QUESTION, "relation": "capital", "bridge": country.lower()}
        found.append(row(len(found), breed, **step, hops=[gold, ["factbook:capital"]]))
    scene = {"category": "scene", "relation": "presence", "question": "Is there a dog here?"}
    return [*found, row(99, "pug", **scene)]


def test_made_questions_have_the_words_that_stand_for_the_bridge() -> None:
    for question, step in questions.asked_in_two_steps(rows(), seed=1, made=3):
        assert question.span is not None
        assert question.text[slice(*question.span)].lower() == step.phrase.lower()
        assert step.names == (BREEDS[step.name].lower(),)
    own = [q for q, _ in questions.asked_in_two_steps(rows(), 1, made=0)]
    assert {q.text for q in own} == {QUESTION}
    assert {q.text[slice(*(q.span or ()))] for q in own} == {
        "the country where this dog breed comes from"
    }


def test_one_step_has_none_and_a_flag_names_its_country() -> None:
    flag = row(5, "pug", category="country", question="What is the capital of this nation?")
    flag["relation"] = "capital"
    found = list(questions.asked_in_one_step([*rows(), flag]))
    reworded = list(questions.reworded_in_one_step([*rows(), flag], seed=1, made=2))
    assert len(reworded) > 2
    assert all(one.span is None for one in [*found, *reworded])
    assert {ORIGIN, flag["question"]} < {one.text for one in found}
    assert QUESTION not in {one.text for one in found}


def test_some_are_different_and_evenly_spread() -> None:
    assert questions.some([1, 1, 2, 3, 4, 5, 6, 6], 3) == [1, 3, 5]
    assert questions.some([], 3) == []


@pytest.mark.parametrize(
    ("text", "names", "found"),
    [
        ("from the United States.", ["united states"], ["United States"]),
        ("a hog from Hogland", ["hog"], ["hog"]),
        ("South Africa, in Africa", ["africa", "south africa"], ["South Africa", "Africa"]),
        ("nothing", ["china"], []),
    ],
)
def test_places_of_names(text: str, names: list[str], found: list[str]) -> None:
    assert [text[slice(*place)] for place in places(text, names)] == found


def encoded(text: str, seed: int) -> Encoded:
    """A token per word between two that are none, with random states."""
    characters, at = [(0, 0)], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        characters.append((start, at))
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(len(characters) + 1, 384, generator=generator)
    return Encoded(states.mean(0), states, (*characters, (0, 0)))


def fifty() -> tuple[list[PointedAt], dict[str, Encoded]]:
    texts = [f"breed {n} comes from New Land{n} it says" for n in range(40)]
    texts += [f"breed {n} is small" for n in range(40, 50)]
    examples = [
        PointedAt("its country", text, "", tuple(places(text, [f"new land{n}"])), held_out=True)
        for n, text in enumerate(texts)
    ]
    states = {text: encoded(text, n) for n, text in enumerate([*texts, "its country"])}
    return examples, states


def test_targets_are_the_tokens_of_the_name_or_none() -> None:
    examples, states = fifty()
    assert target_tokens(examples[3], states[examples[3].text]) == [(5, 6)]
    assert target_tokens(examples[45], states[examples[45].text]) == [(0, 0)]


def test_the_pointer_learns_fifty_passages_by_heart() -> None:
    examples, states = fifty()
    torch.manual_seed(0)
    model = BridgePointer(BridgeConfig())
    loss = loss_of(examples, states, PointerTraining(batch=50), model, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(80):
        optimiser.zero_grad()
        loss(step).backward()
        optimiser.step()
    measured = quality(model, examples, states)
    assert (measured["found"], measured["none"]) == (1.0, 1.0)


@pytest.fixture
def pocket_kb(tmp_path: Path) -> Path:
    folder = tmp_path / "pocket-kb"
    folder.mkdir()
    write_lines(folder / "train.jsonl", rows())
    (folder / "unseen.json").write_text(json.dumps([{"entity": "dog:saluki", "names": ["x"]}]))
    (folder / "held_out.json").write_text(json.dumps({"coco": [], "entities": []}))
    passages = [
        {"id": f"dog:{breed}:origin", "title": breed, "text": f"The {breed} is from {country}."}
        for breed, country in BREEDS.items()
    ]
    write_lines(folder / "passages.jsonl", passages)
    build(folder / "index", [JsonLines(folder / "passages.jsonl")], LexicalEncoder.default())
    return folder


SMALL = HopSettings(SpanTraining(steps=20, batch=8), PointerTraining(steps=20, batch=8), made=1)


def test_the_stage_leaves_a_bridge_and_is_trained_once(
    home: Path, pocket_kb: Path, tmp_path: Path
) -> None:
    begun = bundled("pocket")
    assert begun is not None
    before = (begun / "bridge.safetensors").read_bytes()
    inputs = Inputs(data=tmp_path, pocket_kb=pocket_kb, index=(pocket_kb / "index",))
    run = Run(tmp_path / "run")
    metrics = STAGE.run(inputs, SMALL, run)["bridge"]
    assert (begun / "bridge.safetensors").read_bytes() == before, "it was linked, not copied"
    assert {"ships", "steps", "nested", "pointer"} <= metrics.keys()
    trained = load(run.folder / "trained", preset="pocket")
    assert trained.bridge is not None
    shipped = (run.folder / "bridge.safetensors").read_bytes()
    assert (shipped != before) == metrics["ships"]
    written = (run.folder / "trained" / "bridge.safetensors").stat().st_mtime_ns
    assert STAGE.run(inputs, SMALL, run)["bridge"] == metrics
    assert (run.folder / "trained" / "bridge.safetensors").stat().st_mtime_ns == written


def test_unseen_entities_are_left_out(pocket_kb: Path) -> None:
    assert {one["entity"] for one in questions.read_rows(pocket_kb)} == {
        f"dog:{breed}" for breed in BREEDS if breed != "saluki"
    }


def test_nothing_to_learn_from(home: Path, pocket_kb: Path, tmp_path: Path) -> None:
    scenes = [one for one in rows() if one["category"] == "scene"]
    write_lines(pocket_kb / "train.jsonl", scenes)
    inputs = Inputs(data=tmp_path, pocket_kb=pocket_kb, index=(pocket_kb / "index",))
    with pytest.raises(UserError, match="Pocket-KB asks no question of two steps"):
        STAGE.run(inputs, SMALL, Run(tmp_path / "run"))
