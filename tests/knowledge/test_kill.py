"""A few `kill -9` at random moments; benchmarks/index_kill.py does fifty."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "index_kill.py"


def test_every_kill_leaves_a_whole_index_and_the_work_goes_on(home: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "3", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] == 3
