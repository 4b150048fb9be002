"""Results files of the benchmarks, read back.

`costs/environment.py` writes `<subject>_<machine>_<yyyymm>.json`: a header (machine, versions,
commit, command) and the results. Enters: a folder of such files. Leaves: the newest file of a
subject. It does not know what the results mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.files import read_json

Results = Mapping[str, Any]


class NoResults(UserError):
    """A benchmark that has not been run."""


def newest(folder: Path, subject: str) -> Results:
    """The last of `<subject>_<machine>_<yyyymm>.json`."""
    found = sorted(folder.glob(f"{subject}_*_*.json"), key=lambda path: path.stem[-6:])
    found = [path for path in found if re.fullmatch(rf"{subject}_[^_]+_\d{{6}}", path.stem)]
    if not found:
        raise NoResults(f"no results of {subject} in {folder}: run its script in benchmarks/ first")
    loaded: Results = read_json(found[-1])
    return loaded
