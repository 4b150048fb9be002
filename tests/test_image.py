"""Any file a user may hand over: the right pixels, or one line about why not."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from skipqa.errors import UserError
from skipqa.image import FORMATS, LARGE_PIXELS, MAX_PIXELS, REDUCED_PIXELS, open_image

ORIENTATION = 0x0112  # the EXIF tag


def picture(width: int = 31, height: int = 24) -> Image.Image:
    """Smooth but without any symmetry, so that a turned or mirrored copy differs."""
    x, y = np.arange(width), np.arange(height)[:, None]
    channels = np.empty((height, width, 3), np.uint8)
    channels[..., 0] = 255 * x // max(width - 1, 1)
    channels[..., 1] = 255 * y // max(height - 1, 1)
    channels[..., 2] = (x * 7).astype(np.uint8) + (y * 3).astype(np.uint8)  # both modulo 256
    return Image.fromarray(channels)


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


def png(width: int, height: int, scanlines: bytes, **more: bytes) -> bytes:
    """A PNG of 8-bit grey by hand: the header may claim any size, `more` are chunks by name."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    chunks = [
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        *(chunk(kind.encode(), data) for kind, data in more.items()),
        chunk(b"IDAT", zlib.compress(scanlines)),
        chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tiff(tags: dict[int, tuple[int, int, int]], data: bytes) -> bytes:
    """A TIFF of 16 x 16 grey pixels by hand; `tags` add or replace {tag: (type, count, value)}."""
    short, long = 3, 4
    entries = {
        256: (long, 1, 16),  # width
        257: (long, 1, 16),  # height
        258: (short, 1, 8),  # bits
        259: (short, 1, 8),  # deflate
        262: (short, 1, 1),  # black is zero
        273: (long, 1, 0),  # where the strip is: below
        277: (short, 1, 1),  # samples
        278: (long, 1, 16),  # rows of a strip
        279: (long, 1, len(data)),
        **tags,
    }
    start = 8 + 2 + 12 * len(entries) + 4
    entries |= {tag: (long, 1, start) for tag in (273, 324) if tag in entries}
    table = b"".join(struct.pack("<HHII", tag, *entries[tag]) for tag in sorted(entries))
    directory = struct.pack("<H", len(entries)) + table + bytes(4)
    return b"II*\0" + struct.pack("<I", 8) + directory + data


def peak_of(path: Path) -> tuple[str, float]:
    """What a fresh process says of the file, and the megabytes that took beyond the imports."""
    code = """
import sys
from skipqa.costs.memory import forget_peak, peak_bytes
from skipqa.errors import UserError
from skipqa.image import open_image
forget_peak()
before = peak_bytes()
try:
    print(*open_image(sys.argv[1]).size)
except UserError as error:
    print(error)
print((peak_bytes() - before) / 1e6)
"""
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    said, megabytes = done.stdout.splitlines()
    return said, float(megabytes)


class TestRefused:
    def test_missing(self, tmp_path: Path) -> None:
        assert "no such file" in refusal(tmp_path / "none.jpg")
        assert refusal(Path("https://example.org/cup.jpg")).endswith("cup.jpg: download it first")

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

    @pytest.mark.parametrize("kind", FORMATS)
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
        assert "64 megapixels" in refusal(path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
    def test_permission_denied(self, tmp_path: Path) -> None:
        path = tmp_path / "secret.png"
        picture().save(path)
        path.chmod(0)
        assert "permission denied" in refusal(path)

    @pytest.mark.parametrize("kind", ["EPS", "ICO", "TGA", "PCX", "DDS", "JPEG2000", "PDF"])
    def test_formats_that_no_camera_writes(self, tmp_path: Path, kind: str) -> None:
        """Pillow would read most of these; each is one more decoder that a file could attack."""
        path = tmp_path / "photo.jpg"
        path.write_bytes(saved(picture(32, 32), kind).getvalue())
        assert refusal(path) == (
            f"{path} is not an image that can be read: save it as "
            "JPEG, PNG, GIF, BMP, WEBP, TIFF or AVIF"
        )

    @pytest.mark.parametrize("start", [b"8BPS\0\1", b"SIMPLE  =", b"\0\0\0\x18ftypheic", b"qoif"])
    def test_headers_of_formats_that_no_camera_writes(self, start: bytes) -> None:
        assert "save it as JPEG" in refusal(io.BytesIO(start.ljust(400, b"\0")))

    def test_a_pillow_image_over_the_limit(self, tmp_path: Path) -> None:
        path = tmp_path / "large.png"
        path.write_bytes(png(MAX_PIXELS // 1_000 + 1, 1_000, b""))
        with Image.open(path) as lazy, pytest.raises(UserError, match="64 megapixels"):
            open_image(lazy)

    def test_a_pillow_image_of_a_damaged_file(self) -> None:
        with (
            Image.open(io.BytesIO(saved(picture(), "JPEG").getvalue()[:-100])) as lazy,
            pytest.raises(UserError, match="damaged"),
        ):
            open_image(lazy)


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


class TestBombs:
    """Small files that would take much memory or time; each is measured in its own process."""

    @pytest.mark.parametrize("kind", ["zTXt", "iTXt", "iCCP"])
    def test_compressed_chunk_of_a_png(self, tmp_path: Path, kind: str) -> None:
        packed = zlib.compress(bytes(200_000_000))
        head = {"zTXt": b"a\0\0", "iTXt": b"a\0\1\0\0\0", "iCCP": b"a\0\0"}[kind]
        path = tmp_path / "bomb.png"
        path.write_bytes(png(8, 8, bytes(72), **{kind: head + packed}))
        assert path.stat().st_size < 200_000
        _, megabytes = peak_of(path)
        assert megabytes < 50

    def test_image_that_is_much_larger_than_its_file(self, tmp_path: Path) -> None:
        """The largest that is read: decoded once, nothing else of its size."""
        path = tmp_path / "large.png"
        path.write_bytes(png(8_000, 8_000, bytes(8_000 * 8_001)))
        assert path.stat().st_size < 100_000
        said, megabytes = peak_of(path)
        assert said == "2000 2000"
        assert megabytes < 64 + 60  # a byte per pixel of grey, and what conversion takes

    def test_tile_that_is_much_larger_than_its_image(self, tmp_path: Path) -> None:
        data = zlib.compress(bytes(20_000 * 20_000))
        path = tmp_path / "tile.tif"
        tile = {322: (4, 1, 20_000), 323: (4, 1, 20_000), 324: (4, 1, 0), 325: (4, 1, len(data))}
        path.write_bytes(tiff(tile, data))
        said, megabytes = peak_of(path)
        assert "16 x 16 pixels in a tile of 400,000,000" in said
        assert megabytes < 20

    def test_png_of_very_many_chunks(self) -> None:
        """Pillow reads each by itself when it opens the file: a minute for three million."""
        data = saved(picture(), "PNG").getvalue()
        empty = b"\0\0\0\0teSt" + zlib.crc32(b"teSt").to_bytes(4)
        assert "more than 50,000 chunks" in refusal(
            io.BytesIO(data[:33] + 60_000 * empty + data[33:])
        )
        few = io.BytesIO(data[:33] + 1_000 * empty + data[33:])
        assert open_image(few).size == open_image(io.BytesIO(data)).size

    def test_large_bmp_of_runs(self) -> None:
        """Its decoder is written in Python: half a minute for 64 megapixels."""
        for width, refused in ((500, False), (4_000, True)):
            runs = b"".join(b"\xfa\x00" * (width // 250) + b"\x00\x00" for _ in range(width))
            head = struct.pack("<IiiHHIIiiII", 40, width, width, 1, 8, 1, len(runs), 0, 0, 256, 0)
            start = 14 + len(head) + 1024
            file = struct.pack("<2sIHHI", b"BM", start + len(runs), 0, 0, start)
            bmp = io.BytesIO(file + head + bytes(1024) + runs + b"\x00\x01")
            if refused:
                assert "takes too long to read" in refusal(bmp)
            else:
                assert open_image(bmp).size == (width, width)

    def test_jpeg_of_a_thousand_scans(self) -> None:
        """Each is a hundred bytes and costs a pass over all pixels: 45 s for these."""
        data = saved(Image.new("L", (4_000, 4_000)), "JPEG", progressive=True).getvalue()
        scan = data[data.rindex(b"\xff\xda") : -2]
        bomb = io.BytesIO(data[:-2] + 1_000 * scan + data[-2:])
        assert "1006 scans, over the limit of 30" in refusal(bomb)
        assert open_image(io.BytesIO(data)).size == (4_000, 4_000)

    def test_of_many_frames_only_the_first_is_decoded(self, tmp_path: Path) -> None:
        """And what follows may be damaged."""
        frames = [Image.new("L", (2_000, 2_000), shade) for shade in (255, 0)]
        data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:]).getvalue()
        second = data.rindex(b"\x21\xf9")  # its graphic control extension
        path = tmp_path / "long.gif"
        path.write_bytes(data[:-1] + 5_000 * data[second:-1] + b"\x2c damaged")
        said, megabytes = peak_of(path)
        assert said == "2000 2000"
        assert megabytes < 100
        assert (pixels(open_image(path)) == 255).all()

    @pytest.mark.parametrize(
        ("tag", "value"),
        [
            (256, (4, 1, 1 << 31)),  # as wide as a number goes
            (257, (4, 1, 0)),
            (258, (3, 1, 77)),  # bits
            (258, (3, 0xFFFFFFFF, 8)),  # more values than bytes in the file
            (259, (3, 1, 9_999)),  # no such compression
            (273, (2, 4, 0)),  # offsets as text
            (277, (3, 1, 65_535)),  # samples
            (278, (4, 1, 0)),  # rows of a strip
            (279, (4, 1, 0xFFFFFFFF)),
            (322, (2, 4, 0x41414141)),  # a tile's width as text
            (322, (5, 1, 8)),  # as a fraction
            (ORIENTATION, (2, 4, 0x41414141)),
            (ORIENTATION, (12, 0x0FFFFFFF, 8)),
            (34_665, (4, 1, 8)),  # EXIF data that start where this directory does
            (0xFFFF, (13, 1, 8)),  # a type and a tag that nobody knows
        ],
    )
    def test_weird_tags_of_a_tiff(self, tag: int, value: tuple[int, int, int]) -> None:
        data = zlib.compress(bytes(256))
        assert open_image(io.BytesIO(tiff({}, data))).size == (16, 16)
        _open_or_refuse(tiff({tag: value}, data))


class TestReduced:
    """What is larger than any ordinary photo; all else keeps every pixel."""

    SIDE = 4_001  # just over the limit, and not a multiple of the factor

    def test_ordinary_photos_are_not(self) -> None:
        height = LARGE_PIXELS // 4_000
        image = picture(4_000, height)
        assert np.array_equal(np.asarray(open_image(image)), np.asarray(image))

    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16", "F"])
    def test_as_if_converted_first(self, mode: str) -> None:
        """Whatever the mode: the mean of each block of what a smaller image would show."""
        side = self.SIDE
        if mode in ("I;16", "F"):
            values = np.linspace(0, 65_535, side * side).reshape(side, side)
            image = Image.fromarray(values.astype(np.uint16 if mode == "I;16" else np.float32))
        elif mode in ("RGBA", "LA"):
            image = picture(side, side).convert(mode)
            image.putalpha(picture(side, side).getchannel("B"))
        else:
            image = picture(side, side).convert(mode)
        top = image.crop((0, 0, side, 999))
        bottom = image.crop((0, side - 2, side, side))
        reduced = open_image(image)
        assert reduced.mode == "RGB"
        assert reduced.size == (1_334, 1_334)
        assert reduced.width * reduced.height <= REDUCED_PIXELS
        if mode != "F":  # whose grey depends on the whole
            assert np.array_equal(np.asarray(reduced)[:333], np.asarray(open_image(top).reduce(3)))
            assert np.array_equal(
                np.asarray(reduced)[-1:], np.asarray(open_image(bottom).reduce(3))
            )
        else:
            assert reduced.getpixel((0, 0)) == (0, 0, 0)
            assert reduced.getpixel((1_333, 1_333)) == (255, 255, 255)

    def test_jpeg_by_its_decoder(self) -> None:
        image = picture(6_000, 3_000)
        file = saved(image, "JPEG", quality=95, subsampling=0)
        reduced = open_image(file)
        assert reduced.size == (3_000, 1_500)
        expected = image.resize(reduced.size, Image.Resampling.BOX)
        assert np.abs(pixels(reduced) - pixels(expected)).mean() < 2

    def test_panorama_of_a_phone(self) -> None:
        opened = open_image(saved(Image.new("L", (16_382, 3_900), 200), "JPEG"))
        assert opened.width > 2_048
        assert opened.height > 512  # what the networks see of its short side

    def test_the_callers_image_stays_as_it_is(self) -> None:
        with Image.open(saved(Image.new("L", (5_000, 4_000)), "JPEG")) as lazy:
            assert open_image(lazy).size == (1_667, 1_334)
            assert lazy.size == (5_000, 4_000)

    @pytest.mark.parametrize("size", [(17_000_000, 1), (1, 17_000_000)])
    def test_extreme_sizes(self, size: tuple[int, int]) -> None:
        reduced = open_image(Image.new("L", size, 77))
        assert reduced.size == tuple(-(-side // 3) for side in size)
        assert (pixels(reduced) == 77).all()

    def test_upright(self) -> None:
        exif = Image.Exif()
        exif[ORIENTATION] = 6
        turned = Image.new("L", (6_000, 3_000), 0)
        turned.paste(255, (0, 0, 3_000, 3_000))  # its left half is the top when upright
        opened = pixels(open_image(saved(turned, "PNG", exif=exif)))
        assert opened.shape[0] > opened.shape[1]
        assert (opened[: len(opened) // 2 - 1] == 255).all()
        assert (opened[len(opened) // 2 + 1 :] == 0).all()


@given(st.binary(max_size=400))
def test_random_bytes_are_refused_or_read(data: bytes) -> None:
    _open_or_refuse(data)


SAMPLES = [saved(picture(), kind).getvalue() for kind in FORMATS]
PROGRESSIVE = saved(picture(), "JPEG", progressive=True).getvalue()
HEADERS = [sample[:length] for sample in (*SAMPLES, PROGRESSIVE) for length in (8, 16, 33, 100)]


@given(st.sampled_from(HEADERS), st.binary(max_size=400))
def test_random_bytes_after_a_real_header_are_refused_or_read(header: bytes, rest: bytes) -> None:
    _open_or_refuse(header + rest)


@pytest.mark.parametrize("kind", FORMATS)
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
