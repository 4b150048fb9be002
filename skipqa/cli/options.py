"""Options that several commands share, declared once, and options that come from a function.

A group of options is a frozen dataclass whose fields carry their `typer.Option`. A command takes
the whole group as one value; `grouped` shows its fields on the command line. A function outside the
command line declares options by its parameters (`declared`) and needs no typer for it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_args, get_origin

import typer

KEYWORD = inspect.Parameter.KEYWORD_ONLY


def grouped(
    command: Callable[..., None], more: Iterable[inspect.Parameter] = ()
) -> Callable[..., None]:
    """`command` with an option for each field of every parameter that is a dataclass.

    `more` are further options, which the `**` parameter of the command takes; one that has the name
    of a field replaces its declaration.
    """
    signature = inspect.signature(command, eval_str=True).parameters
    takes = {name: p for name, p in signature.items() if p.kind is not p.VAR_KEYWORD}
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

    flat = {
        parameter.name: parameter.replace(kind=KEYWORD)
        for name, own in takes.items()
        for parameter in (fields[name].values() if name in groups else (own,))
    }
    flat |= {parameter.name: parameter for parameter in more}
    verb.__signature__ = inspect.Signature(list(flat.values()))  # type: ignore[attr-defined]
    verb.__annotations__ = {name: parameter.annotation for name, parameter in flat.items()}
    return verb


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """A parameter as an option: `Annotated[Path, "What it is"]`, or a plain type."""

    name: str
    kind: Any
    what: str
    default: Any  # `inspect.Parameter.empty` if it has to be given


def declared(function: Callable[..., Any]) -> list[Declared]:
    found = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind, what = parameter.annotation, name.replace("_", " ").capitalize()
        if get_origin(kind) is Annotated:
            kind, what = get_args(kind)[:2]
        found.append(Declared(name, kind, what, parameter.default))
    return found


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def option(name: str, kind: Any, told: str, default: Any) -> inspect.Parameter:
    """A flag has no opposite: `--multiple-choice`, not also `--no-multiple-choice`."""
    annotation = Annotated[kind, typer.Option(flag(name), help=told)]
    return inspect.Parameter(name, KEYWORD, default=default, annotation=annotation)


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)
