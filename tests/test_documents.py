"""Measured numbers in the documents are what the results files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipqa.errors import UserError
from skipqa.evaluation.results import newest
from tools.documents.__main__ import DOCUMENTS, ROOT, main
from tools.documents.fill import BLOCK, FROM_RUNS, subject

RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_hold_the_newest_results(document: Path) -> None:
    blocks = [match["name"] for match in BLOCK.finditer(document.read_text(encoding="utf-8"))]
    assert blocks, f"{document} has no result blocks"
    for block in blocks:
        if block in FROM_RUNS:
            continue
        try:
            newest(RESULTS, subject(block))
        except UserError as missing:
            pytest.skip(f"not measured yet: {missing}")
    main([str(document), "--check", "--results", str(RESULTS)])
