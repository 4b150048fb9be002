"""Pocket-KB over a tiny drawn world: same bytes, splits apart, gold that holds the answer."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from drawn_world import PICTURES, SEED, World
from PIL import Image

from skipqa.data.pocket_kb.build import Knowledge, build
from skipqa.data.pocket_kb.checks import photos_of
from skipqa.data.pocket_kb.text import says
from skipqa.errors import UserError
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.tasks import TASKS
from skipqa.tasks.jsonl import read
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.photos import Photos

FEW = {"train": 3, "val": 2}  # pictures of several things


@pytest.fixture
def built(world: World) -> Path:
    return world.built


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / f"{split}.jsonl" for split in ("train", "val"))
    return [json.loads(line) for path in lines for line in path.read_text().splitlines()]


def test_the_same_seed_gives_the_same_bytes(
    world: World, data: Path, knowledge: Knowledge, tmp_path: Path
) -> None:
    """Also from another folder."""
    manifest = build(data, tmp_path / "again", SEED, knowledge, crowded=PICTURES)
    for path in world.built.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name
    other = build(data, tmp_path / "other", SEED + 1, knowledge, crowded=FEW)
    assert manifest["checksum"] != other["checksum"]


def test_no_photo_is_in_both_splits(built: Path) -> None:
    used: dict[str, set[str]] = {"train": set(), "val": set()}
    for row in rows(built):
        used[row["split"]] |= {s for s in photos_of(row) if not s.startswith("flags/")}
    assert used["train"]
    assert used["val"]
    assert not used["train"] & used["val"]
    held_out = json.loads((built / "held_out.json").read_text())
    named = {f"{kind}/{name}" for kind in held_out for name in held_out[kind]}
    assert named >= used["val"]
    assert not named & used["train"]


def test_gold_passages_hold_the_answer(world: World) -> None:
    built, knowledge = world.built, world.knowledge
    documents = [*knowledge.wordnet, *knowledge.factbook]
    documents += JsonLines(built / "passages.jsonl").read()  # type: ignore[arg-type]
    texts = {document.id: document.lead + document.text for document in documents}
    asked = [row for row in rows(built) if row["gold"]]
    assert asked
    for row in asked:
        *before, last = row["hops"]
        assert all(says(texts[id], row["answers"]) for id in last), row
        assert all(says(texts[id], [row["bridge"]]) for hop in before for id in hop), row
        assert row["gold"] == list(dict.fromkeys(id for hop in row["hops"] for id in hop))


def test_gold_passages_are_written_out(world: World) -> None:
    built, knowledge = world.built, world.knowledge
    gold = {row["id"]: row for row in map(json.loads, (built / "gold.jsonl").open())}
    assert gold.keys() == {id for row in rows(built) for hop in row["hops"] for id in hop}
    factbook = {document.id: document for document in knowledge.factbook}
    capital = factbook["factbook:hu:government:capital"]
    assert gold[capital.id] == {
        "id": capital.id,
        "title": capital.title,
        "text": capital.lead + capital.text,
    }


def test_gold_has_every_passage_that_states_it(built: Path) -> None:
    own_and_gloss = ["passages:dog:vizsla:origin", "wordnet:n02100583"]
    vizsla = [row for row in rows(built) if row["entity"] == "dog:vizsla"]
    origins = [row["hops"][0] for row in vizsla if row["bridge"] or row["relation"] == "origin"]
    assert origins
    assert all(hop == own_and_gloss for hop in origins)
    factbook_and_gloss = ["factbook:hu:government:capital", "wordnet:n08850450"]
    capitals = [row["hops"][-1] for row in rows(built) if "budapest" in row["answers"]]
    assert capitals
    assert all(hop == factbook_and_gloss for hop in capitals)


def test_answers_are_in_the_form_that_is_scored(built: Path) -> None:
    for row in rows(built):
        assert row["answers"]
        assert all(normalise(answer) == answer for answer in row["answers"]), row


def test_subsets(built: Path) -> None:
    found = rows(built)
    assert {name for row in found for name in row["subset"]} == {
        *("small", "multihop", "longtail", "perceptual", "crowded", "unseen")
    }
    for row in found:
        subset = row["subset"]
        assert ("perceptual" in subset) == (not row["gold"])
        assert ("multihop" in subset) == (len(row["hops"]) > 1)
        if "small" in subset:
            assert row["box"][2] * row["box"][3] < 0.1


def test_nothing_is_pasted_beside_its_like(built: Path) -> None:
    """In the drawn world three photos of four show a dog."""
    for row in rows(built):
        if row["category"] == "dog" and row["background"]:
            assert int(Path(row["background"]).stem) % 4 == 0


def test_flags_that_look_alike_are_left_out(built: Path) -> None:
    countries = {row["entity"] for row in rows(built) if row["category"] == "country"}
    assert countries == {"country:hu", "country:de"}


def test_the_harness_reads_it(built: Path) -> None:
    for split in ("train", "val"):
        found, bad = read(built / f"{split}.jsonl", Photos(built / "photos.zip"))
        assert found
        assert bad == []
        examples = TASKS["pocket-kb"].load(built, split)
        assert [example.id for example in examples] == [example.id for example in found]
        boxes = [example.box for example in examples if example.box]
        assert boxes
        assert all(
            0 <= left < right <= 1 and 0 <= top < bottom <= 1 for left, top, right, bottom in boxes
        )


def test_pictures_are_stored_and_open(built: Path) -> None:
    with zipfile.ZipFile(built / "photos.zip") as archive:
        assert len(archive.namelist()) == len(set(archive.namelist()))
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED
            assert Image.open(BytesIO(archive.read(info))).format == "WEBP"


def test_a_class_without_facts_is_not_asked_about(built: Path) -> None:
    assert all(row["entity"] != "class:n04372370" for row in rows(built))


@pytest.mark.parametrize(
    ("spoil", "says_so"),
    [
        (lambda d: (d / "entities/photos.jsonl").unlink(), "photos.jsonl does not exist"),
        (lambda d: (d / "entities/photos.jsonl").write_text("{"), "not JSON"),
        (lambda d: (d / "entities/photos.jsonl").write_text('{"image": "a"}'), "'domain' is miss"),
        (lambda d: (d / "entities/photos.zip").write_text("no zip"), "is no zip of photos"),
        (lambda d: (d / "coco/photos.zip").unlink(), "photos.zip does not exist"),
        (lambda d: (d / "coco/labels.jsonl").write_text('{"image": 3}'), "must be a string"),
        (lambda d: (d / "entities/dog-breed-facts.jsonl").unlink(), "does not exist"),
    ],
)
def test_bad_data_is_one_line(
    data: Path, knowledge: Knowledge, tmp_path: Path, spoil: Any, says_so: str
) -> None:
    spoil(data)
    with pytest.raises(UserError, match=says_so) as error:
        build(data, tmp_path / "out", SEED, knowledge, crowded=FEW)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_refused(world: World) -> None:
    with pytest.raises(UserError, match="exists: delete it or choose another"):
        build(world.data, world.built, SEED, world.knowledge)


def test_a_stopped_build_leaves_nothing(data: Path, knowledge: Knowledge, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int | None) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(data, tmp_path / "out", SEED, knowledge, stop)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == []
