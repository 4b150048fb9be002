"""The suites, in a virtual environment apart from this project's.

Enters: a folder. Leaves: its Python with the pinned suites in it. A folder that has them already is
used as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

from skipqa.errors import UserError

PINNED = {
    "schemathesis": "4.32.5",
    "langchain-tests": "1.1.9",
    "langchain-openai": "1.7.3",
    "openai": "3.49.0",
    "aiohttp": "3.14.5",  # one of the transports that the OpenAI client tests itself with
    "pytest": "9.2.0",
}


def python_of(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
    found = _installed(python)
    missing = [f"{name}=={wish}" for name, wish in PINNED.items() if found.get(name) != wish]
    if missing:
        _run([str(python), "-m", "pip", "install", "-q", *missing])
    return python


def source_of(package: str, folder: Path) -> Path:
    """The unpacked source distribution of a pinned package: its tests are in no wheel."""
    name = f"{package}-{PINNED[package]}"
    if not (folder / name).is_dir():
        python = folder / "bin" / "python"
        wish = f"{package}=={PINNED[package]}"
        words = ["download", "-q", "--no-deps", "--no-binary", package, "-d", str(folder), wish]
        _run([str(python), "-m", "pip", *words])
        with tarfile.open(folder / f"{name}.tar.gz") as packed:
            packed.extractall(folder, filter="data")
    return folder / name


def _installed(python: Path) -> dict[str, str]:
    done = subprocess.run(
        [str(python), "-m", "pip", "list", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        one["name"].lower().replace("_", "-"): one["version"] for one in json.loads(done.stdout)
    }


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise UserError(f"{' '.join(command[:4])} … failed: {' '.join(last)}")
