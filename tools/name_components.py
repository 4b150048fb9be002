"""Name the components behind results files that do not, from the history of the checkpoint.

A results file has the commit it was measured at. If its script used the bundled checkpoint, its
components are those that this commit bundles. Files that name components, and those whose command
was given others, are left as they are.

    python tools/name_components.py benchmarks/results/small_things_*.json
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from skipqa.errors import UserError
from skipqa.files import read_json, write_json

FOLDER = "skipqa/checkpoints/pocket"


def name_components(path: Path) -> str:
    """What was done, in words."""
    results = read_json(path)
    commit = str(results.get("commit") or "").rstrip("+")
    if "components" in results:
        return "names them already"
    if not commit or "--components" in results.get("command", ""):
        return "was not measured with a bundled checkpoint that the history has"
    body = results.pop("results")
    write_json(path, {**results, "components": bundled_at(commit), "results": body}, indent=1)
    return f"names what {commit} bundles"


def bundled_at(commit: str) -> dict[str, str]:
    names = _git("ls-tree", "--name-only", commit, f"{FOLDER}/").decode().split()
    return {
        Path(name).stem: hashlib.sha256(_git("show", f"{commit}:{name}")).hexdigest()
        for name in names
        if name.endswith(".safetensors")
    }


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], capture_output=True)
    if done.returncode:
        raise UserError(done.stderr.decode().strip())
    return done.stdout


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(f"{given} {name_components(Path(given))}")
