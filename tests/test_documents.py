"""Measured numbers in the documents are what the results files say."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from skipqa.cli.main import app
from skipqa.errors import UserError
from skipqa.evaluation.report import BLOCK
from skipqa.evaluation.results import newest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


DOCUMENTS = [
    *("README.md", "LOG.md", "docs/index.md", "docs/pocket_kb.md"),
    "skipqa/checkpoints/pocket/README.md",
]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_hold_the_newest_results(name: str) -> None:
    document = ROOT / name
    blocks = [match["name"] for match in BLOCK.finditer(document.read_text(encoding="utf-8"))]
    assert blocks, f"{name} has no result blocks"
    for block in blocks:
        try:
            newest(RESULTS, block.replace("-", "_"))
        except UserError as missing:
            pytest.skip(f"not measured yet: {missing}")
    words = ["report", "documents", str(document), "--check", "--results", str(RESULTS)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
