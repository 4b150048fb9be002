"""Runs `vectors/*.json`: a call by name, its inputs, and the value or the error expected.

Plain JSON, so that an implementation in another language can run the same cases. Inputs
that are a list are positional arguments.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

VECTORS = sorted((Path(__file__).parent / "vectors").glob("*.json"))


def cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}-{number}")
        for path in VECTORS
        for number, case in enumerate(json.loads(path.read_text(encoding="utf-8"))["cases"])
    ]


def function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(".")
    return getattr(import_module(f"skipqa.tasks.{module}"), attribute)


@pytest.mark.parametrize("case", cases())
def test_vector(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    positional = inputs if isinstance(inputs, list) else []
    named = inputs if isinstance(inputs, dict) else {}
    call = function(case["call"])
    if isinstance(expected, dict) and "error" in expected:
        with pytest.raises(getattr(builtins, expected["error"])):
            call(*positional, **named)
    else:
        exact = isinstance(expected, str | bool)
        wanted = expected if exact else pytest.approx(expected, abs=1e-9, rel=0)
        assert call(*positional, **named) == wanted, case["why"]
