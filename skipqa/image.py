"""Any picture file into upright RGB pixels, or one clear line about why not."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from skipqa.errors import UserError

MAX_PIXELS = 100_000_000  # 300 MB as RGB; a phone's panorama fits, a decompression bomb does not


_DAMAGE = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, RuntimeError),
    *(ArithmeticError, struct.error, zlib.error),
)


def open_image(source: Path | str | IO[bytes] | Image.Image) -> Image.Image:
    """The first frame, upright, in RGB, transparency laid on white."""
    if isinstance(source, Image.Image):
        return _to_rgb(source)
    name = source if isinstance(source, (str, Path)) else "the uploaded file"
    try:
        with warnings.catch_warnings():
            # Our own limit below decides about size, and broken tags of a picture that can be
            # read are nobody's concern.
            warnings.simplefilter("ignore")
            with Image.open(source) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise UserError(
                        f"{name} is {width} x {height} pixels, over the limit of "
                        f"{MAX_PIXELS // 1_000_000} megapixels: scale it down first"
                    )
                return _to_rgb(image)
    except FileNotFoundError:
        raise UserError(f"no such file: {name}") from None
    except IsADirectoryError:
        raise UserError(f"{name} is a folder, not an image") from None
    except PermissionError:
        raise UserError(f"{name} cannot be read: permission denied") from None
    except UnidentifiedImageError:
        raise UserError(f"{name} is not an image that can be read") from None
    except Image.DecompressionBombError:
        raise UserError(f"{name} is far too large for an image: scale it down first") from None
    except UserError:
        raise
    # Decoders report broken data in many ways; all of them mean the same to the user.
    except _DAMAGE as error:
        raise UserError(f"{name} is damaged or cut short: {error}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES, "a cut file must be an error, not grey pixels"
    if getattr(image, "is_animated", False):
        image.seek(0)
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _to_8_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """High-depth grey scaled by its own format's range; Pillow's convert would clip it."""
    values = np.asarray(image, dtype=np.float32)
    if image.mode == "F":
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
    else:
        low, high = 0.0, 65_535.0
    scaled = np.nan_to_num((values - low) / max(high - low, 1e-12)).clip(0, 1) * 255
    return Image.fromarray(scaled.round().astype(np.uint8))
