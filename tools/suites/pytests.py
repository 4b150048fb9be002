"""Suites that pytest runs in the suites' environment, each in a process of its own.

Enters: a running server. Leaves: what pytest's report says.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from skipqa.errors import UserError
from tools.suites.environment import PINNED, source_of
from tools.suites.outcome import Outcome, from_junit
from tools.suites.photo import photo
from tools.suites.server import Running

INSIDE = Path(__file__).parent / "inside"
OWN_TESTS = ("chat/test_completions.py", "test_models.py", "test_responses.py")
LIMIT_S = 600


def langchain(python: Path, server: Running, folder: Path) -> Outcome:
    # One event loop for all tests: LangChain keeps its connections from one to the next
    loops = [f"asyncio_default_{kind}_loop_scope=session" for kind in ("test", "fixture")]
    words = [str(INSIDE / "test_langchain.py"), "-o", "asyncio_mode=auto"]
    words += ["-o", loops[0], "-o", loops[1]]
    found = _pytest(python, server, folder, "langchain-tests", words)
    return replace(found, notes={"langchain-openai": PINNED["langchain-openai"]})


def openai_client(python: Path, server: Running, folder: Path) -> Outcome:
    words = [str(INSIDE / "test_openai_client.py")]
    return _pytest(python, server, folder, "openai, as it is used", words)


def openai_own(python: Path, server: Running, folder: Path) -> Outcome:
    source = source_of("openai", python.parent.parent)
    tests = [str(source / "tests" / "api_resources" / name) for name in OWN_TESTS]
    words = ["-p", "openai_own", "-o", "addopts=", "-c", str(source / "pyproject.toml"), *tests]
    return _pytest(python, server, source, "openai, its own tests", words, folder)


def _pytest(
    python: Path,
    server: Running,
    cwd: Path,
    suite: str,
    words: list[str],
    folder: Path | None = None,
) -> Outcome:
    folder = folder or cwd
    picture, package = folder / "photo.png", suite.partition(",")[0]
    picture.write_bytes(photo())
    stem = suite.replace(",", "").replace(" ", "-")
    report, log = folder / f"{stem}.xml", folder / f"{stem}.log"
    environment = {
        **server.environment(),
        "SUITES_PHOTO": str(picture),
        "PYTHONPATH": str(INSIDE),
        "TEST_API_BASE_URL": f"{server.url}/v1",
    }
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    command += ["--junitxml", str(report)]
    with log.open("wb") as out:
        try:
            subprocess.run(
                command, cwd=cwd, env=environment, stdout=out, stderr=out, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{suite} took longer than {LIMIT_S} s: see {log}") from None
    if not report.exists():
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"{suite} did not run: {' '.join(last)}")
    return from_junit(suite, PINNED[package], report)
