"""The header of results files: machine, versions, commit, command.

Enters: measured numbers. Leaves: a JSON file with the header and the numbers. It does not know what
was measured; `evaluation/results.py` reads the files back.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "numpy", "tokenizers", "transformers", "numba", "scipy")


def describe() -> dict[str, Any]:
    """The header of a results file."""
    return {
        "machine": _machine(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "command": " ".join([_program(), *map(_without_machine_path, sys.argv[1:])]),
        "date": datetime.date.today().isoformat(),
    }


def _program() -> str:
    """As it would be started again: `python -m` runs a file, whose path names no module."""
    spec = sys.modules["__main__"].__spec__
    if spec is None:
        return Path(sys.argv[0]).name
    return f"python -m {spec.name.removesuffix('.__main__')}"


def _without_machine_path(word: str) -> str:
    """Paths differ by machine, so an absolute path is cut to its last name."""
    return Path(word).name if word.startswith("/") else word


def write_results(
    results: Any, subject: str, folder: Path, components: Mapping[str, str] | None = None
) -> Path:
    """A results file with the header above.

    `components` are the checksums of the trained ones that they depend on, if any.
    """
    header = describe() | ({} if components is None else {"components": dict(components)})
    return write_under(header, results, subject, folder)


def write_under(header: Mapping[str, Any], results: Any, subject: str, folder: Path) -> Path:
    """`folder/<subject>_<machine>_<yyyymm>.json`: the header, then the results."""
    machine = header["machine"].get("gpu") or f"{header['machine']['cores']}-core-cpu"
    machine = re.sub("[^a-z0-9]+", "-", machine.lower())
    month = header["date"][:7].replace("-", "")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{subject}_{machine}_{month}.json"
    path.write_text(json.dumps({**header, "results": results}, indent=1) + "\n")
    return path


def available_cores() -> int:
    """The cores this process may use: its affinity, and a container's quota if there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        limit, period = quota.read_text().split()
        if limit != "max":
            cores = min(cores or 1, max(1, round(int(limit) / int(period))))
    return cores or 1


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {"cpu": _cpu_name(), "cores": available_cores()}
    if sys.platform == "linux":
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        found["memory_gb"] = round(pages * size / 1e9, 1)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    return found


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, with `+` where files differ from it; None outside a checkout.

    For a copy without its history, `SKIPQA_COMMIT` gives the commit.
    """
    if told := os.environ.get("SKIPQA_COMMIT"):
        return told
    root = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
        return done.stdout.strip()

    if not (root / ".git").exists():
        return None
    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
