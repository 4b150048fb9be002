"""What is held out: a tenth of everything, the same tenth each time, decided by names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.data.held_out import (
    choose_unseen,
    is_fresh,
    is_held_out,
    is_id_held_out,
    photos_of_val,
    pocket_kb_split,
    unseen_entities,
)
from skipqa.errors import UserError

names = st.text("abc019_-", min_size=1)


@pytest.mark.parametrize("kind", ["wordnet:n", "dog:"])
def test_about_a_tenth_is_held_out(kind: str) -> None:
    fraction = sum(is_id_held_out(f"{kind}{i}") for i in range(2_000)) / 2_000
    assert 0.07 < fraction < 0.13


def test_about_half_of_the_held_out_photos_are_fresh() -> None:
    held_out = [name for n in range(20_000) if is_held_out(name := f"{n:012d}.jpg")]
    assert 1_400 < len(held_out) < 2_600
    assert 0.4 < sum(map(is_fresh, held_out)) / len(held_out) < 0.6


def test_the_choice_never_changes() -> None:
    """Shipped components were trained without these."""
    photos = [n for n in range(100) if is_held_out(f"{n:012d}.jpg")]
    assert photos == [7, 12, 25, 44, 46, 51, 65, 66, 67, 78]
    assert [n for n in range(40) if is_id_held_out(f"dog:{n}")] == [14, 21, 22, 37]


@given(names, st.sampled_from(["", "coco/", "a/b/"]), st.sampled_from([".jpg", ".webp"]))
def test_folder_and_format_do_not_matter(name: str, folder: str, suffix: str) -> None:
    assert is_held_out(folder + name + suffix) == is_held_out(name + ".png")
    assert is_fresh(folder + name + suffix) == is_fresh(name + ".png")


def test_rows_of_pocket_kb_go_by_the_photo_of_their_thing() -> None:
    names = [f"{n:05d}.webp" for n in range(200)]
    held_out = next(name for name in names if is_held_out(name))
    kept = next(name for name in names if not is_held_out(name))
    scene = {"image": f"scenes/{kept}", "photo": f"entities/{held_out}", "background": kept}
    assert pocket_kb_split(scene) == "held-out"
    assert pocket_kb_split({"image": f"entities/{held_out}"}) == "held-out"
    flag = {"image": f"scenes/{kept}", "photo": f"flags/{held_out}", "background": f"coco/{kept}"}
    assert pocket_kb_split(flag) == "train"


def test_the_photos_of_val_are_read_from_pocket_kb(tmp_path: Path) -> None:
    (tmp_path / "held_out.json").write_text(json.dumps({"coco": ["a"], "entities": []}))
    assert photos_of_val(tmp_path) == {"coco": {"a"}, "entities": frozenset()}
    assert photos_of_val(None) == {"coco": frozenset(), "entities": frozenset()}
    (tmp_path / "held_out.json").write_text("{}")
    with pytest.raises(UserError, match="'coco' is missing"):
        photos_of_val(tmp_path)


def test_a_fifth_of_each_kind_is_unseen() -> None:
    keys = [f"{kind}:{n}" for kind, count in (("dog", 100), ("cat", 12)) for n in range(count)]
    unseen = choose_unseen(keys)
    assert sum(key.startswith("dog:") for key in unseen) == 20
    assert sum(key.startswith("cat:") for key in unseen) == 2
    assert choose_unseen(reversed(keys)) == unseen
    assert sorted(key for key in unseen if key.startswith("cat:")) == ["cat:11", "cat:4"]


def test_unseen_entities_are_read_from_pocket_kb(tmp_path: Path) -> None:
    (tmp_path / "unseen.json").write_text(json.dumps([{"entity": "dog:a", "names": ["A", "b"]}]))
    assert unseen_entities(tmp_path) == {"dog:a": {"a", "b"}}
    assert unseen_entities(None) == {}
    (tmp_path / "unseen.json").write_text('[{"entity": "dog:a"}]')
    with pytest.raises(UserError, match="'names' is missing"):
        unseen_entities(tmp_path)
