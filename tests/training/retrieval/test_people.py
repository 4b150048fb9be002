"""People's questions are labelled by what passages say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_training import write_lines

from skipqa.data.held_out import is_held_out
from skipqa.knowledge import Library
from skipqa.knowledge.index import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.training.retrieval import people
from skipqa.training.retrieval.people import FVQA, OKVQA, holds_any
from skipqa.training.retrieval.stored import Corpus, ExactSearch, Stored
from skipqa.types import Passage

TEXTS = {
    "bears": "Bears live in forests and eat salmon.",
    "zoo": "A bear at the zoo sleeps in winter.",
    "kite": "A kite has a tail.",
    "wind": "A kite needs wind.",
}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    rows = [{"id": id, "title": id, "text": text} for id, text in TEXTS.items()]
    write_lines(tmp_path / "facts.jsonl", rows)
    build(tmp_path / "index", [JsonLines(tmp_path / "facts.jsonl")], LexicalEncoder.default())
    return Corpus.of(Library.open([tmp_path / "index"]), torch.device("cpu"))


def write_questions(data: Path) -> None:
    rows = [
        {"question_id": 1, "image": "1.webp", "question": "Where do these live?",
         "answers": {"forest": 1.0, "zoo": 0.3}},
        {"question_id": 2, "image": "2.webp", "question": "Is it tame?", "answers": {"no": 1.0}},
        {"question_id": 3, "image": "3.webp", "question": "Where do these live?",
         "answers": {"mars": 1.0}},
        {"question_id": 4, "image": "4.webp", "question": "No object?", "answers": {"a": 1.0}},
    ]  # fmt: skip
    write_lines(data / "okvqa/train.jsonl", rows)
    objects = [{"question_id": i, "span": "these", "object": "Bear"} for i in (1, 2, 3)]
    write_lines(data / "okvqa/train_objects.jsonl", objects)
    facts = [
        {"image": "5.webp", "question": "Which object has a tail?", "answer": "Kite.",
         "fact": "A kite has a tail", "from": "image"},
        {"image": "6.webp", "question": "What does it need?", "answer": "wind",
         "fact": "a kite needs wind", "from": "kb"},
    ]  # fmt: skip
    write_lines(data / "fvqa/train.jsonl", facts)


def test_gold_passages_hold_an_answer_or_state_the_fact(tmp_path: Path, corpus: Corpus) -> None:
    write_questions(tmp_path / "data")
    asked = people.read(tmp_path / "data", None, frozenset())
    found, unanswered = people.label(asked, corpus, lambda *_: None)
    assert [(q.source, q.name, q.gold) for q in found] == [
        (OKVQA, "bear", ("facts:bears",)),
        (FVQA, "kite", ("facts:kite",)),
        (FVQA, "kite", ("facts:wind",)),
    ]
    assert unanswered == {OKVQA: 1, FVQA: 0}
    assert found[0].held_out == is_held_out("1.webp")
    assert people.read(tmp_path, None, frozenset()) == []


def test_unseen_things_and_photos_of_val_are_left_out(tmp_path: Path) -> None:
    write_questions(tmp_path / "data")
    (tmp_path / "held_out.json").write_text(json.dumps({"coco": ["1.webp"], "entities": []}))
    asked = people.read(tmp_path / "data", tmp_path, frozenset({"kite"}))
    assert [one.text for one in asked] == ["Where do these live?"]


@pytest.mark.parametrize(
    ("answer", "held"),
    [
        ("forest", True),
        ("salmon", True),
        ("eat salmon", True),
        ("live forest", False),
        ("est", False),
    ],
)
def test_an_answer_is_held_as_whole_words(answer: str, held: bool) -> None:
    passage = Passage("a", "bears", TEXTS["bears"], "s")
    assert holds_any([people._base_forms(answer)], passage) == held


def test_exact_scores_find_what_the_index_finds(corpus: Corpus) -> None:
    exact = ExactSearch(Stored.of(corpus.library))
    queries = [corpus.encoder.encode_terms(text) for text in ("bear in a forest", "kite", "moon")]
    assert exact(queries, 3) == corpus.search(queries, 3)
    assert list(corpus.find(["kite"], 1, lambda *_: None)) == [exact(queries, 1)[1]]
