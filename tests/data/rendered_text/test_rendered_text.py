"""The rendered-text set: the same bytes for a seed, splits apart, every answer derivable."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from skipqa.data.held_out import is_held_out
from skipqa.data.pocket_kb.text import accepted, plain, says
from skipqa.data.rendered_text import fonts
from skipqa.data.rendered_text.build import Knowledge, build, check
from skipqa.data.rendered_text.carriers import CARRIERS
from skipqa.data.rendered_text.scene import SIDE, background, paste
from skipqa.data.rendered_text.wording import draw_text, split_of
from skipqa.errors import UserError
from skipqa.knowledge.sources import Document

PICTURES = {"train": 24, "val": 8}
COUNTRIES = (
    "Peru,Chile,Kenya,Ghana,Malta,Nepal,Qatar,Haiti,Italy,Japan,Libya,Niger,Samoa,Sudan,Syria,"
    "Tonga,Wales,Yemen,Zaire,India,Spain,Egypt,Cuba,Fiji,Iran,Iraq,Laos,Mali,Oman,Togo"
).split(",")


def uncut(documents: Sequence[Document]) -> Iterable[tuple[str, str]]:
    return ((document.id, document.lead + document.text) for document in documents)


def field(code: str, country: str, name: str, text: str) -> Document:
    lead = f"{country}, {name}: "
    return Document(f"factbook:{code}:{name}", f"{country}: {name}", text, "factbook", lead)


def countries() -> list[Document]:
    found = []
    for number, name in enumerate(COUNTRIES):
        code = f"{chr(97 + number // 26)}{chr(97 + number % 26)}"
        capital = f"{name}ville"
        found += [
            field(code, name, "government:capital", f"name: {capital}; coordinates: 1 N"),
            field(code, name, "government:independence", "5 July 1811 (from Spain)"),
            field(code, name, "communications:internet-country-code", f".{code}"),
            field(code, name, "economy:exchange-rates", "Currency: forints (HUF) per dollar -"),
        ]
    return found


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return Knowledge([], countries(), fonts.own(), uncut)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "coco"
    folder.mkdir()
    names = [f"{number:012d}.webp" for number in range(400)]
    lines = (json.dumps({"image": name, "labels": ["dog", "person"]}) + "\n" for name in names)
    (folder / "labels.jsonl").write_text("".join(lines))
    buffer = BytesIO()
    Image.effect_noise((32, 32), 60).convert("RGB").save(buffer, "WEBP")
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for name in names:
            archive.writestr(name, buffer.getvalue())
    return folder.parent


@pytest.fixture(scope="module")
def built(data: Path, knowledge: Knowledge, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "set"
    build(data, folder, 7, knowledge, pictures=PICTURES)
    return folder


def rows(built: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (built / f"{split}.jsonl").read_text().splitlines()]


def test_the_same_seed_gives_the_same_bytes(
    data: Path, knowledge: Knowledge, built: Path, tmp_path: Path
) -> None:
    again = build(data, tmp_path / "again", 7, knowledge, pictures=PICTURES)
    assert again == json.loads((built / "manifest.json").read_text())
    few = {"train": 2, "val": 1}
    one, other = (
        build(data, tmp_path / str(seed), seed, knowledge, pictures=few)["checksum"]
        for seed in (7, 8)
    )
    assert one != other


def test_photos_of_val_are_held_out_and_its_names_are_not_in_train(built: Path) -> None:
    for split in PICTURES:
        found = rows(built, split)
        assert len(found) == 2 * PICTURES[split]
        assert len({row["image"] for row in found}) == PICTURES[split]
        for row in found:
            assert is_held_out(row["photo"]) == (split == "val")
            if row["subset"] == ["knowledge"]:
                words = plain(row["text"]).split()
                assert split in {split_of(word) for word in words}


def test_every_answer_of_val_is_derivable(built: Path) -> None:
    stated = {document.id: document.lead + document.text for document in countries()}
    kinds = set()
    for row in rows(built, "train") + rows(built, "val"):
        (kind,) = row["subset"]
        kinds.add(kind)
        answers = accepted(row["answers"])
        if kind == "written":
            assert says(row["text"], answers)
        elif kind == "knowledge":
            assert row["gold"]
            assert all(says(stated[id], answers) for id in row["gold"])
        else:
            assert not row["gold"]
        assert row["text"] in row["texts"]
        assert row["box"] in row["boxes"]
    assert kinds == {"written", "knowledge", "plain"}


def test_a_row_that_nothing_states_is_refused(built: Path) -> None:
    row = next(r for r in rows(built, "train") if r["subset"] == ["written"])
    check([row], None)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        check([row | {"text": "other words"}], None)  # type: ignore[arg-type]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_text_is_where_its_box_says(carrier: str) -> None:
    """Drawn with and without letters, a thing differs in the box of its text alone."""
    made, face = CARRIERS[carrier], fonts.own()["Aileron"]
    pictures = []
    for lines in (["KERALA"], ["IIIIII"]):
        random = Random(3)
        drawn = made.draw(lines, face, made.colours[0], Random(1))
        left, top, right, bottom = drawn.text
        assert 0 <= left < right <= drawn.picture.width
        assert 0 <= top < bottom <= drawn.picture.height
        found = paste(background(Image.new("RGB", (8, 8))), drawn, [], random)
        assert found is not None
        picture, pasted = found
        assert picture.size == (SIDE, SIDE)
        assert all(0 <= side <= SIDE for side in pasted.text)
        pictures.append((picture, pasted))
    (picture, pasted), _ = pictures
    left, top, right, bottom = map(round, pasted.text)
    inside = np.asarray(picture.convert("L"), dtype=np.float64)[top:bottom, left:right]
    assert inside.std() > 10, "letters and their ground differ"


def test_a_thing_that_finds_no_room_is_not_pasted() -> None:
    made, face = CARRIERS["sign"], fonts.own()["Aileron"]
    drawn = made.draw(["WIDE"], face, "red", Random(1))
    everything = [(0.0, 0.0, float(SIDE), float(SIDE))]
    assert paste(background(Image.new("RGB", (8, 8))), drawn, everything, Random(0)) is None


def test_a_plate_names_no_place() -> None:
    text = draw_text("plate", "val", {}, 1.0, Random(0))
    assert text.place is None
    assert len(text.whole.replace(" ", "")) == 7


def test_missing_data_and_an_existing_folder_are_said_so(
    data: Path, knowledge: Knowledge, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="delete it or choose another"):
        build(data, tmp_path, 7, knowledge)
    with pytest.raises(UserError, match="does not exist"):
        build(tmp_path, tmp_path / "out", 7, knowledge)
    with pytest.raises(UserError, match="photos are needed"):
        build(data, tmp_path / "out", 7, knowledge, pictures={"val": 10_000})
    assert not (tmp_path / "out").exists()
