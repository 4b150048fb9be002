"""The block of claims: each judged once from all runs and results of the repository.

Enters: the folders of runs and of results files. Leaves: the Markdown of a block.
"""

from __future__ import annotations

from pathlib import Path

from skipqa.claims import registry


def page(runs: Path, results: Path) -> str:
    judged = registry.judge(*registry.gather(sorted(runs.iterdir()), results))
    return registry.page(judged)
