"""Two photos to ask about. Property tests run the same cases every time and may take as long as
the machine needs."""

from pathlib import Path

import pytest
from hypothesis import settings
from PIL import Image

from skipqa.tasks.photos import Photos

settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small photos of nothing in particular."""
    folder = tmp_path_factory.mktemp("photos")
    for name, colour in (("a.png", (200, 120, 40)), ("b.png", (20, 90, 160))):
        photo = Image.new("RGB", (48, 48), colour)
        photo.paste((255, 255, 255), (8, 8, 24, 30))
        photo.save(folder / name)
    return folder


@pytest.fixture(scope="module")
def photos(folder: Path) -> Photos:
    return Photos(folder)
