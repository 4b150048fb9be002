"""`skipqa eval TASK --subset` and `--without`: which questions of a file are asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipqa.cli.eval import OfficialFiles
from skipqa.errors import UserError
from skipqa.tasks import Example

EXAMPLES = [
    Example(1, "a.png", "?", subsets=("small",)),
    Example(2, "a.png", "?", subsets=("small", "crowded")),
    Example(3, "a.png", "?"),
]


@pytest.mark.parametrize(
    ("subset", "without", "ids", "part"),
    [
        (None, None, [1, 2, 3], ""),
        ("small", None, [1, 2], "small"),
        (None, "crowded", [1, 3], "not crowded"),
        ("small", "crowded", [1], "small, not crowded"),
    ],
)
def test_a_subset_is_asked(
    subset: str | None, without: str | None, ids: list[int], part: str
) -> None:
    files = OfficialFiles(Path("data"), "val", subset=subset, without=without)
    assert [example.id for example in files.chosen(EXAMPLES)] == ids
    assert files.part == part


def test_an_unknown_subset_is_one_clear_line() -> None:
    files = OfficialFiles(Path("data"), "val", subset="crowdy")
    with pytest.raises(UserError, match="no question is in a subset 'crowdy'; there is crowded"):
        files.chosen(EXAMPLES)
