"""What it takes to open an image, however it was made: time and peak memory of a fresh process
beyond its imports.

Each file is opened by `open_image` and by plain Pillow (open, turn upright, convert to RGB, with
its own limit on size lifted), which stands for a reader without limits. Small files that decode
into much: the largest size that is accepted in each mode, one beyond it, and bombs of other kinds.

    python benchmarks/hostile_images.py
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL
from PIL import Image
from rich.table import Table

from skipqa.cli.console import err, out
from skipqa.costs.environment import write_results

SIDE = 8_000  # 64 megapixels, the most that is accepted
BEYOND = 9_900  # 98 megapixels
TIMEOUT_S = 120

PREPARE = """
import json, sys, time, warnings
from skipqa.costs.memory import forget_peak, peak_bytes
from skipqa.errors import UserError
from skipqa.image import open_image
from PIL import Image, ImageOps
def plain(path):
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None
    with Image.open(path) as image:
        image.load()
        return ImageOps.exif_transpose(image).convert("RGB")
how = {"open_image": open_image, "plain": plain}[sys.argv[1]]
Image.init()
forget_peak()
before, start = peak_bytes(), time.perf_counter()
try:
    outcome = "{} x {}".format(*how(sys.argv[2]).size)
except (UserError, OSError, ValueError):
    outcome = "refused"
taken = {"seconds": round(time.perf_counter() - start, 3), "outcome": outcome}
print(json.dumps({**taken, "megabytes": round((peak_bytes() - before) / 1e6)}))
"""


def saved(mode: str, kind: str, side: int = SIDE, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, kind, **options)
    return buffer.getvalue()


def scans() -> bytes:
    """A progressive JPEG whose last scan, a hundred bytes, is there five hundred times."""
    data = saved("L", "JPEG", progressive=True)
    return data[:-2] + 500 * data[data.rindex(b"\xff\xda") : -2] + data[-2:]


def tile() -> bytes:
    """A TIFF of 16 x 16 pixels in one deflated tile of 30,000 x 30,000."""
    side = 30_000
    data = zlib.compress(bytes(side * side))
    start = 8 + 2 + 12 * 10 + 4
    entries = [
        *((256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1)),
        *((322, side), (323, side), (324, start), (325, len(data))),
    ]
    table = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + bytes(4) + data


FILES: dict[str, Callable[[], bytes]] = {
    "PNG, RGB, 98 MP": lambda: saved("RGB", "PNG", BEYOND),
    "PNG, RGB, 64 MP": lambda: saved("RGB", "PNG"),
    "PNG, RGBA, 64 MP": lambda: saved("RGBA", "PNG"),
    "PNG, palette, 64 MP": lambda: saved("P", "PNG"),
    "PNG, 16-bit grey, 64 MP": lambda: saved("I;16", "PNG"),
    "TIFF, float grey, 64 MP": lambda: saved("F", "TIFF", compression="tiff_deflate"),
    "JPEG, 64 MP": lambda: saved("RGB", "JPEG"),
    "JPEG, progressive, 64 MP": lambda: saved("RGB", "JPEG", progressive=True),
    "WEBP, 64 MP": lambda: saved("RGB", "WEBP"),
    "AVIF, 64 MP": lambda: saved("RGB", "AVIF", speed=10),
    "GIF, 64 MP": lambda: saved("P", "GIF"),
    "JPEG of 500 scans, 64 MP": scans,
    "TIFF, 16 x 16 in a tile of 900 MP": tile,
}


def measure(how: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", PREPARE, how, str(path)]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return {"seconds": TIMEOUT_S, "outcome": "stopped", "megabytes": None}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    Image.MAX_IMAGE_PIXELS = None
    table = Table("file", "kB", "plain Pillow", "s", "MB", "open_image", "s", "MB")
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in FILES.items():
            path = Path(folder, "image")
            path.write_bytes(make())
            row = {"kilobytes": round(path.stat().st_size / 1e3)}
            row |= {how: measure(how, path) for how in ("plain", "open_image")}
            rows[name] = row
            cells = [
                str(row[how][key])
                for how in ("plain", "open_image")
                for key in ("outcome", "seconds", "megabytes")
            ]
            table.add_row(name, str(row["kilobytes"]), *cells)
    out.print(table)
    results = {"pillow": PIL.__version__, "files": rows}
    err.print(f"written to {write_results(results, 'hostile_images', options.out)}")


if __name__ == "__main__":
    main()
