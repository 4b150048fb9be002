"""WordNet's data files: the line format, and the real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipqa import assets
from skipqa.backbones.weights.convert import imagenet_synsets
from skipqa.pipeline import Pipeline
from skipqa.wordnet import Nouns, Synset, read_synsets

# Two nouns and an adjective, in the layout of wndb(5WN).
NOUNS = """\
  1 This line stands for the licence.
00000017 06 n 02 ice_axe 0 iceax 0 003 @ 00000029 n 0000 ~ 00000035 n 0000 @i 00000041 n 0000 \
| an axe for ice; "a | in the gloss"
00000029 06 n 0b a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 k 0 000 | eleven words, counted in hex
"""
ADJECTIVES = "00000052 00 a 01 galore(ip) 0 001 & 00000060 a 0000 | in abundance\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "data.noun").write_text(NOUNS)
    (tmp_path / "data.adj").write_text(ADJECTIVES)
    return tmp_path


def test_lines(small: Path) -> None:
    axe, many = read_synsets(small, "noun")
    assert axe == Synset(
        id="n00000017",
        part_of_speech="noun",
        lemmas=("ice axe", "iceax"),
        gloss='an axe for ice; "a | in the gloss"',
        hypernyms=("n00000029", "n00000041"),
        file=6,
    )
    assert many.lemmas == tuple("abcdefghijk")
    assert many.hypernyms == ()


def test_position_of_an_adjective_is_no_part_of_it(small: Path) -> None:
    (galore,) = read_synsets(small, "adj")
    assert galore.lemmas == ("galore",)
    assert galore.id == "a00000052"


def test_single_nouns(small: Path) -> None:
    (small / "index.noun").write_text("  1 licence\nice_axe n 2 2 @ ~ 2 0 00000029 00000017  \n")
    nouns = Nouns(small)
    assert nouns["n00000017"] == next(read_synsets(small, "noun"))
    assert nouns.first_sense("Ice axe") == "n00000029"
    assert nouns.first_sense("axe") is None


def test_every_class_that_can_be_seen_is_a_noun(home: Path) -> None:
    nouns = {synset.id: synset for synset in read_synsets(assets.fetch(assets.WORDNET), "noun")}
    assert len(nouns) == 82_115
    classes = imagenet_synsets()
    assert len(set(classes)) == len(classes) == 1_000
    assert all(synset in nouns for synset in classes)
    assert nouns["n07920052"].lemmas == ("espresso",)
    assert all(parent in nouns for synset in nouns.values() for parent in synset.hypernyms)


def test_concepts_know_their_kinds_nearest_first(pipeline: Pipeline) -> None:
    concepts = pipeline.backbone.concepts
    assert [concept.synset for concept in concepts.entries] == imagenet_synsets()
    (espresso,) = (concept for concept in concepts.entries if concept.name == "espresso")
    kinds = ["/".join(names) for names in espresso.kinds]
    assert kinds[0].startswith("coffee")
    order = [next(i for i, k in enumerate(kinds) if w in k) for w in ("coffee", "drink", "entity")]
    assert order == sorted(order)
    assert concepts.embeddings.shape == (1_000, 384)
