"""Signals of a passage: what the image shows, what the question says, and who leads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from synthetic import WIDTH, concepts, kept_tokens, question, state

from skipqa.knowledge.excerpt import subject_of
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.pipeline import Pipeline
from skipqa.stages.signals import OF_EMBEDDINGS, SIGNALS, about_titles, names_in, signals
from skipqa.types import Passage, Region, Retrieved, RetrievedPassage, SeenWords

SEEN, SEEN_LEADS, OVERLAP, SAID_LEADS, OWN_CORPUS = 4, 7, 9, 13, 26
KNOWN = concepts(("pug", ("dog",)), ("beagle", ("dog",)), ("flag of Chad", ("flag",)))


def candidate(title: str, text: str, score: float = 2.0, relative: float = 1.0) -> RetrievedPassage:
    return RetrievedPassage(0, Passage(title, title, text, "test"), score, 0, relative)


def told(*candidates: RetrievedPassage, embedded: float = 1.0) -> torch.Tensor:
    """The image shows a pug."""
    kept = kept_tokens(3, [0, 4], seed=1, num_concepts=3)
    evidence = torch.tensor([0.8, 0.15, 0.05]).expand(9, -1)
    words = SeenWords(("pug", "small dog"), torch.tensor([0.9, 0.4]), torch.zeros(2, WIDTH))
    tokens = replace(kept.tokens, concept_probs=evidence, overview=evidence[0], words=words)
    kept = replace(kept, tokens=tokens)
    region = Region((0.0, 0.0, 1.0, 1.0), (0, 4), ((0, 0.8),), 0.5)
    asked = question("Where does this dog come from?", "dog", "origin")
    embeddings = torch.nn.functional.normalize(torch.ones(len(candidates), WIDTH), dim=-1)
    embeddings[0] = -embeddings[0]
    of_title = -embeddings[:1].expand(len(candidates), -1)
    retrieved = Retrieved(candidates, len(candidates), len(candidates))
    asking = state(question=asked, kept=kept, regions=(region,), retrieved=retrieved)
    return signals(asking, embedded * embeddings, embedded * of_title, KNOWN)


def test_the_passage_about_what_is_shown_leads() -> None:
    found = told(candidate("pug", "Pugs are from China."), candidate("Beagle", "An English hound."))
    assert found.shape == (2, SIGNALS)
    assert found[:, SEEN].tolist() == pytest.approx([0.8, 0.15])
    assert found[0, SEEN_LEADS] > 0 > found[1, SEEN_LEADS]
    assert torch.isfinite(found).all()


def test_a_thing_competes_with_all_that_is_seen() -> None:
    """A passage about what is likely leads, whether or not a rival has a passage, too."""
    alone = told(candidate("pug", "Pugs are from China."), candidate("World", "All of it."))
    prob, lead, can_be_seen = 16, 17, 25
    assert alone[0, prob] ** 2 == pytest.approx(0.8 / 0.95, abs=0.05)  # the question names dogs
    assert alone[0, lead] > 0 > alone[1, lead]
    assert alone[:, can_be_seen].tolist() == [1.0, 0.0]
    beaten = told(candidate("Beagle", "An English hound."), candidate("World", "All of it."))
    assert beaten[0, lead] < 0


def test_a_passage_is_compared_with_the_best_of_its_own_index() -> None:
    """The best passages of two indexes are alike, though their scores are on different scales."""
    found = told(
        candidate("pug", "Pugs.", score=20.0, relative=1.0),
        candidate("pug", "Pugs.", score=4.0, relative=1.0),
        candidate("pug", "Pugs.", score=2.0, relative=0.5),
    )
    compared, raw = 0, 1
    assert found[:, compared].exp().tolist() == pytest.approx([1.0, 1.0, 0.5])
    assert found[0, raw] > found[1, raw] > found[2, raw]


def test_a_passage_is_compared_with_those_of_its_own_corpus() -> None:
    first, second, third = (
        replace(one, passage=replace(one.passage, source=source))
        for one, source in (
            (candidate("pug", "Pugs.", relative=1.0), "a"),
            (candidate("pug", "Pugs.", relative=0.5), "b"),
            (candidate("pug", "Pugs.", relative=0.25), "b"),
        )
    )
    found = told(first, second, third)
    place, behind, how_many, length = found[:, OWN_CORPUS : OWN_CORPUS + 4].T
    assert place.tolist() == pytest.approx([0, 0, 1 / 3])
    assert behind.exp().tolist() == pytest.approx([1.0, 1.0, 0.5])
    assert how_many.tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert len(set(length.tolist())) == 1


def test_a_passage_may_speak_of_what_is_seen() -> None:
    """In whole words; of a long passage, what is read of it counts."""
    found = told(
        candidate("Pug", "A small dog from China."),
        candidate("Pugilist", "A boxer. Chinatown."),
        replace(candidate("World", "A small dog from China."), excerpt="All of it."),
    )
    in_title, in_text = found[:, OWN_CORPUS + 4 :].square().T
    assert in_title.tolist() == pytest.approx([0.9, 0, 0])
    assert in_text.tolist() == pytest.approx([0.4, 0, 0])


def test_words_of_the_question_count_in_any_form() -> None:
    found = told(candidate("pug", "dogs of some origin"), candidate("pug", "a small animal"))
    assert found[:, OVERLAP].tolist() == [1.0, 0.0]


def test_passages_about_one_thing_are_compared_with_each_other() -> None:
    same = told(candidate("pug", "one"), candidate("pug", "another"))
    assert same[0, SAID_LEADS] < 0 < same[1, SAID_LEADS]
    apart = told(candidate("pug", "one"), candidate("beagle", "another"))
    assert apart[:, SAID_LEADS].tolist() == [0.0, 0.0]


def test_no_passages_no_signals() -> None:
    kept, nothing = kept_tokens(3, [0], seed=1, num_concepts=3), Retrieved((), 0, 0)
    asking = state(question=question(), kept=kept, regions=(), retrieved=nothing)
    none = torch.zeros(0, WIDTH)
    assert signals(asking, none, none, KNOWN).shape == (0, SIGNALS)


def test_titles() -> None:
    assert names_in("Chad: Government > Flag") == ("chad",)
    assert names_in("bag, traveling bag") == ("bag", "traveling bag")
    assert names_in("flag of Chad") == ("chad",)
    assert subject_of("bag, traveling bag") == "bag"
    asked = question("Where is it from?")
    assert about_titles(asked, ["Maine Coon"]) == ["Where is it from? Maine Coon"]


def test_a_verifier_that_learned_with_signals_answers(pipeline: Pipeline, photo: Path) -> None:
    width = pipeline.backbone.widths.text
    torch.manual_seed(0)
    verifier = Verifier(VerifierConfig(width, width, hidden=8, signals=SIGNALS)).eval()
    trained = pipeline.with_components(verifier=verifier)
    answer = trained.answer(photo, "How is this drink brewed?", fast_path=False)
    assert all(0 <= evidence.score <= 1 for evidence in answer.evidence)
    without = pipeline.answer(photo, "How is this drink brewed?", fast_path=False)
    assert answer.trace["verify"].flops != without.trace["verify"].flops


def test_without_embeddings_only_their_own_signals_change() -> None:
    passages = candidate("pug", "Pugs are from China."), candidate("pug", "A pug is a small dog.")
    with_them, without = told(*passages), told(*passages, embedded=0.0)
    changed = [n for n in range(SIGNALS) if not torch.equal(with_them[:, n], without[:, n])]
    assert set(changed) <= set(OF_EMBEDDINGS)
    assert not without[:, list(OF_EMBEDDINGS)].any()
    assert len(changed) >= 4


def test_own_documents_are_compared_among_themselves() -> None:
    """Signals of either kind are those it has without the other."""
    notes = [
        replace(candidate("diary", "Our pug came from Anselm Quintana.", relative=0.9), own=True),
        replace(candidate("bills", "The vet sent a bill.", relative=0.3), own=True),
    ]
    entries = [candidate("pug", "Pugs are from China."), candidate("Beagle", "An English hound.")]
    # `told` tells the first passage's embedding apart
    both = told(entries[0], notes[0], entries[1], notes[1])
    assert torch.equal(both[[0, 2]], told(*entries))
    assert torch.equal(both[[1, 3]], told(entries[0], *notes)[1:])
    mixed = told(entries[0], *(replace(note, own=False) for note in notes))
    assert not torch.equal(both[[1, 3]], mixed[1:])
