"""Errors that a person can act on.

The CLI prints the message of a `UserError` as one line and exits with 2; nothing
else is caught, so a traceback always means a bug of ours.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Bad input, a missing or damaged file, no space: the message says what to do."""


class MissingExtra(UserError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: pip install 'skipqa[{extra}]'")


def choices(name: str, known: Iterable[str]) -> str:
    """What may stand in the place of a name that nobody knows, and the one probably meant.

    `skip, dense; did you mean skip?`, or the list alone where nothing in it is near.
    """
    known = list(known)
    near = get_close_matches(name.lower(), known, n=1)
    return ", ".join(known) + "".join(f"; did you mean {one}?" for one in near)
