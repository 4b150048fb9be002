"""ConceptNet as sentences, from a small graph in its form."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.knowledge.chunk import chunk
from skipqa.knowledge.sources import BadRow, Document
from skipqa.knowledge.sources.assertions import PHRASES, Assertion, Words, sentence
from skipqa.knowledge.sources.conceptnet import MAX_FACTS, ConceptNet
from skipqa.knowledge.sources.english import gerund, participle, plural, with_article
from skipqa.knowledge.vocabulary import Vocabulary


def line(subject: str, relation: str, other: str, score: int = 1, freq: int = 5) -> str:
    return f"{subject}\t{other}\t{{'freq': {freq}, 'score': {score}, 'rel': u'{relation}'}}"


def graph(folder: Path, lines: list[str]) -> Path:
    path = folder / "graph.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def read(path: Path) -> tuple[dict[str, Document], list[BadRow]]:
    rows = list(ConceptNet(path).read())
    documents = [row for row in rows if isinstance(row, Document)]
    by_id = {document.id: document for document in documents}
    assert len(by_id) == len(documents)
    return by_id, [row for row in rows if isinstance(row, BadRow)]


def test_a_concept_is_told_best_first(tmp_path: Path) -> None:
    documents, bad = read(
        graph(
            tmp_path,
            [
                line("heron", "HasA", "long beak"),
                line("heron", "IsA", "bird", score=3),
                line("heron", "HasProperty", "bird"),  # the same again, as a property
                line("heron", "AtLocation", "lake", score=9),
                line("heron", "CapableOf", "play cards", freq=-5),  # denied
                line("heron", "HasPainCharacter", "sharp"),  # makes no sentence
                line("heron", "ReceivesAction", "find river"),
                line("lake", "IsA", "place"),
            ],
        )
    )
    assert not bad
    assert documents.keys() == {"conceptnet:heron", "conceptnet:lake"}
    heron = documents["conceptnet:heron"]
    assert (heron.title, heron.source) == ("heron", "conceptnet")
    assert heron.text == (
        "You can find a heron in a lake. A heron is a bird. A heron has a long beak. "
        "You can find a heron in a river."
    )
    lake = documents["conceptnet:lake"]
    assert lake.text == "A lake is a place. You can find a heron in a lake."


@pytest.mark.parametrize(
    ("relation", "subject", "other", "said"),
    [
        ("CapableOf", "stove", "heat pot", "A stove can heat a pot."),
        ("UsedFor", "stove", "heat pot", "A stove is used for heating a pot."),
        ("UsedFor", "drum", "fun", "A drum is used for fun."),
        ("HasA", "dog", "four leg", "A dog has four legs."),
        ("MadeOf", "window", "glass", "A window is made of glass."),
        ("PartOf", "owl wing", "owl", "An owl wing is part of an owl."),
        ("AtLocation", "camel", "egypt", "You can find a camel in Egypt."),
        ("AtLocation", "lamp", "on desk", "You can find a lamp on desk."),
        ("ReceivesAction", "book", "write", "A book can be written."),
        ("Desires", "cat", "heat pot", "A cat wants to heat a pot."),
        ("HasPrerequisite", "heat pot", "stove", "Heating a pot requires a stove."),
        ("Causes", "fire", "heat pot", "Fire can cause heating a pot."),
        ("HasProperty", "coal", "black", "Coal is black."),
        ("SymbolOf", "dove", "peace", "A dove is a symbol of peace."),
        ("IsA", "chess", "game", "Chess is a game."),
    ],
)
def test_sentences_read_as_english(relation: str, subject: str, other: str, said: str) -> None:
    words = Words()
    words.verbs["heat"] = words.nouns["pot"] = 10
    words.names.add("egypt")
    words.uncounted.add("chess")
    assert sentence(Assertion(subject, relation, other, 1), words) == said


def test_every_relation_with_a_phrase_makes_a_sentence() -> None:
    for relation in PHRASES:
        said = sentence(Assertion("red kite", relation, "old oak", 1), Words())
        assert said.endswith(".")
        assert "red kite" in said.lower()
        assert "old oak" in said or "olded oak" in said


def test_words_are_inflected() -> None:
    assert [gerund(verb) for verb in ("cook", "bake", "run", "die", "see", "play")] == [
        "cooking", "baking", "running", "dying", "seeing", "playing",
    ]  # fmt: skip
    assert [participle(verb) for verb in ("eat", "eaten", "bake", "fry", "stop", "boil")] == [
        "eaten", "eaten", "baked", "fried", "stopped", "boiled",
    ]  # fmt: skip
    assert [plural(noun) for noun in ("leg", "berry", "box", "day")] == [
        "legs", "berries", "boxes", "days",
    ]  # fmt: skip
    assert [with_article(noun) for noun in ("owl", "hot water", "two", "3 wheel")] == [
        "an owl", "hot water", "two", "3 wheel",
    ]  # fmt: skip


def test_a_giant_is_capped_and_its_documents_are_single_passages(tmp_path: Path) -> None:
    lines = [line("person", "CapableOf", f"use tool {i}", score=1 + i % 3) for i in range(2_000)]
    documents, _ = read(graph(tmp_path, lines))
    sentences = [s for d in documents.values() for s in d.text.split(". ")]
    assert len(sentences) == MAX_FACTS
    assert list(documents)[:2] == ["conceptnet:person", "conceptnet:person:2"]
    tokenizer = Vocabulary.default().tokenizer
    chunks = list(chunk(list(documents.values()), tokenizer))
    assert len(chunks) == len(documents)
    assert all("person can" in c.passage.text for c in chunks)


def test_bad_lines_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "graph.gz"
    good = line("owl", "IsA", "bird").encode()
    path.write_bytes(
        gzip.compress(b"\n".join([b"one column", good, b"a\tb\t{}", b"\xff\tb\tc", b"\t\t{}"]))
    )
    documents, bad = read(path)
    assert list(documents) == ["conceptnet:owl"]
    assert [row.place for row in bad] == [f"graph.gz:{n}" for n in (1, 3, 4, 5)]
    path.write_bytes(path.read_bytes()[:-10])
    _, bad = read(path)
    assert "reading ended" in bad[-1].reason


CONCEPTS = st.text(alphabet="ab:#%_ é1'", max_size=8)
ROWS = st.builds(line, CONCEPTS, st.sampled_from([*PHRASES, "Else"]), CONCEPTS)


@given(st.lists(ROWS | st.text(max_size=30), max_size=20))
def test_any_lines_give_unique_and_stable_ids(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("graph") / "graph.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode("utf-8", "surrogatepass")))
    documents, bad = read(path)
    assert read(path) == (documents, bad)
    assert all(document.text.strip() for document in documents.values())


@given(st.binary(max_size=200))
def test_any_bytes_are_only_reported(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("graph") / "graph.gz"
    path.write_bytes(data)
    read(path)
    path.write_bytes(gzip.compress(data))
    read(path)
