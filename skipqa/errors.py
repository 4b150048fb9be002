"""Errors that the user can fix.

The CLI prints the message of a `UserError` as one line and exits with code 2. Other exceptions are
not caught, so a traceback means a bug in skipqa.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Bad input, a missing or damaged file, a full disk. The message says what to do."""


class MissingExtra(UserError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'skipqa[{extra}]'")


def choices(name: str, known: Iterable[str]) -> str:
    """The known names, for a message about an unknown `name`, and the closest of them.

    `skip, dense; did you mean skip?`, or only the list if no known name is similar.
    """
    known = list(known)
    near = get_close_matches(name.lower(), known, n=1)
    return ", ".join(known) + "".join(f"; did you mean {one}?" for one in near)
