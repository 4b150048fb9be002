"""An index that knows things by sight: taught from files, damaged, of another encoder, asked."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

import skipqa
from skipqa.backbones.presets.pocket import Pocket
from skipqa.cli.labelled import labelled_photos, name_of
from skipqa.cli.main import app
from skipqa.errors import UserError
from skipqa.knowledge import index, photos
from skipqa.knowledge.photos import LabelledPhoto
from skipqa.knowledge.sources import open_source
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.nn.prototypes import PrototypeTagger
from skipqa.pipeline import Pipeline
from skipqa.types import Prototypes

COLOURS = {"Zorblax": "red", "Quimbley": "blue"}


def picture(colour: str, size: int = 96) -> Image.Image:
    image = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(image)
    if colour == "red":
        draw.ellipse((10, 10, size - 10, size - 10), fill=colour)
    else:
        draw.polygon([(size // 2, 5), (size - 5, size - 5), (5, size - 5)], fill=colour)
    return image


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("album")
    for name, colour in COLOURS.items():
        picture(colour).save(folder / f"{name}.png")
    picture("red", 80).save(folder / "Zorblax 2.png")
    (folder / "notes.txt").write_text("no photo")
    return folder


@pytest.fixture(scope="module")
def taught(album: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taught")
    notes = folder / "notes.jsonl"
    notes.write_text(
        "".join(
            json.dumps({"id": name, "title": name, "text": f"The {name} was made by {maker}."})
            + "\n"
            for name, maker in (("Zorblax", "Rahima Begum"), ("Quimbley", "Osvald Kriegsmann"))
        )
    )
    index.build(folder / "index", [open_source(str(notes))], LexicalEncoder.default())
    result = CliRunner().invoke(
        app, ["index", "photos", str(folder / "index"), str(album), "--json"]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["names"], told["new"]) == (2, 2)
    return folder / "index"


def test_a_file_says_what_it_shows() -> None:
    names = {
        "Rex.jpg": "Rex",
        "Rex 2.jpg": "Rex",
        "Rex_(12).png": "Rex",
        "blue_mug-3.webp": "blue mug",
        "7.png": "7",
        "A4 paper.jpg": "A4 paper",
    }
    assert {file: name_of(Path(file)) for file in names} == names


def test_what_is_read_is_what_was_written(taught: Path) -> None:
    found = photos.read(taught)
    assert found is not None
    assert set(found.names) == {"zorblax", "quimbley"}
    assert found.pooled_NE.shape == (2, 2 * 1_280)
    assert torch.allclose(found.meanings_Nd.norm(dim=1), torch.ones(2), atol=1e-2)
    assert photos.read(taught.parent) is None
    told = CliRunner().invoke(app, ["index", "info", str(taught), "--json"])
    assert json.loads(told.stdout)["known_by_sight"] == 2


def test_the_pipeline_knows_them_by_sight(taught: Path, album: Path) -> None:
    pipeline = skipqa.load(index=taught)
    backbone = pipeline.backbone
    assert isinstance(backbone, Pocket)
    assert backbone.concepts.from_photos == 2
    tagger = backbone.vision.tagger  # type: ignore[attr-defined]
    assert isinstance(tagger, PrototypeTagger)
    for name, colour in COLOURS.items():
        tokens, _ = backbone.encode_low_res(picture(colour, 120))
        best = tokens.overview[-2:].argmax()
        assert backbone.concepts[len(backbone.concepts) - 2 + int(best)].name == name.lower()
    answer = pipeline.answer(album / "Zorblax.png", "Who made this?")
    assert any(passage.title == "Zorblax" for passage in answer.evidence)


def test_an_index_without_photos_is_as_before(pipeline: Pipeline) -> None:
    assert pipeline.backbone.concepts.from_photos == 0


def test_photos_of_another_encoder_are_refused(taught: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(taught, tmp_path / "index")
    found = photos.read(folder)
    assert found is not None
    other = Prototypes(found.names, found.kinds, found.pooled_NE, found.meanings_Nd, "another")
    photos.write(folder, other)
    with pytest.raises(UserError, match="another vision encoder"):
        skipqa.load(index=folder)
    assert skipqa.load(index=folder, trained=False)  # nothing there reads them


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_a_damaged_file_is_one_line(content: bytes, taught: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(taught, tmp_path / "index")
    (folder / photos.FILE).write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        skipqa.load(index=folder)


def test_verify_reads_the_photos_too(taught: Path, tmp_path: Path) -> None:
    """A flipped bit in a tensor is found, and what was written before there was a checksum is not
    refused."""
    folder = tmp_path / "index"
    shutil.copytree(taught, folder)
    assert photos.verify(folder) == []
    path = folder / photos.FILE
    flipped = bytearray(path.read_bytes())
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    assert photos.read(folder) is not None, "nothing else notices it"
    done = CliRunner().invoke(app, ["index", "verify", str(folder), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["faults"] == ["photos.safetensors fails its sha256 check"]
    with safe_open(path, framework="pt") as file:
        about = {name: value for name, value in file.metadata().items() if name != "sha256"}
        tensors = {name: file.get_tensor(name) for name in ("pooled", "scale", "meanings")}
    save_file(tensors, path, metadata=about)
    assert photos.verify(folder) == []
    path.write_bytes(b"nonsense")
    (told,) = photos.verify(folder)
    assert "is damaged" in told


def test_of_two_indexes_the_first_says_how_a_thing_looks(taught: Path, tmp_path: Path) -> None:
    found = photos.read(taught)
    assert found is not None
    other = tmp_path / "other"
    other.mkdir()
    photos.write(
        other,
        Prototypes(
            ("kite", "zorblax"), ("", ""), -found.pooled_NE, found.meanings_Nd, found.encoder
        ),
    )
    both = photos.of_all([taught, other, tmp_path], lambda: found.encoder)
    assert both is not None
    assert set(both.names) == {"zorblax", "quimbley", "kite"}
    own, joined = (one.pooled_NE[one.names.index("zorblax")] for one in (found, both))
    assert torch.equal(own, joined)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "is empty"),
        ([{"name": "a", "image": "none.png"}], "no photo 'none.png'"),
        ([{"image": "Zorblax.png"}], "name"),
        ([{"name": " ", "image": "Zorblax.png"}], "needs a name"),
    ],
)
def test_bad_lists_are_one_line(
    rows: list[dict[str, str]], complaint: str, album: Path, tmp_path: Path, pipeline: Pipeline
) -> None:
    listed = tmp_path / "list.jsonl"
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    backbone = pipeline.backbone
    assert isinstance(backbone, Pocket)
    with pytest.raises(UserError, match=complaint):
        photos.describe(labelled_photos(listed, album, lambda *_: None), backbone.vision)


def test_a_photo_that_cannot_be_opened_is_named(album: Path, tmp_path: Path) -> None:
    """Not passed over: it is somebody's photo of a thing."""
    folder = shutil.copytree(album, tmp_path / "album")
    (folder / "Rex.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(UserError, match=r"Rex\.HEIC is not an image that can be read: save it as"):
        list(labelled_photos(folder, None, lambda *_: None))


def test_a_name_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    picture("red").save(tmp_path / os.fsdecode(b"caf\xe9.png"))
    with pytest.raises(UserError, match=r"the name of the photo .* is not UTF-8: rename it"):
        list(labelled_photos(tmp_path, None, lambda *_: None))


def test_one_photo_is_no_list_of_photos(album: Path) -> None:
    with pytest.raises(UserError, match=r"Zorblax\.png is one photo: give the folder"):
        list(labelled_photos(album / "Zorblax.png", None, lambda *_: None))


def test_a_folder_without_photos_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no photos"):
        next(labelled_photos(tmp_path, None, lambda *_: None))
    with pytest.raises(UserError, match=r"for a \.jsonl"):
        next(labelled_photos(tmp_path, tmp_path, lambda *_: None))


def test_a_mirrored_flag_is_another_flag(pipeline: Pipeline) -> None:
    backbone = pipeline.backbone
    assert isinstance(backbone, Pocket)
    image = Image.new("RGB", (64, 64), "green")
    image.paste("red", (0, 0, 32, 64))
    flag, thing = (
        photos.describe([LabelledPhoto("x", image, kind)], backbone.vision)
        for kind in ("country", "dog")
    )
    assert flag.kinds == ("flag",)
    assert not torch.equal(flag.pooled_NE, thing.pooled_NE)
