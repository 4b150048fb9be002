"""The concept prior learns what questions are about, and what is asked about at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from skipqa.backbones.concepts import Concept
from skipqa.backbones.networks.bert import Bert, BertConfig
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.training.retrieval import concept_prior
from skipqa.training.retrieval.about import FVQA, OKVQA, POCKET_KB, SCENES, SOURCES, About
from skipqa.training.retrieval.concept_prior import Asked, ConceptPriorTraining, nameable
from skipqa.training.run import Run

TINY = BertConfig(width=24, layers=1, heads=2, ffn=32, positions=64)
SETTINGS = ConceptPriorTraining(steps=120, batch=32, lr=2e-2, okvqa_times=1, scenes_times=1)


def asked() -> Asked:
    """Two kinds of questions, two kinds of things; and questions about a scene."""
    draw = torch.Generator().manual_seed(0)
    kinds = torch.nn.functional.normalize(torch.randn(3, 16, generator=draw), dim=-1)
    things = kinds[[0] * 10 + [1] * 10] + 0.1 * torch.randn(20, 16, generator=draw)
    number = torch.arange(60)
    about = torch.zeros(60, 20, dtype=torch.bool)
    about[number[:40], number[:40] % 20] = True
    kind = torch.where(number < 40, number % 20 // 10, 2)
    held_out = (number < 40) & (number % 5 == 0) | (number > 55)
    reworded = held_out & (number % 2 == 0)
    source = torch.where(number < 40, SOURCES.index(POCKET_KB), SOURCES.index(SCENES))
    return Asked(kinds[kind], things, about, source, held_out, reworded)


def test_a_question_is_about_things_of_its_kind(tmp_path: Path) -> None:
    module, metrics = concept_prior.train(asked(), SETTINGS, Run(tmp_path))
    for words in ("", ", held-out wordings"):
        # at most log 2: half of all things are of a kind
        assert metrics[f"right, pocket-kb{words}"] > 0.4
        assert metrics[f"information, pocket-kb{words}"] > 0.3
        assert metrics[f"information, scenes{words}"] < 0.1
    again, _ = concept_prior.train(asked(), SETTINGS, Run(tmp_path / "again"))
    for one, other in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_threshold_tells_particular_questions_from_others(tmp_path: Path) -> None:
    made = asked()
    module, metrics = concept_prior.train(made, SETTINGS, Run(tmp_path))
    least = concept_prior.min_information(module, made)
    assert least is not None
    assert metrics["information, scenes"] < least < metrics["information, pocket-kb"]
    only = dataclasses.replace(made, held_out=made.held_out & made.of(POCKET_KB))
    assert concept_prior.min_information(module, only) is None


def test_what_is_asked_about_more_has_a_higher_base_rate(tmp_path: Path) -> None:
    """Nine questions in ten are about the first kind; a question that says nothing has that."""
    made = asked()
    first = made.about[:, :10].any(1) | ~made.about.any(1) | (torch.arange(60) % 10 == 1)
    some = Asked(
        **{
            field.name: getattr(made, field.name)[first]
            for field in dataclasses.fields(made)
            if field.name != "concepts"
        },
        concepts=made.concepts,
    )
    module, _ = concept_prior.train(some, SETTINGS, Run(tmp_path))
    with torch.no_grad():
        base = module.base_rates(made.concepts).softmax(-1)
        scene = module(made.questions[50], made.concepts).softmax(-1)
    assert base[:10].sum() > 0.7
    torch.testing.assert_close(scene, base, atol=0.1, rtol=0)
    prior = module.prior(made.questions[50], module.of_concept(made.concepts))
    assert prior.information < 0.1
    torch.testing.assert_close(prior.weights, torch.ones(20), atol=0.3, rtol=0)


@pytest.fixture
def text() -> Bert:
    torch.manual_seed(0)
    return Bert(TINY).eval()


def test_questions_find_their_concepts_by_name(text: Bert) -> None:
    questions = [
        About("Where do these animals live?", "bears", OKVQA, False),
        About("What is played here?", "tennis", OKVQA, False),
        About("Which object can fly?", "aeroplane", FVQA, True),
        About("What breed is it?", "pug", POCKET_KB, False),
        About("Is it raining?", "", SCENES, False),
    ]
    classes = [Concept("n1", ("brown bear", "bruin"), "", ()), Concept("n2", ("siamese",), "", ())]
    common = [
        Concept("n3", ("bear",), "", ()),
        Concept("n4", ("airplane", "aeroplane", "plane"), "", ()),
    ]
    known = nameable(classes, common, questions, frozenset({"siamese"}))
    assert [one.said for one in known] == ["brown bear, bruin", "bear", "airplane", "pug"]
    tokenizer = LexicalEncoder.default().tokenizer
    found, left_out = concept_prior.prepare(questions, known, text, tokenizer)
    assert left_out == {OKVQA: 1}  # tennis
    assert found.about.nonzero().tolist() == [[0, 1], [1, 2], [2, 3]]
    assert found.questions.shape == (4, TINY.width)
    assert found.concepts.shape == (4, TINY.width)
    assert found.held_out.tolist() == [False, True, False, False]
