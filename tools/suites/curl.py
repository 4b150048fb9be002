"""curl, as the manual shows it: ask about a photo, stream, upload documents.

Enters: a running server. Leaves: its outcome, none if the machine has no curl.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.suites.outcome import Case, Outcome, shortened
from tools.suites.photo import photo
from tools.suites.server import KEY, MODEL, Running

Curl = Callable[..., str]
NOTES = "The lantern of the old harbour burns whale oil.\n"


def curl(_: Path, server: Running, folder: Path) -> Outcome:
    program = shutil.which("curl")
    if program is None:
        return Outcome("curl", "none", 0, skipped=[Case("all", "curl is not installed")])
    (folder / "photo.png").write_bytes(photo())
    (folder / "notes.md").write_text(NOTES)

    def run(*words: str) -> str:
        command = [program, "-sS", "--max-time", "120", "-H", f"Authorization: Bearer {KEY}"]
        done = subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    passed, failed = 0, []
    for check in (_ask, _stream, _index, _headers):
        try:
            check(run, server.url)
            passed += 1
        except (AssertionError, KeyError, ValueError) as error:
            failed.append(Case(check.__name__.strip("_"), shortened(f"{error!r}")))
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    return Outcome("curl", version.split()[1], passed, failed)


def _ask(run: Curl, url: str) -> None:
    found = json.loads(
        run("-F", "photo=@photo.png", "-F", "question=What is this?", f"{url}/v1/ask")
    )
    assert found["skip"]["answer"]
    assert found["skip"]["image"] == {"width": 320, "height": 240}
    without = json.loads(run("-F", "question=What is a beagle?", f"{url}/v1/ask"))
    assert without["skip"]["image"] is None


def _stream(run: Curl, url: str) -> None:
    body: dict[str, Any] = {"model": MODEL, "stream": True}
    body["messages"] = [{"role": "user", "content": "What is a beagle?"}]
    words = ("-N", "-H", "Content-Type: application/json", "-d", json.dumps(body))
    lines = run(*words, f"{url}/v1/chat/completions").split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""], lines[-2:]
    assert all(line.startswith("data: {") for line in lines[:-2])


def _index(run: Curl, url: str) -> None:
    named = f"{url}/v1/indexes/curl-notes"
    form = ("-F", "name=curl-notes", "-F", "files=@notes.md;filename=harbour/notes.md")
    assert json.loads(run(*form, f"{url}/v1/indexes"))["name"] == "curl-notes"
    assert json.loads(run(named))["status"] in ("building", "ready")
    listed = json.loads(run(f"{url}/v1/indexes"))["data"]
    assert "curl-notes" in [index["name"] for index in listed]
    assert json.loads(run("-X", "DELETE", named))["deleted"] is True


def _headers(run: Curl, url: str) -> None:
    head = run("-i", "-X", "OPTIONS", f"{url}/v1/indexes")
    allowed = re.search(r"(?im)^allow: (.*)$", head)
    assert head.startswith("HTTP/1.1 405"), head[:40]
    assert allowed is not None
    assert {"GET", "POST"} <= {method.strip() for method in allowed[1].split(",")}, allowed[0]
