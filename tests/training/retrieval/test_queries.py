"""Questions made from passages: the same ones each time, some held out, none of Pocket-KB's val."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tiny_training import write_lines

from skipqa.data.held_out import is_id_held_out
from skipqa.training.retrieval.queries import (
    Amounts,
    Unseen,
    from_factbook,
    from_fields,
    from_pocket_kb,
    from_wordnet,
    generate,
)
from skipqa.training.retrieval.query import ARTICLES, HELD_OUT_SOURCES, Query
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
    found = list(from_wordnet(SYNSETS, seeded, Unseen()))
    assert found == list(from_wordnet(SYNSETS, seeded, Unseen()))
    assert all(query.gold[0].startswith("wordnet:n") for query in found)
    alone = [query for query in found if not query.name]
    named = [query for query in found if query.name]
    assert alone
    assert named
    assert all("brew" not in query.text and "tea" not in query.text for query in alone)
    assert all(query.whole == f"{query.name}: {query.text}" for query in named)
    assert any("purpose" in query.text for query in named)  # it says what it is used for
    assert any("this drink" in query.text for query in named)
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


def test_fields_are_asked_for_in_peoples_words() -> None:
    parts = [
        Passage(f"factbook:{i}:people:population#{j}", f"L{i}: People > Population", "", "factbook")
        for i in range(60)
        for j in range(2)
    ]
    found = list(from_fields(parts, seed=1))
    assert found == list(from_fields(parts, seed=1))
    assert all(len(query.gold) == 2 for query in found)
    held_out = [query for query in found if query.source in HELD_OUT_SOURCES]
    assert held_out
    assert all(query.held_out for query in held_out)
    assert {q.name for q in found} == {f"L{land}" for land in range(60)}
    words = {query.text for query in held_out}
    assert words.isdisjoint(query.text for query in found if query.source == "factbook")


def test_only_training_questions_of_pocket_kb_and_the_same_in_other_words(tmp_path: Path) -> None:
    asked, own = "Up to how many years does a dog of this breed usually live?", "Is it hairy?"

    def row(entity: str, question: str, hops: list[list[str]]) -> dict[str, object]:
        named = {"question": question, "name": "Pug", "entity": entity, "hops": hops}
        return {**named, "category": "dog", "relation": "life" if question == asked else "own"}

    hops = [["p:1", "p:2"], ["q:1"]]
    dogs = [f"dog:{i}" for i in range(30)]
    rows = [row("dog:0", asked, hops), row("dog:0", asked, hops), row("dog:0", "What is it?", [])]
    rows += [row("dog:0", own, [["p:3"]])]
    rows += [row(dog, asked, hops) for dog in dogs[1:]]
    write_lines(tmp_path / "train.jsonl", rows)
    write_lines(tmp_path / "val.jsonl", [row("dog:0", "Never read", hops)])
    found = list(from_pocket_kb(tmp_path, seed=3, reworded=4))
    assert found == list(from_pocket_kb(tmp_path, seed=3, reworded=4))
    as_written = [query for query in found if query.text == asked]
    assert as_written == [
        Query("Pug", asked, ("p:1", "p:2"), "pocket-kb", is_id_held_out(dog)) for dog in dogs
    ]
    assert sum(query.source == "pocket-kb" for query in found) == 5 * 31
    assert sum(query.gold == ("p:3",) for query in found) == 5
    words = {query.text for query in found if query.source == HELD_OUT_SOURCES[0]}
    assert words
    assert all(query.held_out for query in found if query.source == HELD_OUT_SOURCES[0])
    assert words.isdisjoint(query.text for query in found if query.source == "pocket-kb")
    assert "Never read" not in {query.text for query in found}


def test_nothing_is_asked_of_what_is_unseen(tmp_path: Path) -> None:
    ids, names = frozenset({"wordnet:n9"}), frozenset({"tea 7"})
    unseen = Unseen(ids, names)
    asked = list(from_wordnet(SYNSETS, seeded, unseen))
    assert {query.gold[0] for query in asked}.isdisjoint({"wordnet:n9", "wordnet:n7"})
    assert len(asked) >= len(SYNSETS) - 4
    named = {"entity": "dog:1", "names": ["Pug"], "passages": ["p:1"]}
    (tmp_path / "unseen.json").write_text(json.dumps([named]))
    found = Unseen.of(tmp_path)
    assert found.has("p:1")
    assert found.has("p:2", "PUG")
    assert not found.has("p:2", "Boxer")
    assert not Unseen.of(None).has("p:1", "Pug")


def test_every_corpus_gets_its_questions(tmp_path: Path) -> None:
    rows = [
        {"question": "Is it hairy?", "name": name, "entity": f"dog:{name}", "category": "dog",
         "relation": "own", "hops": [[f"passages:{name}"]]}
        for name in ("Pug", "Boxer")
    ]  # fmt: skip
    write_lines(tmp_path / "train.jsonl", rows)
    named = {"entity": "dog:Pug", "names": ["Pug"], "passages": ["passages:Pug"]}
    (tmp_path / "unseen.json").write_text(json.dumps([named]))
    passages = [
        PASSAGE,
        *(
            Passage(f"passages:{name}", name, "It is hairy.", "passages")
            for name in ("Pug", "Boxer")
        ),
        *(
            Passage(f"conceptnet:{i}", f"tool {i}", f"A tool {i} is used for work.", "conceptnet")
            for i in range(40)
        ),
        *(
            Passage(f"wiki:{i}", f"River {i}", "It flows through green valleys slowly.", "wiki")
            for i in range(40)
        ),
        Passage("wiki:pug", "Pug", "Some small dogs snore very loudly.", "wiki"),
    ]
    found = generate(passages, tmp_path, 1, Amounts(most=20))
    counts = {source: sum(q.source == source for q in found) for source in ("conceptnet", ARTICLES)}
    assert all(5 < count < 35 for count in counts.values())  # about twenty of forty each
    assert {query.source for query in found} >= {"factbook", "pocket-kb"}
    assert "Pug" not in {query.name for query in found}
    assert all(q.name for q in found if q.source == ARTICLES)
