"""Options that several commands share, declared once.

A group of options is a frozen dataclass whose fields carry their `typer.Option`. A command takes
the whole group as one value; `grouped` shows its fields on the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with an option for each field of every parameter that is a dataclass."""
    takes = inspect.signature(command, eval_str=True).parameters
    groups = {name: p.annotation for name, p in takes.items() if _is_group(p.annotation)}
    fields = {
        name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()
    }

    @functools.wraps(command)
    def verb(**given: Any) -> None:
        values = {
            name: group(**{field: given.pop(field) for field in fields[name]})
            for name, group in groups.items()
        }
        command(**values, **given)

    flat = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, own in takes.items()
        for parameter in (fields[name].values() if name in groups else (own,))
    ]
    verb.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    verb.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return verb


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)
