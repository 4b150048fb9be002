"""What worker processes fail at, where torch, which takes seconds to start, is not imported."""

from __future__ import annotations

from skipqa.errors import UserError


def fail(piece: int) -> None:
    raise UserError("no such photo") if piece else ZeroDivisionError


def unprepared(error: type[Exception]) -> None:
    raise error("no such index")
