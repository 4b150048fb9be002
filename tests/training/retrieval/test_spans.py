"""Which words stand for the thing: read from all data sets, and learned."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tiny_training import write_lines

from skipqa.backbones.networks.bert import Bert, BertConfig
from skipqa.data.held_out import is_held_out
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.training.retrieval import spans
from skipqa.training.retrieval.spans import FVQA, OKVQA, POCKET_KB, SCENES, Spanned, SpanTraining
from skipqa.training.run import Run


def words(one: Spanned) -> str:
    return one.text[slice(*one.span)] if one.span else ""


def test_peoples_spans(tmp_path: Path) -> None:
    asked = {1: "Where do These animals live?", 2: "What is it?", 3: "Is there more of this here?"}
    rows = [{"question_id": i, "image": f"{i}.webp", "question": q} for i, q in asked.items()]
    write_lines(tmp_path / "okvqa/train.jsonl", rows)
    named = {1: " these animals?", 2: "no such words", 3: "is"}
    write_lines(
        tmp_path / "okvqa/train_objects.jsonl",
        [{"question_id": i, "span": span, "object": "bear"} for i, span in named.items()],
    )
    fvqa = ["Which object in this image can fly?", "What colour is this?"]
    write_lines(tmp_path / "fvqa/train.jsonl", [{"image": "4.webp", "question": q} for q in fvqa])
    found = spans.read(tmp_path, None, 10, 0)
    assert [(one.source, words(one)) for one in found] == [
        (OKVQA, "These animals"),
        (OKVQA, "Is"),  # whole words: not in "this"
        (FVQA, "Which object in this image"),
    ]
    assert [one.held_out for one in found] == [is_held_out(f"{i}.webp") for i in (1, 3, 4)]


def test_pocket_kbs_own_phrases(tmp_path: Path) -> None:
    def row(question: str, category: str, relation: str, **more: object) -> dict[str, object]:
        named = {"entity": f"{category}:1", "category": category, "relation": relation}
        return {"question": question, **named, **more}

    rows = [
        row("How heavy is the dog on the left?", "dog", "weight", things=[1]),
        row("Can you see a bus here?", "scene", "presence"),
        *[row("What age in years can this dog breed reach?", "dog", "life")] * 3,
        row("What is the currency of the country with this flag?", "country", "currency"),
        row("How old does an unseen dog get?", "dog", "life") | {"entity": "dog:2"},
    ]
    write_lines(tmp_path / "train.jsonl", rows)
    unseen = [{"entity": "dog:2", "names": ["Pug"], "passages": []}]
    (tmp_path / "unseen.json").write_text(json.dumps(unseen))
    found = list(spans.from_pocket_kb(tmp_path, seed=1))
    assert words(found[0]) == "the dog on the left"
    assert found[1].source == SCENES
    assert found[1].span is None
    assert all(one.span for one in found if one.source == POCKET_KB)
    assert len(found) >= 4
    assert not any("unseen" in one.text for one in found)


def test_words_that_stand_for_the_thing_are_learned(tmp_path: Path) -> None:
    things = ("this animal", "that bird", "it")
    verbs = ("live", "sleep", "eat", "come from", "go", "hide")
    asked = [
        Spanned(f"where does {thing} {verb}?", (11, 11 + len(thing)), OKVQA, verb == "hide")
        for thing in things
        for verb in verbs
    ]
    asked += [Spanned("is the sun out?", None, SCENES, i > 2) for i in range(4)]
    torch.manual_seed(0)
    text = Bert(BertConfig(width=24, layers=1, heads=2, ffn=32, positions=64)).eval()
    tokens = spans.prepare(asked, text, LexicalEncoder.default().tokenizer)
    assert tokens.inside.sum() > 0
    settings = SpanTraining(steps=150, batch=16, lr=5e-2, okvqa_times=1)
    head, metrics = spans.train(tokens, settings, Run(tmp_path))
    assert metrics[OKVQA]["f1"] > 0.8
    assert metrics[SCENES]["exact"] == 1.0
    again, _ = spans.train(tokens, settings, Run(tmp_path / "again"))
    assert torch.equal(head.inside.weight, again.inside.weight)
