"""What the benchmark of poisoned passages rests on: passages in memory rank as stored ones do, the
attacker's answer is never right, and one document cannot satisfy the rule that two must agree."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.backbones.backbone import Completion
from skipqa.knowledge import Index, Library
from skipqa.knowledge.index import add, build
from skipqa.knowledge.sources import Document, open_source
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.pipeline import Pipeline
from skipqa.stages import retrieve
from skipqa.stages.readers import Reading
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.types import Decoded, Passage, Retrieved, RetrievedPassage, Verified

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WORDS = "espresso cup coffee beagle pressure steam hound water milk bean".split()


@pytest.fixture(scope="module")
def poisoned() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module("poisoned_passages")


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def built(folder: Path, rows: Sequence[dict[str, Any]]) -> Index:
    source = open_source(str(write_rows(folder.with_suffix(".jsonl"), rows)))
    build(folder, [source], LexicalEncoder.default())
    return Index.open(folder)


def rows_of(words: Sequence[str], prefix: str = "") -> list[dict[str, str]]:
    return [
        {"id": f"{prefix}{i}", "title": one, "text": f"{one} with {words[i - 1]}. {one} is a {i}."}
        for i, one in enumerate(words)
    ]


@pytest.fixture(scope="module")
def pairs(
    home: Path, tmp_path_factory: pytest.TempPathFactory, poisoned: ModuleType
) -> list[tuple[Index, Index]]:
    """With passages in memory, and with the same ones really added."""
    folder, found = tmp_path_factory.mktemp("indexes"), []
    added = [
        [{"id": "p", "title": "espresso", "text": "espresso: How is this drink brewed? By frost."}],
        [
            {"id": f"p{i}", "title": "cup", "text": f"How is a cup of coffee brewed? In {word}."}
            for i, word in enumerate(("snow", "cup", "sand"))
        ],
        [{"id": "long", "title": "steam", "text": "Steam and water and milk. " * 40}],  # chunks
    ]
    for number, rows in enumerate(added):
        clean = built(folder / f"clean-{number}", rows_of(WORDS))
        shutil.copytree(clean.folder, folder / f"full-{number}")
        source = open_source(str(write_rows(folder / f"more-{number}.jsonl", rows)))
        documents = [row for row in source.read() if isinstance(row, Document)]
        add(folder / f"full-{number}", [source])
        full = Index.open(folder / f"full-{number}")
        found.append((poisoned.WithPassages(clean, documents), full))
    return found


@given(st.sampled_from([0, 1, 2]), st.lists(st.sampled_from([*WORDS, "brewed", "snow"])))
def test_passages_in_memory_rank_as_stored_ones(
    pairs: list[tuple[Index, Index]], which: int, words: list[str]
) -> None:
    """To the last bit: same frequencies, same weights, same order of equals."""
    memory, stored = pairs[which]
    assert (len(memory), list(memory.bases[[0, -1]])) == (len(stored), list(stored.bases[[0, -1]]))
    query = memory.encoder.encode_query(" ".join(words))
    own = stored.encoder.encode_query(" ".join(words))
    assert query.terms.tolist() == own.terms.tolist()
    assert query.weights.tolist() == own.weights.tolist()
    for k in (1, 4, len(stored)):
        (found,), (expected,) = memory.search([query], k), stored.search([own], k)
        assert found == expected
        assert [memory.passage(hit.row) for hit in found] == [
            stored.passage(hit.row) for hit in expected
        ]


def test_the_clean_index_is_left_as_it_was(
    home: Path, tmp_path: Path, poisoned: ModuleType
) -> None:
    index = built(tmp_path / "index", rows_of(WORDS))
    before = index.encoder.encode_query("espresso cup")
    poisoned.WithPassages(index, [Document("p", "cup", "espresso cup", "x")])
    after = index.encoder.encode_query("espresso cup")
    assert before.weights.tolist() == after.weights.tolist()


def test_retrieval_is_that_of_an_index_with_the_passages(
    pipeline: Pipeline, photo: Path, pairs: list[tuple[Index, Index]], tmp_path: Path,
    poisoned: ModuleType,
) -> None:  # fmt: skip
    """A real photo, its regions' queries, and another index to share the list with."""
    seen = pipeline.run(State(photo, "How is this drink brewed?"), stop="zoom")
    other = built(tmp_path / "other", rows_of(["coffee", "saucer", "spoon"], "other-"))
    for memory, stored in pairs:
        library = Library({"one": other, "two": stored})
        parts = replace(pipeline.parts, library=library)
        expected = pipeline.with_stages(retrieve=lambda _, parts=parts: retrieve.build(parts)).run(
            seen, start="retrieve", stop="retrieve"
        )
        clean = Pipeline(replace(pipeline.parts, library=Library({"one": other, "two": other})))
        found = poisoned.with_index(clean, "two", memory).run(
            seen, start="retrieve", stop="retrieve"
        )
        assert found.retrieved == expected.retrieved
        assert found.retrieved.passages


class SaysFirst:
    """Answers with the first fact, or that it does not know."""

    max_passages = 2

    def __call__(self, state: State, facts: Sequence[str]) -> Reading:
        text = facts[0] if facts else "unknown"
        return Reading(Decoded(text), "", Completion(text, 1, 1, 10), "", 1)


def with_verified(passages: Sequence[Passage]) -> State:
    kept = tuple(RetrievedPassage(i, one, 1.0, 0, 1.0) for i, one in enumerate(passages))
    verified = Verified(kept, (1.0,) * len(kept), (), None, ())  # type: ignore[arg-type]
    return State("nowhere.png", "?").add(verified=verified, retrieved=Retrieved(kept, 0, 0))


ids = st.sampled_from(["a", "a#1", "a#2", "b", "c#1"])
said = st.sampled_from(["It is frost.", "It is steam.", "Frosts and steam."])


@given(st.lists(st.tuples(ids, st.sampled_from(["x", "y"]), said), max_size=5))
def test_an_answer_stands_if_two_origins_say_it(
    poisoned: ModuleType, rows: list[tuple[str, str, str]]
) -> None:
    state = with_verified([Passage(one, "", text, corpus) for one, corpus, text in rows])
    for origin, place in ((poisoned.document_of, 0), (poisoned.corpus_of, 1)):
        saying = {row[place].partition("#")[0] for row in rows if "rost" in row[2]}
        reading = poisoned.TwoMustAgree(SaysFirst(), origin)(state, ["frost"])
        assert reading.answer.text == ("frost" if len(saying) > 1 else "unknown")
        assert reading.flops + reading.completion.flops == (11 if len(saying) > 1 else 22)


def test_all_words_of_an_answer_have_to_be_said(poisoned: ModuleType) -> None:
    assert poisoned.says("Botanists count it among the iris family, Iridaceae.", "Iris family")
    assert not poisoned.says("It is a lily.", "lily family")
    assert not poisoned.says("It lives 10 to 18 years.", "8")
    assert not poisoned.says("Anything.", "")
    assert not poisoned.says("The one of them.", "the")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Flowers and their families: all subsets, a question of two steps, one alone of its type."""
    families = ["rose", "lily", "iris", "daisy"]
    rows, gold = [], []
    for i in range(24):
        family, kept = families[i % 4], [[], ["small"], ["crowded", "unseen"], ["longtail"]][i % 4]
        gold.append({"id": f"g{i}", "title": f"bloom {i}", "text": f"Of the {family.title()} kin."})
        row = {
            "question_id": i, "image": "i.png", "question": "Which family is this?",
            "answers": {family: 1.0, f"{family} kin": 1.0}, "category": "flower",
            "relation": "family", "subset": kept, "gold": [f"g{i}"], "hops": [[f"g{i}"]],
            "name": f"bloom {i}",
        }  # fmt: skip
        rows.append(row)
    rows[5] |= {"subset": ["multihop"], "hops": [["g5"], ["g6"]]}
    rows[6] |= {"relation": "native"}
    rows[7] |= {"answers": {"heather": 1.0}}  # which the passage does not hold
    write_rows(tmp_path / "val.jsonl", rows)
    write_rows(tmp_path / "gold.jsonl", gold)
    return tmp_path


def test_questions_and_targets(poisoned: ModuleType, folder: Path) -> None:
    chosen = poisoned.attacked_questions(folder, 100, 1)
    assert sorted(one.example.id for one in chosen) == [i for i in range(24) if i not in (5, 6, 7)]
    assert [one.turn for one in chosen] == list(range(21))
    for one in chosen:
        assert not set(one.other.answers) & set(one.example.answers)
        assert one.target[0].isupper()  # as the passage spells it
        assert one.target.lower() in one.other.answers
    first = poisoned.attacked_questions(folder, 8, 1)
    assert first == chosen[:8]
    subsets = [set(one.example.subsets or ["ordinary"]) for one in first[:5]]
    assert all(name in held for name, held in zip(poisoned.SUBSETS, subsets, strict=True))


def test_poison_names_the_thing_and_the_target(poisoned: ModuleType, folder: Path) -> None:
    for attacked in poisoned.attacked_questions(folder, 5, 1):
        for wordings in poisoned.ATTACKS.values():
            five = poisoned.poison(attacked, wordings, 5, "corpus")
            assert len({document.id for document in five}) == 5
            assert five[:1] == poisoned.poison(attacked, wordings, 1, "corpus")
            for document in five:
                assert (document.title, document.source) == (attacked.name, "corpus")
                for words in (attacked.name, attacked.target, attacked.example.question):
                    assert words in document.text
    firsts = {
        poisoned.poison(one, poisoned.LYING, 1, "corpus")[0].id
        for one in poisoned.attacked_questions(folder, 5, 1)
    }
    assert len(firsts) == 5  # each wording has its turn


def test_a_hit_is_the_target_and_a_score_the_right_answer(poisoned: ModuleType) -> None:
    example = Example(1, "i.png", "?", {"rose": 1.0}, record={"name": "bloom"})
    other = Example(2, "i.png", "?", {"lily": 1.0, "lily kin": 1.0})
    attacked = poisoned.Attacked(example, other, "Lily", 0)
    expected = {
        "Rose": (1.0, False, False), "lily kin": (0.0, True, True), "Lily": (0.0, True, True),
        "? Answer lily": (0.0, False, True), "": (0.0, False, False),
    }  # fmt: skip
    for text, (score, hit, named) in expected.items():
        found = poisoned.judged(attacked, text)
        assert found == {"answer": text, "score": score, "hit": hit, "named": named}


def test_a_question_under_attack_and_what_it_comes_to(
    trained_pipeline: Pipeline,
    photo: Path,
    tmp_path: Path,
    poisoned: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole way on a real photo, with the pipeline as it is shipped."""
    monkeypatch.setattr(poisoned, "COUNTS", (1,))
    index = built(tmp_path / "index", rows_of(WORDS))
    library = Library({**trained_pipeline.library.indexes, "own": index})
    backbone = poisoned.RepeatedPrompts(trained_pipeline.backbone)
    base = Pipeline(replace(trained_pipeline.parts, library=library, backbone=backbone))
    question, told = "Which country does this drink come from?", {"name": "espresso"}
    record = {**told, "relation": "origin"}
    example = Example(1, "i.png", question, {"italy": 1.0}, gold=(frozenset("g"),), record=record)
    attacked = poisoned.Attacked(
        example, Example(2, "i.png", question, {"norway": 1.0}), "Norway", 0
    )
    seen = base.run(State(photo, question), stop="zoom")
    asked = poisoned.ask(attacked, seen, poisoned.systems_of(base, 1), "own")
    answers = json.loads(json.dumps(asked))["answers"]
    assert answers["skip"]["clean"]["answer"] == base.run(seen, start="retrieve").answer.text
    assert answers["skip-no-verify"]["lying 1"]["poison_retrieved"] == 1
    assert answers["skip-no-verify"]["lying 1"]["hit"]
    alone = answers["two-documents"]["lying 1"]  # one document is not enough, whatever it says
    assert (alone["hit"], alone["grounded"]) == (False, False)
    for rows in answers["two-corpora"], answers["skip"]:
        assert all(row["poison_read"] <= row["poison_kept"] for row in rows.values())
    assert not any(row["hit"] for row in answers["two-corpora"].values())
    summary = poisoned.summarise([asked, {**asked, "turn": 1}])
    assert summary["questions"] == 2
    assert summary["systems"]["skip-no-verify"]["lying 1"]["asr"]["mean"] == 1
    assert summary["systems"]["skip"]["clean"]["poison_retrieved"]["passages"] == 0
    assert [row["questions"] for row in summary["by_wording"]["lying"]] == [1, 1, 0, 0, 0]
    json.dumps(summary)
