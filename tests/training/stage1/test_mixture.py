"""Which question is of which split, how right an answer is, and what is never trained on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_training import COLOURS, make_example, write_data, write_lines

from skipqa.data.held_out import is_held_out, pocket_kb_split
from skipqa.errors import UserError
from skipqa.tasks.pocket_kb import box_from_centre
from skipqa.training.example import TrainExample
from skipqa.training.stage1.mixture import (
    Mixture,
    answer_vocabulary,
    read,
)


def names_of(mixture: Mixture, rows: set[int]) -> set[str]:
    """`archive/photo` of rows of the table."""
    return {f"{zip.stem}/{name}" for (zip, name), row in mixture.photos.items() if row in rows}


def photos_of(mixture: Mixture, *splits: str) -> set[str]:
    return names_of(mixture, {e.photo for e in mixture.examples if e.split in splits})


def test_splits_share_no_photo(data: Path, pocket_kb: Path) -> None:
    mixture = read(data, pocket_kb)
    train, held_out, val = (photos_of(mixture, split) for split in ("train", "held-out", "val"))
    assert train
    assert held_out
    assert val
    assert not train & (held_out | val)
    assert not held_out & val
    labelled = names_of(mixture, {*mixture.labels, *mixture.entities})
    assert labelled
    assert not labelled & (held_out | val)
    assert all(is_held_out(name) for name in held_out)
    sources = {(e.source, e.split) for e in mixture.examples}
    assert sources == {
        *(("okvqa", "train"), ("okvqa", "held-out"), ("okvqa", "val")),
        *(("coco", "train"), ("coco", "held-out"), ("vqav2", "val")),
        *(("pocket-kb", "train"), ("pocket-kb", "held-out"), ("pocket-kb", "val")),
    }


def test_photos_that_pocket_kb_holds_out_are_not_trained_on(data: Path, pocket_kb: Path) -> None:
    held_out = set(json.loads((pocket_kb / "held_out.json").read_text())["coco"])

    def used(mixture: Mixture) -> set[str]:
        trained = photos_of(mixture, "train", "held-out") | names_of(mixture, {*mixture.labels})
        return {name.partition("/")[2] for name in trained}

    assert held_out <= used(read(data))  # one of coco/photos, one of okvqa/train
    assert not held_out & used(read(data, pocket_kb))


@pytest.mark.parametrize("field", ["photo", "background"])
def test_a_training_row_of_a_held_out_photo_is_refused(
    data: Path, pocket_kb: Path, field: str
) -> None:
    rows = [json.loads(line) for line in (pocket_kb / "train.jsonl").open()]
    rows[3][field] = "coco/000000000200.webp"
    write_lines(pocket_kb / "train.jsonl", rows)
    with pytest.raises(UserError, match=r"trains on coco/000000000200.webp.*holds out"):
        read(data, pocket_kb)


def test_scores(data: Path, pocket_kb: Path) -> None:
    mixture = read(data, pocket_kb)
    of = {source: mixture.examples[mixture.select(source, "train")[0]] for source in ("okvqa", "coco")}  # fmt: skip  # noqa: E501
    assert sorted(of["okvqa"].answers.values()) == [0.667, 1.0]
    colour = next(text for text in of["coco"].answers if text in COLOURS)
    # Two people said "red" and one "the red": three in all; one of four said "white".
    assert of["coco"].answers == {colour: 1.0, "white": pytest.approx(1 / 3)}
    yes = mixture.examples[mixture.select("vqav2", "val")[0]]
    assert yes.answers == {"yes": 1.0}


def test_an_answer_that_normalises_to_nothing_is_none(data: Path) -> None:
    rows = [json.loads(line) for line in (data / "okvqa/train.jsonl").open()]
    rows[0]["answers"] = {"A": 1.0, "vitamin a": 0.667}
    rows[1]["answers"] = {"the": 1.0}
    write_lines(data / "okvqa/train.jsonl", rows)
    asked = [e for e in read(data).examples if e.source == "okvqa" and e.split != "val"]
    assert len(asked) == len(rows) - 1
    assert asked[0].answers == {"vitamin": 0.667}
    assert all("" not in e.answers for e in asked)


def test_pocket_kb_brings_names_and_passages(data: Path, pocket_kb: Path) -> None:
    mixture = read(data, pocket_kb)
    assert set(mixture.entities.values()) == {
        *(("dog", "dog 0"), ("dog", "dog 2"), ("flag", "country 1"), ("flag", "country 3")),
    }
    asked = [e for e in mixture.examples if e.source == "pocket-kb"]
    assert {e.hops for e in asked} == {(), (("It comes from Hungary.",), ("Hungary", "There"))}
    assert all(e.needs_knowledge == bool(e.hops) for e in asked)
    assert not any(e.needs_knowledge for e in mixture.examples if e.source != "pocket-kb")
    assert mixture.facts == {
        "passages:a": "It comes from Hungary.",
        "wordnet:b": "Hungary",
        "wordnet:c": "There",
    }
    assert read(data).facts == {}


def test_things_to_check_by_are_not_to_learn_from(data: Path, pocket_kb: Path) -> None:
    mixture = read(data, pocket_kb)
    assert len(mixture.entities) == 15
    assert {split: len(things) for split, things in mixture.checks.items()} == {"held-out": 1, "val": 4}  # fmt: skip  # noqa: E501
    assert set(mixture.checks["val"].values()) == set(mixture.entities.values())
    for split, things in mixture.checks.items():
        assert photos_of(mixture, split) >= names_of(mixture, {*things})
        assert not {*things} & {*mixture.train_photos()}


@pytest.mark.parametrize(
    ("photo", "background", "split"),
    [
        ("entities/train11.webp", "coco/train0.webp", "held-out"),
        ("entities/train0.webp", "coco/train11.webp", "train"),
        ("flags/train11.png", "coco/train0.webp", "train"),
        ("flags/train0.png", "coco/train11.webp", "held-out"),
        (None, None, "held-out"),
    ],
)
def test_a_flag_is_held_out_by_its_background(
    photo: str | None, background: str | None, split: str
) -> None:
    row = {"image": "coco/train11.webp", "photo": photo, "background": background}
    assert pocket_kb_split(row) == split


def test_boxes_are_of_composed_pictures(data: Path, pocket_kb: Path) -> None:
    mixture = read(data, pocket_kb)
    of_things = {*mixture.entities}.union(*mixture.checks.values())
    composed = {f"photos/entities/train{n}.webp" for n in range(16) if n % 3}
    composed |= {f"photos/entities/val{n}.webp" for n in range(4) if n % 3}
    assert names_of(mixture, {*mixture.boxes}) == composed
    assert {*mixture.boxes} <= of_things
    assert set(mixture.boxes.values()) == {box_from_centre((0.4, 0.5, 0.3, 0.6))}


def test_what_training_may_look_at(data: Path, pocket_kb: Path) -> None:
    """Photos that are asked about to train on, or labelled; no held-out one, none to score by."""
    mixture = read(data, pocket_kb)
    rows = mixture.train_photos()
    assert rows == sorted(set(rows))
    looked_at = names_of(mixture, {*rows})
    assert looked_at >= photos_of(mixture, "train")
    assert looked_at >= names_of(mixture, {*mixture.labels, *mixture.entities})
    assert not looked_at & photos_of(mixture, "held-out", "val")
    assert not any(is_held_out(name) for name in looked_at if name.startswith(("train/0", "photos/0")))  # fmt: skip  # noqa: E501


def test_held_out_photos_are_asked_about_by_coco_but_not_labelled(data: Path) -> None:
    mixture = read(data)
    asked = {mixture.examples[row].photo for row in mixture.select("coco", "held-out")}
    assert asked
    assert not asked & {*mixture.labels}
    assert all(is_held_out(name) for name in names_of(mixture, asked))


def test_the_limit_is_for_each_file(data: Path) -> None:
    mixture = read(data, limit=3)
    okvqa = [e for e in mixture.examples if e.source == "okvqa" and e.split != "val"]
    assert len(okvqa) == 3
    assert len(mixture.select("okvqa", "val")) == 3


def test_the_fingerprint_is_of_the_content(data: Path, pocket_kb: Path, tmp_path: Path) -> None:
    again = write_data(tmp_path / "elsewhere")
    assert read(again).fingerprint() == read(data).fingerprint()
    assert read(data, limit=9).fingerprint() != read(data).fingerprint()
    whole = read(data, pocket_kb)
    assert whole.fingerprint() != read(data).fingerprint()
    moved = read(data, pocket_kb)
    moved.boxes[next(iter(moved.boxes))] = (0.4, 0.4, 0.6, 0.6)
    assert moved.fingerprint() != whole.fingerprint()


def test_vocabulary_is_of_training_answers_by_how_common_they_are() -> None:
    def asked(text: str, source: str, split: str = "train", score: float = 1.0) -> TrainExample:
        return make_example(0, "?", {text: score}, source, split)

    examples = [
        *[asked("dog", "coco")] * 7,
        *[asked("red", "okvqa")] * 3,  # counts nine
        *[asked("rare", "coco")] * 3,
        *[asked("unsure", "coco", score=0.5)] * 9,
        *[asked("unseen", "okvqa", "held-out")] * 9,
        *[asked("one two three four five", "coco")] * 9,
    ]
    assert answer_vocabulary(examples, 10) == ("red", "dog")
    assert answer_vocabulary(examples, 1) == ("red",)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: (d / "coco/photos.zip").unlink(), r"coco/photos.zip does not exist"),
        (lambda d: (d / "okvqa/val.zip").unlink(), r"okvqa/val.zip does not exist"),
        (lambda d: (d / "vqav2/val.zip").write_text("no"), r"vqav2/val.zip is no zip"),
        (lambda d: (d / "okvqa/train.jsonl").unlink(), r"okvqa/train.jsonl does not exist"),
        (lambda d: (d / "coco/labels.jsonl").write_text("{"), r"labels.jsonl line 1: not JSON"),
        (
            lambda d: (d / "coco/labels.jsonl").write_text('{"image": "x"}'),
            r"labels.jsonl row 0: the field 'labels' is missing",
        ),
        (
            lambda d: (d / "vqav2/val.jsonl").write_text(
                '{"image": "x.webp", "question": "?", "answer": "no"}'
            ),
            r"vqav2/val.zip lacks 1 photos, the first is x.webp",
        ),
    ],
)
def test_bad_data_is_one_line(data: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(data)
    with pytest.raises(UserError, match=says) as error:
        read(data)
    assert "\n" not in str(error.value)


def test_pocket_kb_without_gold_is_one_line(data: Path, pocket_kb: Path) -> None:
    write_lines(pocket_kb / "gold.jsonl", [{"id": "passages:a", "text": "Hungary"}])
    with pytest.raises(UserError, match=r"gold.jsonl lacks the passage 'wordnet:b'"):
        read(data, pocket_kb)
    (pocket_kb / "held_out.json").unlink()
    with pytest.raises(UserError, match=r"held_out.json does not exist"):
        read(data, pocket_kb)
