"""The command that fills documents: writes, checks, and says what is wrong in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skipqa.errors import UserError
from tools.documents.__main__ import main

STALE = "<!-- results: index-kill -->\nold\n<!-- end -->\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    header = {
        "machine": {"cpu": "abacus", "cores": 2},
        "python": "3.11.0",
        "versions": {},
        "commit": "abc1234",
        "command": "made.py",
        "date": "2026-11-15",
    }
    found = {"kills": 2, "failures": 0, "operations": {"build": {"kills": 2}}}
    path = tmp_path / "index_kill_abacus_202611.json"
    path.write_text(json.dumps({**header, "results": found}))
    return tmp_path


def test_a_stale_document_fails_the_check_until_it_is_filled(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = results / "page.md"
    document.write_text(STALE)
    words = [str(document), "--results", str(results)]
    with pytest.raises(UserError, match=r"stale: .*page\.md; run `make docs`"):
        main([*words, "--check"])
    assert document.read_text() == STALE
    main(words)
    assert "(2 in build): 0 failures." in document.read_text()
    main([*words, "--check"])
    assert capsys.readouterr().out.endswith("changed: nothing\n")


def test_a_missing_document_is_one_clear_line(results: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        main([str(results / "absent.md"), "--results", str(results)])
