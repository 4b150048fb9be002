"""Any image file into upright RGB pixels, or one clear line about why not.

Enters: a path, an open binary file or a Pillow image. Leaves: the first frame in RGB, turned as
its EXIF data say, transparency composited on white. Files come from anywhere, so only common
formats are opened, and an image that decodes into far more pixels than any camera takes is refused
before it is decoded. Knows nothing of what the pixels are for.
"""

from __future__ import annotations

import math
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO

import numpy as np
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from skipqa.errors import UserError

# What cameras, phones, scanners and browsers write. Pillow reads some forty more; each is one more
# decoder for a hostile file to reach. Its JPEG reader also opens MPO, the stereo photos of phones.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "AVIF")

MAX_PIXELS = 64_000_000  # the widest panorama of a phone has 63 million, a 48 MP photo fits too
# Larger images are reduced while they are converted, to about REDUCED_PIXELS. At or below it every
# pixel is kept: the networks see 512 px at most, but zoom crops the image first.
LARGE_PIXELS = 16_000_000
REDUCED_PIXELS = 4_000_000
MAX_SCANS = 30  # encoders write ten, and each costs a pass over all pixels
MAX_CHUNKS = 50_000  # of a PNG, each of which Pillow reads by itself; encoders write some thousands
PYTHON_PIXELS = 1_000_000  # for codecs that Pillow has in Python, such as the runs of a BMP
TILE_WIDTH, TILE_LENGTH = 322, 323  # TIFF tags
PNG = b"\x89PNG\r\n\x1a\n"
STRIP_PIXELS = 1_000_000  # converted at a time, so that no mode needs a second full-size copy

_DAMAGE = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, RuntimeError),
    *(ArithmeticError, MemoryError, struct.error, zlib.error),
)

_UPRIGHT = {  # EXIF orientation: what puts the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(source: Path | str | IO[bytes] | Image.Image) -> Image.Image:
    """The first frame, upright, in RGB, transparency composited on white."""
    if isinstance(source, Image.Image):
        name = "the image"
    else:
        name = str(source) if isinstance(source, (str, Path)) else "the uploaded file"
    try:
        with warnings.catch_warnings():
            # Our own limit below decides about size, and broken tags of an image that can be
            # read are nobody's concern.
            warnings.simplefilter("ignore")
            if isinstance(source, Image.Image):
                if source.tell() != 0:
                    source.seek(0)
                _check_cost(source, name)
                return _read(source)
            _check_chunks(source, name)
            with Image.open(source, formats=FORMATS) as image:
                _check_cost(image, name)
                if (factor := _reduction(image)) > 1:  # a JPEG decoder does part of it, faster
                    image.draft(None, (image.width // factor or 1, image.height // factor or 1))
                return _read(image)
    except FileNotFoundError:
        # A path has one slash where the address had two
        advice = ": download it first" if name.startswith(("http:/", "https:/")) else ""
        raise UserError(f"no such file: {name}{advice}") from None
    except IsADirectoryError:
        raise UserError(f"{name} is a folder, not an image") from None
    except PermissionError:
        raise UserError(f"{name} cannot be read: permission denied") from None
    except UnidentifiedImageError:
        known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise UserError(f"{name} is not an image that can be read: save it as {known}") from None
    except Image.DecompressionBombError:
        raise UserError(f"{name} is far too large for an image: scale it down first") from None
    except UserError:
        raise
    # Decoders report broken data in many ways; all of them mean the same to the user.
    except _DAMAGE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{name} is damaged or cut short: {reason}") from None


def _check_cost(image: Image.Image, name: str) -> None:
    """Refuse, before anything is decoded, what takes far more memory or time than a photo."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UserError(
            f"{name} is {width} x {height} pixels, over the limit of "
            f"{MAX_PIXELS // 1_000_000} megapixels: scale it down first"
        )
    tags = getattr(image, "tag_v2", {})  # of a TIFF, whose tiles may be larger than the image
    if (tile := tags.get(TILE_WIDTH, 0) * tags.get(TILE_LENGTH, 0)) > MAX_PIXELS:
        raise UserError(f"{name} has {width} x {height} pixels in a tile of {tile:,}: save it anew")
    codecs = {str(tile[0]) for tile in getattr(image, "tile", ())}
    if codecs & set(Image.DECODERS) and width * height > PYTHON_PIXELS:
        raise UserError(f"{name} is compressed in a way that takes too long to read: save it anew")
    if image.info.get("progressive") and (scans := _count_scans(image)) > MAX_SCANS:
        raise UserError(f"{name} is a JPEG of {scans} scans, over the limit of {MAX_SCANS}")


def _check_chunks(source: Path | str | IO[bytes], name: str) -> None:
    """Refuse a PNG of very many chunks, which are read one by one when it is opened."""
    with Path(source).open("rb") if isinstance(source, str | Path) else nullcontext(source) as file:
        start = file.tell()
        try:
            if file.read(len(PNG)) != PNG:
                return
            for _ in range(MAX_CHUNKS):
                head = file.read(8)
                if len(head) < 8 or head[4:] == b"IEND":
                    return
                file.seek(int.from_bytes(head[:4]) + 4, 1)  # its data and its checksum
        finally:
            file.seek(start)
    raise UserError(f"{name} is a PNG of more than {MAX_CHUNKS:,} chunks: save it anew")


def _count_scans(image: Image.Image) -> int:
    """Start-of-scan markers in a JPEG file; compressed data never contain these two bytes."""
    file = getattr(image, "fp", None)
    if file is None:  # already decoded
        return 0
    position = file.tell()
    file.seek(0)
    scans = file.read().count(b"\xff\xda")
    file.seek(position)
    return int(scans)


def _read(image: Image.Image) -> Image.Image:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES, "a cut file must be an error, not grey pixels"
    image.load()
    turn = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    rgb = _to_rgb(image, _reduction(image))
    return rgb if turn is None else rgb.transpose(turn)


def _reduction(image: Image.Image) -> int:
    """By which factor each side shrinks; 1 for an ordinary photo."""
    pixels = image.width * image.height
    return 1 if pixels <= LARGE_PIXELS else math.ceil(math.sqrt(pixels / REDUCED_PIXELS))


def _to_rgb(image: Image.Image, factor: int) -> Image.Image:
    """A new image, converted strip by strip and reduced by averaging `factor` x `factor` pixels."""
    grey_range = _grey_range(image)
    rgb = Image.new("RGB", (-(-image.width // factor), -(-image.height // factor)))
    for top, strip in _strips(image, factor):
        if grey_range is not None:
            strip = _to_8_bits(strip, *grey_range)
        if strip.has_transparency_data:
            strip = strip.convert("RGBA")
            strip = Image.alpha_composite(Image.new("RGBA", strip.size, "white"), strip)
        rgb.paste(strip.convert("RGB").reduce(factor), (0, top // factor))
    return rgb


def _strips(image: Image.Image, factor: int) -> Iterator[tuple[int, Image.Image]]:
    """The image from top to bottom in strips of whole blocks, each with its first row."""
    rows = max(1, STRIP_PIXELS // (image.width * factor)) * factor
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _grey_range(image: Image.Image) -> tuple[float, float] | None:
    """The values of black and white in grey of more than 8 bits; Pillow's convert would clip it."""
    if image.mode == "F":
        values = (np.asarray(strip) for _, strip in _strips(image, 1))
        lows, highs = zip(*((np.nanmin(strip), np.nanmax(strip)) for strip in values), strict=True)
        return float(np.nanmin(lows)), float(np.nanmax(highs))
    if image.mode == "I" or image.mode.startswith("I;16"):
        return 0.0, 65_535.0
    return None


def _to_8_bits(image: Image.Image, low: float, high: float) -> Image.Image:
    values = np.asarray(image, dtype=np.float32)
    scaled = np.nan_to_num((values - low) / max(high - low, 1e-12)).clip(0, 1) * 255
    return Image.fromarray(scaled.round().astype(np.uint8))
