"""What `import skipqa` gives: light, complete, and one version for everything."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import skipqa

ROOT = Path(skipqa.__file__).parents[1]
HEAVY = {"torch", "transformers", "tokenizers", "PIL", "numpy", "safetensors", "gguf", "typer"}


def in_fresh_process(code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


def test_import_is_light() -> None:
    loaded = set(in_fresh_process("import sys, skipqa; dir(skipqa); print(*sys.modules)").split())
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("skipqa")} == {"skipqa"}


@pytest.mark.parametrize("name", ["Client", "UserError", "__version__"])
def test_these_stay_light(name: str) -> None:
    code = f"import sys; from skipqa import {name}; print(*sys.modules)"
    assert not set(in_fresh_process(code).split()) & HEAVY


def test_every_public_name_is_the_one_at_home() -> None:
    from skipqa.client import Client
    from skipqa.errors import UserError
    from skipqa.knowledge import Index
    from skipqa.pipeline import Answer, Pipeline, load

    assert skipqa.load is load
    assert skipqa.Pipeline is Pipeline
    assert skipqa.Answer is Answer
    assert skipqa.Client is Client
    assert skipqa.Index is Index
    assert skipqa.UserError is UserError
    assert set(skipqa.__all__) == {
        *("Answer", "Client", "Index", "Pipeline", "SkipModel", "UserError"),
        *("__version__", "load", "prune"),
    }


def test_names_are_listed_and_others_are_not_there() -> None:
    assert set(skipqa.__all__) <= set(dir(skipqa))
    with pytest.raises(AttributeError, match="'skipqa' has no attribute 'laod'"):
        _ = skipqa.laod
    assert not hasattr(skipqa, "torch")


def test_star_import_gives_all_of_them() -> None:
    names: dict[str, object] = {}
    exec("from skipqa import *", names)
    assert set(skipqa.__all__) <= names.keys()


def test_the_version_is_written_once_and_quoted_rightly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "skipqa.__version__"}
    released = re.findall(r"^## \[?([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == skipqa.__version__
    citation = (ROOT / "CITATION.cff").read_text()
    assert f'\nversion: "{skipqa.__version__}"\n' in citation
