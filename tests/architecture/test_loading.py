"""No file that the package reads can run code: weights are read as tensors only.

Read from the source with `ast`, so that a new loader is seen wherever it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import skipqa

ROOT = Path(skipqa.__file__).parent
UNSAFE_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
}
HARMLESS = {"pickle.UnpicklingError"}  # caught where torch refuses a file


def unsafe_lines(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call):
            names = []
            given = {option.arg: ast.unparse(option.value) for option in node.keywords}
            if ast.unparse(node.func) == "torch.load" and given.get("weights_only") != "True":
                yield node.lineno, "torch.load without weights_only=True"
            if given.get("weights_only") == "False":
                yield node.lineno, "weights_only=False"
            if given.get("allow_pickle", "False") != "False":
                yield node.lineno, "allow_pickle"
        else:
            continue
        for name in names:
            if name.partition(".")[0] in UNSAFE_MODULES and name not in HARMLESS:
                yield node.lineno, f"imports {name}"
            if name in ("torch.load", "torch.hub"):
                yield node.lineno, f"imports {name}"


def test_nothing_that_is_read_can_run_code() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {what}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, what in unsafe_lines(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=careful)",
        "load(path, weights_only=False)",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_each_way_to_do_so_is_seen(source: str) -> None:
    assert list(unsafe_lines(source))


def test_restricted_loading_is_allowed() -> None:
    source = "from pickle import UnpicklingError\ntorch.load(path, weights_only=True, mmap=True)"
    assert not list(unsafe_lines(source))
