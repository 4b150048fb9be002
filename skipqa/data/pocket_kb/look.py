"""Contact sheets: rows of a built Pocket-KB as pictures to be read by a person.

Enters: the folder that was built, a split and a subset. Leaves: sheets of a dozen rows drawn by
chance, each with its picture, the asked box outlined, and its question, answers and entity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from random import Random
from textwrap import wrap
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from skipqa.data.pocket_kb.pictures import Archive
from skipqa.errors import UserError, choices
from skipqa.files import atomic, check_rows, read_jsonl
from skipqa.image import open_image

COLUMNS, ROWS = 4, 3
PICTURE, TEXT = 320, 92  # pixels of a cell: its picture's side, and the height of what is below
LETTERS, LINE = 46, 15  # of a line of text, and its height in pixels
OUTLINE = (255, 0, 200)
FIELDS = {"image": str, "question": str, "answers": dict, "subset": list, "name": str}


def draw_rows(
    built: Path, split: str, subset: str | None, count: int, seed: int
) -> list[dict[str, Any]]:
    """So many rows of the subset, or of all."""
    path = built / f"{split}.jsonl"
    rows = check_rows(str(path), read_jsonl(path), FIELDS)
    known = {name for row in rows for name in row["subset"]}
    if subset is not None and subset not in known:
        raise UserError(f"{path} has no subset {subset!r}: use one of {choices(subset, known)}")
    some = [row for row in rows if subset is None or subset in row["subset"]]
    return Random(seed).sample(some, min(count, len(some)))


def write_sheets(rows: Sequence[Mapping[str, Any]], photos: Path, out: Path) -> Iterator[Path]:
    """The name of each sheet as soon as it is written: `out`, numbered if there are several."""
    pages = [rows[i : i + COLUMNS * ROWS] for i in range(0, len(rows), COLUMNS * ROWS)]
    with Archive(photos) as archive:
        for number, page in enumerate(pages, 1):
            name = out if len(pages) == 1 else out.with_stem(f"{out.stem}-{number:02d}")
            with atomic(name) as partial:
                sheet(page, archive).save(partial, "PNG")
            yield name


def sheet(rows: Sequence[Mapping[str, Any]], archive: Archive) -> Image.Image:
    lines = -(-len(rows) // COLUMNS)
    page = Image.new("RGB", (COLUMNS * PICTURE, lines * (PICTURE + TEXT)), "white")
    for number, row in enumerate(rows):
        down, across = divmod(number, COLUMNS)
        picture = open_image(BytesIO(archive.bytes(row["image"])))
        corner = (across * PICTURE, down * (PICTURE + TEXT))
        page.paste(cell(picture, row), corner)
    return page


def cell(picture: Image.Image, row: Mapping[str, Any]) -> Image.Image:
    whole = Image.new("RGB", (PICTURE, PICTURE + TEXT), "white")
    scale = PICTURE / max(picture.size)
    width, height = (round(scale * side) for side in picture.size)
    whole.paste(picture.resize((width, height), Image.Resampling.LANCZOS), (0, 0))
    draw = ImageDraw.Draw(whole)
    if row.get("box"):
        x, y, across, down = row["box"]
        left, top = (x - across / 2) * width, (y - down / 2) * height
        corners = (left - 2, top - 2, left + across * width + 1, top + down * height + 1)
        draw.rectangle(corners, outline=OUTLINE, width=2)
    font = ImageFont.load_default(12)
    question = wrap(row["question"], LETTERS)
    answers = wrap("= " + " | ".join(row["answers"]), LETTERS)
    name = f"{row['name']} ({row.get('asked_by', row['relation'])}; {', '.join(row['subset'])})"
    for line, text in enumerate([*question[:3], *answers[:2], *wrap(name, LETTERS)[:1]]):
        fill = "black" if line < len(question) else "#005a9c"
        draw.text((4, PICTURE + 1 + LINE * line), text, fill=fill, font=font)
    return whole
