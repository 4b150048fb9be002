"""Which question is of which split, how right an answer is, and what is never trained on."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_training import (
    COLOURS,
    UNSEEN,
    add_crowded,
    make_example,
    photo_names,
    write_data,
    write_fvqa,
    write_lines,
    write_zip,
)

from skipqa.data.held_out import is_held_out, pocket_kb_split
from skipqa.errors import UserError
from skipqa.tasks.pocket_kb import box_from_centre
from skipqa.training.example import TrainExample
from skipqa.training.stage1.mixture import (
    Mixture,
    answer_counts,
    answer_vocabulary,
    read,
)
from skipqa.training.stage1.pocket_kb import Thing


def names_of(mixture: Mixture, rows: set[int]) -> set[str]:
    """`archive/photo` of rows of the table."""
    return {f"{zip.stem}/{name}" for (zip, name), row in mixture.photos.items() if row in rows}


def names_shown(things: Mapping[int, Iterable[Thing]]) -> set[tuple[str, str]]:
    return {(thing.kind, thing.name) for some in things.values() for thing in some}


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
    labelled = names_of(mixture, {*mixture.labels, *mixture.things})
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
    assert names_shown(mixture.things) == {
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
    assert len(mixture.things) == 15
    assert {split: len(things) for split, things in mixture.checks.items()} == {"held-out": 1, "val": 4}  # fmt: skip  # noqa: E501
    assert names_shown(mixture.checks["val"]) == names_shown(mixture.things)
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
    boxes = {photo: thing.box for photo, (thing,) in mixture.shown().items() if thing.box}
    composed = {f"photos/entities/train{n}.webp" for n in range(16) if n % 3}
    composed |= {f"photos/entities/val{n}.webp" for n in range(4) if n % 3}
    assert names_of(mixture, {*boxes}) == composed
    assert set(boxes.values()) == {box_from_centre((0.4, 0.5, 0.3, 0.6))}


def test_what_training_may_look_at(data: Path, pocket_kb: Path) -> None:
    """Photos that are asked about to train on, or labelled; no held-out one, none to score by."""
    mixture = read(data, pocket_kb)
    rows = mixture.train_photos()
    assert rows == sorted(set(rows))
    looked_at = names_of(mixture, {*rows})
    assert looked_at >= photos_of(mixture, "train")
    assert looked_at >= names_of(mixture, {*mixture.labels, *mixture.things})
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
    photo, (thing,) = next(iter(moved.things.items()))
    moved.things[photo] = (dataclasses.replace(thing, box=(0.4, 0.4, 0.6, 0.6)),)
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
    counts = {"dog": 7, "red": 9, "rare": 3, "one two three four five": 9}
    assert answer_counts(examples) == counts


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


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.open()]


def test_a_crowded_image_shows_all_its_things(data: Path, pocket_kb: Path) -> None:
    mixture = read(data, add_crowded(pocket_kb))
    crowded = {photo: some for photo, some in mixture.things.items() if len(some) > 1}
    assert names_of(mixture, {*crowded}) == {f"photos/crowded/train{n}.webp" for n in range(11)}
    for things in crowded.values():
        kinds = [("dog", "dog 2"), ("flag", "country 1"), ("food", "beans")]
        assert [(thing.kind, thing.name) for thing in things] == kinds
        boxes = [box_from_centre((0.2 + 0.3 * place, 0.5, 0.2, 0.25)) for place in range(3)]
        assert [thing.box for thing in things] == boxes
    assert {len(some) for some in mixture.checks["val"].values()} == {1, 3}
    asked = mixture.select("crowded", "train")
    assert len(asked) == 2 * len(crowded)  # two questions, about different things
    assert len({mixture.examples[row].box for row in asked}) == 2
    assert {mixture.examples[row].needs_knowledge for row in asked} == {True, False}


def test_crowded_and_unseen_questions_are_apart_from_the_others(
    data: Path, pocket_kb: Path
) -> None:
    before = read(data, pocket_kb)
    after = read(data, add_crowded(pocket_kb))
    for split in ("train", "held-out", "val"):
        counts = [len(mixture.select("pocket-kb", split)) for mixture in (before, after)]
        assert counts[0] == counts[1]
    found = Counter((e.source, e.split) for e in after.examples)
    assert found["crowded", "held-out"] == 2
    assert found["crowded", "val"] == 2
    assert found["unseen", "val"] == 3  # of two crowded images, and one of it alone
    assert {split for source, split in found if source == "unseen"} == {"val"}


def test_a_trial_has_some_of_every_source(data: Path, pocket_kb: Path) -> None:
    mixture = read(write_fvqa(data), add_crowded(pocket_kb), limit=2)
    assert set(Counter(e.source for e in mixture.examples if e.split == "val").values()) == {2}
    assert len(mixture.select("crowded", "train")) == 2


def test_nothing_unseen_is_in_what_is_trained_on(data: Path, pocket_kb: Path) -> None:
    add_crowded(pocket_kb)
    asked = rows_of(data / "okvqa/train.jsonl")
    asked[0]["answers"] = {"Collie": 1.0, "sheepdog": 0.667}
    asked[1]["answers"] = {"collie dog": 1.0}
    asked[2]["answers"] = {"dog": 1.0}  # what others are called, too
    write_lines(data / "okvqa/train.jsonl", asked)
    write_lines(data / "okvqa/val.jsonl", [{**asked[0], "image": "000000000100.webp"}])
    mixture = read(data, pocket_kb)
    okvqa = [e for e in mixture.examples if e.source == "okvqa"]
    # One has no answer left, and the photo of another is held out.
    assert len([e for e in okvqa if e.split != "val"]) == len(asked) - 2
    assert okvqa[0].answers == {"sheepdog": 0.667}
    assert okvqa[-1].split == "val"
    assert okvqa[-1].answers == {"collie": 1.0, "sheepdog": 0.667}
    trained = [e for e in mixture.examples if e.split != "val"]
    assert not any("collie" in text for e in trained for text in e.answers)
    assert any("dog" in e.answers for e in trained)
    assert ("dog", "collie") not in names_shown(mixture.things)
    assert ("dog", "collie") in names_shown(mixture.checks["val"])  # next to others, in a crowd
    assert not UNSEEN["passages"] & mixture.facts.keys()
    assert "passages:a" in mixture.facts
    unseen = [mixture.examples[row] for row in mixture.select("unseen", "val")]
    assert (("Collies come from Scotland.",),) in {e.hops for e in unseen}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"photo": "coco/000000000200.webp"}, r"coco/000000000200.webp, which held_out.json"),
        ({"photo": "entities/val0.webp"}, r"entities/val0.webp, which held_out.json"),
        ({"entity": "dog:collie"}, r"dog:collie, which unseen.json"),
    ],
)
def test_everything_in_a_crowded_image_is_checked(
    data: Path, pocket_kb: Path, change: dict[str, str], says: str
) -> None:
    rows = rows_of(add_crowded(pocket_kb) / "train.jsonl")
    rows[-1]["things"][2] |= change  # one that is not asked about
    write_lines(pocket_kb / "train.jsonl", rows)
    with pytest.raises(UserError, match=f"train.jsonl row {len(rows) - 1} trains on {says}"):
        read(data, pocket_kb)


def test_a_row_about_an_unseen_entity_is_refused(data: Path, pocket_kb: Path) -> None:
    rows = rows_of(add_crowded(pocket_kb) / "train.jsonl")
    rows[2]["entity"] = "dog:collie"
    write_lines(pocket_kb / "train.jsonl", rows)
    with pytest.raises(UserError, match=r"row 2 trains on dog:collie, which unseen.json holds out"):
        read(data, pocket_kb)


def test_the_name_of_a_country_stays_an_answer(data: Path, pocket_kb: Path) -> None:
    land = {"entity": "country:re", "name": "Red", "names": ["Red"], "kind": "country"}
    (pocket_kb / "unseen.json").write_text(json.dumps([{**land, "passages": []}]))
    mixture = read(data, pocket_kb)
    assert any("red" in mixture.examples[row].answers for row in mixture.select("okvqa", "train"))


def test_types_and_things_of_okvqa(data: Path) -> None:
    assert {e.type for e in read(data).examples} == {None}
    types = [
        {"question_id": number, "type": ("lookup", "other")[number % 2]} for number in range(6)
    ]
    write_lines(data / "okvqa/train_types.jsonl", types)
    write_lines(data / "okvqa/val_types.jsonl", [{"question_id": 0, "type": "ocr"}])
    objects = [{"question_id": 4, "span": "the ground", "object": "sky"}]
    write_lines(data / "okvqa/train_objects.jsonl", objects)
    examples = [e for e in read(data).examples if e.source == "okvqa"]
    train, val = ([e for e in examples if (e.split == "val") is which] for which in (False, True))
    assert [e.type for e in train[:7]] == ["lookup", "other"] * 3 + [None]
    assert [(e.span, e.thing) for e in train[3:6]] == [("", ""), ("the ground", "sky"), ("", "")]
    assert [e.type for e in val[:2]] == ["ocr", None]
    assert not any(e.span or e.thing for e in val)


def test_a_thing_that_is_unseen_is_not_known(data: Path, pocket_kb: Path) -> None:
    objects = [
        {"question_id": number, "span": "this dog", "object": name}
        for number, name in enumerate(("collie", "pug"))
    ]
    write_lines(data / "okvqa/train_objects.jsonl", objects)
    for folder, known in ((None, {"", "collie", "pug"}), (add_crowded(pocket_kb), {"", "pug"})):
        assert {e.thing for e in read(data, folder).examples} == known


def test_facts_of_fvqa(data: Path) -> None:
    mixture = read(write_fvqa(data))
    train = [mixture.examples[row] for row in mixture.select("fvqa", "train")]
    assert {e.fact for e in train} == {f"{colour} is for painting" for colour in COLOURS}
    assert {(e.type, e.category) for e in train} == {("image", "conceptnet"), ("kb", "conceptnet")}
    assert all(e.needs_knowledge == (e.type == "kb") for e in train)
    assert not any(e.hops for e in train)
    assert len(mixture.select("fvqa", "val")) == 4
    assert all(
        is_held_out(mixture.examples[row].image) for row in mixture.select("fvqa", "held-out")
    )


def test_the_second_set_of_coco_photos_is_read(data: Path) -> None:
    more = photo_names(600, 6)
    write_zip(data / "coco/more.zip", more)
    labels = [{"image": name, "labels": ["toaster"]} for name in more]
    write_lines(data / "coco/more_labels.jsonl", labels)
    asked = [{"image": n, "question": "What is it?", "answers": {"toaster": 3}} for n in more]
    write_lines(data / "coco/more_questions.jsonl", asked)
    mixture = read(data)
    kept = {name for name in more if not is_held_out(name)}
    labelled = {photo for photo, shown in mixture.labels.items() if "toaster" in shown}
    assert names_of(mixture, labelled) == {f"more/{name}" for name in kept}
    asked_of = {mixture.examples[row].image for row in mixture.select("coco", "train")}
    assert kept <= asked_of


def test_answers_that_need_a_passage_are_not_in_the_vocabulary() -> None:
    """The drafter is to abstain from these."""
    hops = (("It comes from Hungary.",),)
    known = [make_example(0, "?", {"pug": 1.0}, "crowded", "train")] * 4
    unknown = [make_example(0, "?", {"hungary": 1.0}, "crowded", "train", hops)] * 4
    assert answer_vocabulary([*known, *unknown], 10) == ("pug",)


def test_some_questions_alone_keep_their_photos_and_what_these_show(
    data: Path, pocket_kb: Path
) -> None:
    mixture = read(data, add_crowded(pocket_kb))
    rows = [*range(0, len(mixture.examples), 3)]
    some = mixture.only(rows)
    photos, before = ({row: name for name, row in one.photos.items()} for one in (some, mixture))
    assert len(photos) == len({mixture.examples[row].photo for row in rows}) < len(before)
    for row, example in zip(rows, some.examples, strict=True):
        was = mixture.examples[row]
        assert photos[example.photo] == before[was.photo]
        assert dataclasses.replace(example, photo=was.photo) == was
        assert some.labels.get(example.photo) == mixture.labels.get(was.photo)
        assert some.shown().get(example.photo) == mixture.shown().get(was.photo)
    everything = mixture.only(range(len(mixture.examples)))
    assert everything.only(range(len(mixture.examples))) == everything
