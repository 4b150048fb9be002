"""Questions made from passages: the same ones each time, some held out, none of Pocket-KB's val."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from tiny_training import write_lines

from skipqa.training.queries import (
    Query,
    from_factbook,
    from_pocket_kb,
    from_wordnet,
    is_held_out,
)
from skipqa.types import Passage
from skipqa.wordnet import Synset

SYNSETS = {
    s.id: s
    for s in (
        Synset("n1", "noun", ("drink", "beverage"), "any liquid suitable for drinking", ()),
        *(
            Synset(
                f"n{i}",
                "noun",
                (f"brew {i}", f"tea {i}"),
                'hot liquid used for comfort, made from leaves; "a brew 7 at noon"',
                ("n1",),
            )
            for i in range(2, 60)
        ),
    )
}
PASSAGE = Passage(
    "factbook:kg:economy:exchange-rates",
    "Kyrgyzstan: Economy > Exchange rates",
    "Kyrgyzstan, Exchange rates: Currency: soms per US dollar; official rate: 87; note: old",
    "factbook",
)


def seeded(id: str) -> Random:
    return Random(f"7 {id}")


def test_a_definition_asks_for_its_word_without_saying_it() -> None:
    found = list(from_wordnet(SYNSETS, seeded))
    assert found == list(from_wordnet(SYNSETS, seeded))
    assert all(query.gold[0].startswith("wordnet:n") for query in found)
    alone = [query for query in found if not query.name]
    named = [query for query in found if query.name]
    assert alone
    assert named
    assert all("brew" not in query.text and "tea" not in query.text for query in alone)
    assert all(query.whole == f"{query.name}: {query.text}" for query in named)
    assert any("used for" in query.text for query in named)
    assert any("What kind of drink" in query.text for query in named)
    assert not any("noon" in query.text for query in found)  # examples are no definition


def test_a_field_is_asked_for_by_its_name_its_labels_and_what_it_says() -> None:
    texts = " ".join(
        query.text
        for seed in range(40)
        for query in from_factbook([PASSAGE], lambda id, seed=seed: Random(f"{seed} {id}"))  # type: ignore[misc]
    ).lower()
    for word in ("exchange rates", "official rate", "soms", "this flag"):
        assert word in texts
    assert "the note of" not in texts
    assert not list(from_factbook([PASSAGE], lambda _: None))


def test_only_training_questions_of_pocket_kb(tmp_path: Path) -> None:
    def row(entity: str, question: str, hops: list[list[str]]) -> dict[str, object]:
        return {"question": question, "name": "Pug", "entity": entity, "hops": hops}

    hops = [["p:1", "p:2"], ["q:1"]]
    rows = [row("dog:pug", "Whence?", hops), row("dog:pug", "Whence?", hops)]
    rows += [row("dog:pug", "What is it?", []), row("dog:other", "Whence?", hops)]
    write_lines(tmp_path / "train.jsonl", rows)
    write_lines(tmp_path / "val.jsonl", [row("dog:pug", "Never read", hops)])
    found = list(from_pocket_kb(tmp_path))
    assert found == [
        Query("Pug", "Whence?", ("p:1", "p:2"), "pocket-kb", is_held_out(entity))
        for entity in ("dog:pug", "dog:other")
    ]
    assert "Never read" not in json.dumps([query.text for query in found])


@pytest.mark.parametrize("kind", ["wordnet:n", "dog:"])
def test_about_a_tenth_is_held_out(kind: str) -> None:
    share = sum(is_held_out(f"{kind}{i}") for i in range(2_000)) / 2_000
    assert 0.07 < share < 0.13
