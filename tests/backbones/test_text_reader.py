"""The OCR engine: what it reads, what it costs, what it does with images without text."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from skipqa.backbones import text_reader
from skipqa.backbones.text_reader import (
    DETECTOR,
    RECOGNISER,
    RapidOcr,
    detector_flops,
    flops_of,
    recogniser_flops,
)
from skipqa.errors import MissingExtra, UserError

needs_engine = pytest.mark.skipif(
    not text_reader.installed(), reason="the extra ocr is not installed"
)


def written(text: str, size: tuple[int, int] = (320, 96), letters: int = 40) -> Image.Image:
    picture = Image.new("RGB", size, "white")
    ImageDraw.Draw(picture).text((20, 20), text, fill="black", font=ImageFont.load_default(letters))
    return picture


@pytest.fixture(scope="module")
def reader() -> RapidOcr:
    return RapidOcr(threads=1)


@needs_engine
def test_it_reads_a_line_and_says_where(reader: RapidOcr) -> None:
    (line,), flops = reader(written("BUDAPEST"))
    assert line.text == "BUDAPEST"
    assert line.score > 0.9
    left, top, right, bottom = line.box
    assert 0 <= left < 0.1 < 0.6 < right <= 1
    assert 0 <= top < bottom <= 1
    assert flops == detector_flops(96, 320) + recogniser_flops(1, 320)
    assert line.region is None


@needs_engine
def test_two_lines_come_from_the_top(reader: RapidOcr) -> None:
    picture = written("TONIC", (320, 192))
    ImageDraw.Draw(picture).text((20, 110), "WATER", fill="black", font=ImageFont.load_default(40))
    assert [line.text for line in reader(picture).lines] == ["TONIC", "WATER"]


@needs_engine
@pytest.mark.parametrize("size", [(1, 1), (2, 300), (300, 2), (31, 33), (1, 2_000), (64, 64)])
def test_odd_sizes_without_text_have_no_lines(reader: RapidOcr, size: tuple[int, int]) -> None:
    for picture in (Image.new("RGB", size), Image.new("L", size, 255)):
        found = reader(picture)
        assert found.lines == ()
        assert found.flops >= 0


@needs_engine
def test_a_large_image_is_scaled_down(reader: RapidOcr) -> None:
    found = reader(Image.new("RGB", (1_800, 600), "grey"))
    assert found.flops == detector_flops(320, 960)


def counted(network: str, shape: tuple[int, ...], folder: Path) -> int:
    """Multiply-adds of all convolutions and products, times two, as the runtime's own profile
    tells the shapes of every node."""
    import onnxruntime
    import rapidocr

    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.log_severity_level = True, 4
    options.profile_file_prefix = str(folder / "profile")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    path = Path(rapidocr.__file__).parent / "models" / network
    session = onnxruntime.InferenceSession(str(path), options)
    session.run(None, {session.get_inputs()[0].name: np.zeros(shape, np.float32)})
    events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text())
    total = 0.0
    for event in events:
        if not event["name"].endswith("_kernel_time"):
            continue
        args = event["args"]
        entering, (leaving,) = (
            [next(iter(one.values())) for one in args[name]]
            for name in ("input_type_shape", "output_type_shape")
        )
        if args["op_name"] == "Conv":
            total += math.prod(leaving) * math.prod(entering[1][1:])
        elif args["op_name"] == "ConvTranspose":  # 2 x 2 with stride 2: outputs do not overlap
            total += math.prod(leaving) * entering[0][1]
        elif args["op_name"] in ("MatMul", "Gemm"):
            total += math.prod(leaving) * entering[0][-1]
    return round(2 * total)


@needs_engine
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (DETECTOR, (1, 3, 32, 32)),
        (DETECTOR, (1, 3, 96, 160)),
        (RECOGNISER, (1, 3, 48, 80)),
        (RECOGNISER, (2, 3, 48, 320)),
    ],
)
def test_flops_are_those_of_the_networks(
    network: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    assert flops_of(network, shape) == counted(network, shape, tmp_path)


def test_widths_between_two_steps_are_counted_as_the_next() -> None:
    assert recogniser_flops(1, 321) == recogniser_flops(1, 328) > recogniser_flops(1, 320)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_reader, "installed", lambda: False)
    with pytest.raises(MissingExtra, match=r"skipqa\[ocr\]"):
        RapidOcr()
    text_reader.shared.cache_clear()
    assert text_reader.shared() is None
    text_reader.shared.cache_clear()


@needs_engine
def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(text_reader.WEIGHTS, DETECTOR, "0" * 64)
    with pytest.raises(UserError, match="not the file that this release was made with"):
        RapidOcr(threads=1)(written("A"))
