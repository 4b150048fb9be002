"""Photos as pixels, and pixels as what the tower sees."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_training import networks, photo_names, write_zip

from skipqa.errors import UserError
from skipqa.training import photos


@pytest.fixture
def table(tmp_path: Path) -> dict[tuple[Path, str], int]:
    """Five photos of two zips, their rows mixed."""
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    write_zip(first, photo_names(0, 3))
    write_zip(second, photo_names(10, 2))
    names = [*((first, name) for name in photo_names(0, 3)), *((second, n) for n in photo_names(10, 2))]  # fmt: skip  # noqa: E501
    return dict(zip(names, (4, 0, 2, 1, 3), strict=True))


def test_every_photo_is_in_its_row(
    table: dict[tuple[Path, str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photos, "CHUNK", 2)  # several jobs, in processes
    counted: list[tuple[int, int]] = []
    pixels = photos.decode(table, lambda *done: counted.append(done))
    assert counted == [(2, 5), (3, 5), (5, 5)]
    for (archive, name), row in table.items():
        with zipfile.ZipFile(archive) as file:
            image = Image.open(io.BytesIO(file.read(name))).convert("RGB")
        size = (photos.PIXELS, photos.PIXELS)
        expected = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
        assert np.array_equal(pixels[row].permute(1, 2, 0).numpy(), expected)


def test_what_is_no_photo_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.webp", "Once upon a time")
    with pytest.raises(UserError, match=r"a.zip holds no photo at notes.webp"):
        photos.decode({(path, "notes.webp"): 0})


def test_views(table: dict[tuple[Path, str], int]) -> None:
    pixels, tower = photos.decode(table), networks().vision
    seen = photos.see(tower, pixels, torch.device("cpu"), views=3)
    assert seen.features.shape == (3, 5, photos.CELLS, tower.config.features)
    plain = pixels.float() / 127.5 - 1
    with torch.inference_mode():
        for view, shown in enumerate((plain, plain.flip(3))):
            expected = tower(shown).flatten(2).transpose(1, 2).bfloat16()
            torch.testing.assert_close(seen.features[view], expected, rtol=0.02, atol=1e-3)
        logits = tower.classifier(tower(plain).mean((2, 3)))
    torch.testing.assert_close(seen.overview, logits.softmax(-1))
    again = photos.see(tower, pixels, torch.device("cpu"), views=3)
    assert torch.equal(seen.features, again.features)


def test_a_crop_shows_a_part_of_the_picture() -> None:
    """Of a picture whose pixels say where they are."""
    across = torch.linspace(-1, 1, 64).expand(200, 64, 64)
    place = torch.stack((across, across.transpose(1, 2), torch.zeros_like(across)), dim=1)
    cropped = photos._cropped(place, torch.Generator().manual_seed(0))
    width = (cropped[:, 0].amax((1, 2)) - cropped[:, 0].amin((1, 2))) / 2
    height = (cropped[:, 1].amax((1, 2)) - cropped[:, 1].amin((1, 2))) / 2
    area = width * height
    assert 0.5 < float(area.min()) < 0.7
    assert 0.9 < float(area.max()) <= 1.01
    mirrored = (cropped[:, 0, 32, 40] < cropped[:, 0, 32, 20]).float().mean()
    assert 0.35 < float(mirrored) < 0.65
