"""Parses the options of an engine's URI into its dataclass; a wrong option is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from skipqa.errors import UserError, choices

T = TypeVar("T")


def read_options(kind: type[T], engine: str, given: Mapping[str, str], default: Any = None) -> T:
    """`default` provides the options that are not given; integers must be at least 1."""
    start = default or kind()
    known = {field.name: getattr(start, field.name) for field in fields(kind)}  # type: ignore[arg-type]
    for name, value in given.items():
        if name not in known:
            raise UserError(f"{engine}: unknown option {name!r}; known are {choices(name, known)}")
        if isinstance(known[name], int):
            if not value.isdigit() or int(value) < 1:
                raise UserError(f"{engine}: {name} must be a whole number from 1, got {value!r}")
            known[name] = int(value)
        else:
            known[name] = value
    return kind(**known)
