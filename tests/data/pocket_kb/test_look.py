"""Contact sheets: as many as are needed, the box where the row says, one line for a wrong name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drawn_world import World
from PIL import Image
from typer.testing import CliRunner

from skipqa.data.__main__ import app
from skipqa.data.pocket_kb.look import COLUMNS, OUTLINE, PICTURE, TEXT, cell, draw_rows
from skipqa.errors import UserError


def test_sheets_of_a_dozen(world: World, tmp_path: Path) -> None:
    where = ["--data", str(world.built), "--out", str(tmp_path / "sheet.png"), "--json"]
    done = CliRunner().invoke(app, ["look", *where, "--subset", "crowded", "--count", "14"])
    said = json.loads(done.stdout)
    assert said["rows"] == 14
    assert [Path(name).name for name in said["sheets"]] == ["sheet-01.png", "sheet-02.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sheet-01.png", "sheet-02.png"]
    first, second = (Image.open(name) for name in said["sheets"])
    assert first.size == (COLUMNS * PICTURE, 3 * (PICTURE + TEXT))
    assert second.size == (COLUMNS * PICTURE, PICTURE + TEXT)


def test_one_sheet_keeps_its_name(world: World, tmp_path: Path) -> None:
    where = ["--data", str(world.built), "--out", str(tmp_path / "sheet.png")]
    done = CliRunner().invoke(app, ["look", *where, "--count", "3"])
    assert done.stdout.strip() == str(tmp_path / "sheet.png")


def test_the_asked_box_is_outlined(world: World) -> None:
    row = world.crowded()[0]
    drawn = cell(Image.new("RGB", (640, 640), "white"), row)
    x, y, width, _ = row["box"]
    left = round((x - width / 2) * PICTURE) - 2
    assert drawn.getpixel((left + 1, round(y * PICTURE))) == OUTLINE
    assert drawn.getpixel((round(x * PICTURE), round(y * PICTURE))) == (255, 255, 255)


def test_an_unknown_subset_is_one_line(world: World) -> None:
    with pytest.raises(UserError, match=r"no subset 'crowd'.*crowded"):
        draw_rows(world.built, "val", "crowd", 3, 0)
