"""The trace as something to look at: which patches were kept, what they asked, what it cost."""

from __future__ import annotations

from pathlib import Path

from skipqa.answer import Answer
from skipqa.backbones.concepts import Concepts
from skipqa.errors import UserError

FORMATS = (".png", ".html")


def check_format(path: Path, *formats: str) -> None:
    """Called before the work starts, so that a typing slip costs nothing."""
    allowed = formats or FORMATS
    if path.suffix.lower() not in allowed:
        raise UserError(f"{path} should end in {' or '.join(allowed)}")
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a file to draw into")
    if not path.absolute().parent.is_dir():
        raise UserError(f"there is no folder {path.absolute().parent} to draw into")


def draw(answer: Answer, concepts: Concepts, path: Path) -> None:
    """Write the trace of `answer` to `path`, as a picture or a page by its ending."""
    from skipqa.explain import page, picture

    check_format(path)
    if path.suffix.lower() == ".png":
        picture.draw(answer, concepts).save(path)
    else:
        path.write_text(page.render(answer, concepts), encoding="utf-8")
