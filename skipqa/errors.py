"""Errors that a person can act on.

The CLI prints the message of a `UserError` as one line and exits with 2; nothing
else is caught, so a traceback always means a bug of ours.
"""


class UserError(ValueError):
    """Bad input, a missing or damaged file, no space: the message says what to do."""


class MissingExtra(UserError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: pip install 'skipqa[{extra}]'")
