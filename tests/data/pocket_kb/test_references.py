"""Words that single out one of several things are true of it alone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.data.pocket_kb.facts import templates
from skipqa.data.pocket_kb.references import MARGIN, NOUNS, RATIO, Reference, Shown, references
from skipqa.data.scenes import Placement

sides = st.floats(0.12, 0.4)
boxes = st.builds(Placement, st.floats(0.2, 0.8), st.floats(0.2, 0.8), sides, sides)
things = st.lists(
    st.builds(
        Shown, st.sampled_from(["dog", "cat"]), boxes, st.sampled_from(["red", "blue", "green"])
    ),
    min_size=2,
    max_size=6,
)
AXES = {"left": (0, 1), "right": (0, -1), "top": (1, 1), "bottom": (1, -1)}


@given(things)
def test_a_reference_holds_for_one_thing_of_its_kind(shown: list[Shown]) -> None:
    for kind in ("dog", "cat"):
        found = [
            (reference, place)
            for place, one in enumerate(shown)
            if one.kind == kind
            for reference in references(shown, place)
        ]
        assert len({reference for reference, _ in found}) == len(found)


@given(things)
def test_words_agree_with_the_boxes(shown: list[Shown]) -> None:
    for asked, one in enumerate(shown):
        alike = [
            other.box for n, other in enumerate(shown) if n != asked and other.kind == one.kind
        ]
        for reference in references(shown, asked):
            if reference.by == "kind":
                assert not alike
                continue
            assert alike
            if reference.by == "place":
                for word in reference.word.split() if " " not in reference.word else ():
                    axis, sign = AXES[word]
                    assert sign * (one.box[axis] - 0.5) < 0
                    assert all(sign * (o[axis] - one.box[axis]) >= MARGIN - 1e-9 for o in alike)
                if " " in reference.word:
                    (y, down), (x, across) = (AXES[word] for word in reference.word.split())
                    assert down * (one.box[y] - 0.5) < -0.16
                    assert across * (one.box[x] - 0.5) < -0.16
                    for o in alike:
                        assert down * (o[y] - 0.5) >= 0 or across * (o[x] - 0.5) >= 0
            elif reference.by == "size":
                ratios = [(one.box.area / other.area) ** 0.5 for other in alike]
                larger = reference.word.startswith("larg")
                assert all(r >= RATIO - 1e-9 if larger else r <= 1 / RATIO + 1e-9 for r in ratios)
                assert (len(alike) > 1) == reference.word.endswith("est")
            else:
                assert [other.card for other in shown].count(reference.word) == 1


def test_nearly_the_same_place_or_size_is_no_reference() -> None:
    box = Placement(0.4, 0.5, 0.2, 0.2)
    pair = [Shown("dog", box), Shown("dog", box._replace(x=0.55, width=0.25, height=0.25))]
    assert references(pair, 0) == references(pair, 1) == []
    assert references([pair[0], Shown("cat", box)], 0) == [Reference("kind")]


@pytest.mark.parametrize("half", ["train", "val"])
@pytest.mark.parametrize("kind", NOUNS)
def test_every_reference_has_words(kind: str, half: str) -> None:
    known = templates()["crowded"]["references"]
    every = [Reference("kind"), Reference("colour", "red")]
    every += [Reference(by, word) for by in ("place", "size") for word in known[by]]  # type: ignore[arg-type]
    for reference in every:
        phrase = reference.phrase(kind, half, Random(1))
        assert any(noun in phrase for noun in NOUNS[kind])
        assert "{" not in phrase


def test_no_new_wording_is_one_of_train() -> None:
    def halves(value: object) -> list[tuple[list[str], list[str]]]:
        assert isinstance(value, dict)
        if "train" in value:
            return [(value["train"], value["val"])]
        return [pair for inner in value.values() for pair in halves(inner)]

    pairs = halves(templates()["crowded"])
    assert len(pairs) > 40
    for train, val in pairs:
        assert train
        assert val
        assert not set(train) & set(val)
