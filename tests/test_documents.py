"""Measured numbers in the documents are what the results files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipqa.errors import UserError
from skipqa.evaluation.results import newest
from tools.documents.__main__ import DOCUMENTS, ROOT, main
from tools.documents.fill import BLOCK, FROM_RUNS, subject

RESULTS = ROOT / "benchmarks" / "results"


def test_every_document_with_results_is_known() -> None:
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert {"README.md", "LOG.md", "docs/hops.md", "skipqa/checkpoints/pocket/README.md"} <= names
    assert "docs/plugin.md" not in names  # nothing to fill


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_hold_the_newest_results(document: Path) -> None:
    blocks = [match["name"] for match in BLOCK.finditer(document.read_text(encoding="utf-8"))]
    for block in blocks:
        if block in FROM_RUNS:
            continue
        try:
            newest(RESULTS, subject(block))
        except UserError as missing:
            pytest.skip(f"not measured yet: {missing}")
    main([str(document), "--check", "--results", str(RESULTS)])
