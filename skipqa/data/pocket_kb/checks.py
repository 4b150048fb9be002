"""What must hold of every row; a break is a bug of the builder, not of the data.

Enters: the rows of a build, its corpus and what they were drawn from. Leaves: nothing, or an
`AssertionError` that shows the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from skipqa.data.pocket_kb.asking import also_right
from skipqa.data.pocket_kb.corpus import Corpus
from skipqa.data.pocket_kb.facts import Entity
from skipqa.data.pocket_kb.references import Shown, references
from skipqa.data.pocket_kb.text import says
from skipqa.data.scenes import Placement

Row = Mapping[str, Any]


def photos_of(row: Row) -> Iterator[str]:
    """Every photo of the data folder, and every flag, in a row's picture."""
    found = (row["photo"], row["background"], *(thing["photo"] for thing in row.get("things", ())))
    yield from (name for name in dict.fromkeys(found) if name is not None)


def check(
    rows: Sequence[Row],
    corpus: Corpus,
    entities: Mapping[str, Entity],
    unseen: Collection[str],
    gallery: Collection[str],
) -> None:
    """`entities` are by key; `gallery` are photos that no question may use."""
    photos: dict[str, str] = {}
    for row in rows:
        for source in photos_of(row):
            if not source.startswith("flags/"):
                assert source not in gallery, row
                assert photos.setdefault(source, row["split"]) == row["split"], source
        *before, last = row["hops"] or [[]]
        assert all(says(corpus.texts[id], row["answers"]) for id in last), row
        assert all(says(corpus.texts[id], [row["bridge"]]) for hop in before for id in hop), row
        assert ("perceptual" in row["subset"]) == (not row["gold"]), row
        assert "small" not in row["subset"] or row["box"][2] * row["box"][3] < 0.1, row
        shown = {row["entity"], *(thing["entity"] for thing in row.get("things", ()))}
        assert row["split"] == "val" or shown.isdisjoint(unseen), row
        assert ("unseen" in row["subset"]) == (row["entity"] in unseen), row
        if "crowded" in row["subset"]:
            _check_crowded(row, corpus, entities)


def _check_crowded(row: Row, corpus: Corpus, entities: Mapping[str, Entity]) -> None:
    """The words are true of one thing, the answer is wrong for all others of its kind, and no
    thing covers another."""
    things = row["things"]
    (asked,) = (n for n, thing in enumerate(things) if thing["entity"] == row["entity"])
    assert things[asked]["box"] == row["box"], row
    shown = [Shown(one["kind"], Placement(*one["box"]), one["card"]) for one in things]
    assert row["asked_by"] in {one.by for one in references(shown, asked)}, row
    alike = [one for one in things if one["kind"] == row["category"] and one != things[asked]]
    assert len(alike) == row["distractors"], row
    for other in alike:
        known = entities[other["entity"]]
        assert not also_right(known, row["relation"], row["answers"], corpus), row
    for one, two in combinations((one.box for one in shown), 2):
        apart = (
            abs(one.x - two.x) * 2 >= one.width + two.width,
            abs(one.y - two.y) * 2 >= one.height + two.height,
        )
        assert any(apart), row
