"""Any file somebody may hand over: the right pixels, or one line about why not."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from skipqa.errors import UserError
from skipqa.image import MAX_PIXELS, open_image

ORIENTATION = 0x0112  # the EXIF tag


def picture(width: int = 31, height: int = 24) -> Image.Image:
    """Smooth but without any symmetry, so that a turned or mirrored copy differs."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [255 * x / max(width - 1, 1), 255 * y / max(height - 1, 1), (x * 7 + y * 3) % 256]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def pixels(image: Image.Image) -> NDArray[np.int64]:
    return np.asarray(image).astype(np.int64)


def saved(image: Image.Image, kind: str, **options: object) -> io.BytesIO:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return io.BytesIO(buffer.getvalue())


def refusal(source: Path | str | io.BytesIO) -> str:
    with pytest.raises(UserError) as error:
        open_image(source)
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


def png(width: int, height: int, scanlines: bytes) -> bytes:
    """A PNG of 8-bit grey by hand: the header may claim any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(scanlines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


class TestRefused:
    def test_missing(self, tmp_path: Path) -> None:
        assert "no such file" in refusal(tmp_path / "none.jpg")

    def test_folder(self, tmp_path: Path) -> None:
        assert "folder" in refusal(tmp_path)

    def test_text_named_jpg(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.jpg"
        path.write_text("It was a dark and stormy night.\n" * 50)
        assert "not an image" in refusal(path)

    def test_empty(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.png"
        path.touch()
        assert "not an image" in refusal(path)

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
    @pytest.mark.parametrize("part", [0.5, 0.9])
    def test_cut_short(self, tmp_path: Path, kind: str, part: float) -> None:
        data = saved(picture(200, 150), kind).getvalue()
        path = tmp_path / f"cut.{kind.lower()}"
        path.write_bytes(data[: int(part * len(data))])
        assert str(path) in refusal(path)

    def test_decompression_bomb(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.png"
        path.write_bytes(png(60_000, 60_000, b"\0" * 1_000))
        assert path.stat().st_size < 200
        assert "scale it down" in refusal(path)

    def test_just_over_our_limit(self, tmp_path: Path) -> None:
        """Pillow itself would only warn at this size."""
        path = tmp_path / "large.png"
        path.write_bytes(png(MAX_PIXELS // 1_000 + 1, 1_000, b""))
        assert "100 megapixels" in refusal(path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
    def test_permission_denied(self, tmp_path: Path) -> None:
        path = tmp_path / "secret.png"
        picture().save(path)
        path.chmod(0)
        assert "permission denied" in refusal(path)

    def test_unreadable_variant_of_a_known_format(self) -> None:
        """Pillow's decoders give up with exceptions of many kinds; this one is a RuntimeError."""
        dds = struct.pack("<4s7I44x8I20x", b"DDS ", 124, 0, 4, 4, 0, 0, 0, 32, *[0] * 7)
        refusal(io.BytesIO(dds))


class TestConverted:
    def test_rgb_is_untouched(self) -> None:
        image = picture()
        assert np.array_equal(pixels(open_image(saved(image, "PNG"))), pixels(image))

    @pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
    def test_animation_shows_its_first_frame(self, kind: str) -> None:
        frames = [Image.new("RGB", (16, 12), colour) for colour in ("red", "green", "blue")]
        file = saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
        opened = open_image(file)
        assert opened.mode == "RGB"
        assert np.abs(pixels(opened) - (255, 0, 0)).max() <= 2

    def test_animation_that_was_left_at_a_later_frame(self) -> None:
        frames = [Image.new("RGB", (16, 12), colour) for colour in ("red", "green")]
        with Image.open(saved(frames[0], "GIF", save_all=True, append_images=frames[1:])) as gif:
            gif.seek(1)
            assert np.array_equal(pixels(open_image(gif))[0, 0], (255, 0, 0))

    @pytest.mark.parametrize(("ink", "colour"), [(0, (0, 255, 255)), (1, (255, 0, 255))])
    @pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
    def test_cmyk(self, kind: str, ink: int, colour: tuple[int, int, int]) -> None:
        values = [0, 0, 0, 0]
        values[ink] = 255
        opened = open_image(saved(Image.new("CMYK", (16, 16), tuple(values)), kind))
        assert np.abs(pixels(opened) - colour).max() <= 4

    def test_grey_of_16_bits_keeps_its_range(self) -> None:
        ramp = np.linspace(0, 65_535, 256).astype(np.uint16)[None].repeat(4, 0)
        opened = pixels(open_image(saved(Image.fromarray(ramp), "PNG")))
        assert np.array_equal(opened, np.arange(256)[None, :, None].repeat(4, 0).repeat(3, 2))

    def test_grey_of_32_bit_floats_spans_its_own_range(self) -> None:
        ramp = np.linspace(-3.0, 5.0, 256, dtype=np.float32)[None].repeat(4, 0)
        opened = pixels(open_image(saved(Image.fromarray(ramp), "TIFF")))
        assert np.abs(opened[0, :, 0] - np.arange(256)).max() <= 1

    def test_floats_that_are_not_numbers(self) -> None:
        ramp = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8).copy()
        ramp[0, 0] = np.nan
        opened = pixels(open_image(saved(Image.fromarray(ramp), "TIFF")))
        assert opened[0, 0].tolist() == [0, 0, 0]
        assert opened[-1, -1].tolist() == [255, 255, 255]

    def test_palette_with_transparency_lies_on_white(self) -> None:
        image = Image.new("P", (8, 8), 0)
        image.putpalette([200, 10, 10, 10, 200, 10])
        image.putpixel((3, 3), 1)
        opened = pixels(open_image(saved(image, "PNG", transparency=0)))
        assert opened[0, 0].tolist() == [255, 255, 255]
        assert opened[3, 3].tolist() == [10, 200, 10]

    @pytest.mark.parametrize(
        ("mode", "half_clear"), [("LA", (0, 128)), ("RGBA", (0, 0, 0, 128))], ids=["LA", "RGBA"]
    )
    def test_alpha_lies_on_white(self, mode: str, half_clear: tuple[int, ...]) -> None:
        opened = pixels(open_image(saved(Image.new(mode, (4, 4), half_clear), "PNG")))
        assert np.abs(opened - 127).max() <= 1
        clear = (*half_clear[:-1], 0)
        assert (pixels(open_image(saved(Image.new(mode, (4, 4), clear), "PNG"))) == 255).all()

    def test_one_bit(self) -> None:
        image = Image.new("1", (8, 8), 0)
        image.putpixel((2, 5), 1)
        opened = pixels(open_image(saved(image, "PNG")))
        assert opened[5, 2].tolist() == [255, 255, 255]
        assert opened.sum() == 3 * 255

    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("kind", ["PNG", "TIFF"])
    def test_exif_orientation(self, kind: str, orientation: int) -> None:
        """The camera stores `turned` and says how to put it upright again; pixel-exact."""
        upright = pixels(picture())
        store = {  # the inverse of what each EXIF value asks a viewer to do
            1: lambda a: a,
            2: lambda a: a[:, ::-1],
            3: lambda a: a[::-1, ::-1],
            4: lambda a: a[::-1],
            5: lambda a: a.transpose(1, 0, 2),
            6: lambda a: np.rot90(a, 1),
            7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
            8: lambda a: np.rot90(a, -1),
        }[orientation]
        turned = Image.fromarray(np.ascontiguousarray(store(upright)).astype(np.uint8))
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        assert np.array_equal(pixels(open_image(saved(turned, kind, exif=exif))), upright)

    @pytest.mark.parametrize("size", [(1, 1), (4_000, 3), (3, 4_000)])
    def test_extreme_sizes(self, size: tuple[int, int]) -> None:
        opened = open_image(saved(picture(*size), "PNG"))
        assert (opened.mode, opened.size) == ("RGB", size)


@given(st.binary(max_size=400))
def test_random_bytes_are_refused_or_read(data: bytes) -> None:
    _open_or_refuse(data)


FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "ICO", "PPM", "TGA", "PCX", "DDS")
SAMPLES = [saved(picture(), kind).getvalue() for kind in FORMATS]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow on broken TIFF tags
def test_pictures_cut_at_any_byte_are_refused_or_read(kind: str) -> None:
    frames = [picture(8, 8), picture(8, 8).rotate(90)]
    more = {"save_all": True, "append_images": frames[1:]} if kind in ("GIF", "WEBP") else {}
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = saved(frames[0], kind, exif=exif, **more).getvalue()
    for length in range(len(data)):
        _open_or_refuse(data[:length])


@given(
    st.sampled_from(SAMPLES),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 60),
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow on broken TIFF tags
def test_damaged_pictures_are_refused_or_read(
    sample: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(sample)
    for place, value in changes:
        data[place % min(len(data), 256)] = value  # headers break in more ways than pixels
    _open_or_refuse(bytes(data[: len(data) - cut]))


def _open_or_refuse(data: bytes) -> None:
    """Nothing but a `UserError` may come out of this."""
    with contextlib.suppress(UserError):
        assert open_image(io.BytesIO(data)).mode == "RGB"
