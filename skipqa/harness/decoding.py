"""Photos are decoded whole or not at all, also in the process of lmms-eval.

lmms-eval tells Pillow, for all code of its process, to fill a cut file with grey; `skipqa.image`
refuses to work like that, since a grey photo gets an answer and nobody notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from PIL import ImageFile

_LOCK = RLock()  # the setting is one for all threads


@contextmanager
def whole_photos() -> Iterator[None]:
    """Inside, a cut file is an error; afterwards Pillow does what it did before."""
    with _LOCK:
        before = ImageFile.LOAD_TRUNCATED_IMAGES
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = before
