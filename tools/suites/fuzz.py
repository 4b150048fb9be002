"""schemathesis over the server's own OpenAPI document: every operation, every check.

Enters: a running server. Leaves: its outcome; a failure is a check that an operation did not pass,
however many requests found it. `EXCLUDED` says which checks do not apply, and why.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from skipqa.errors import UserError
from tools.suites.environment import PINNED
from tools.suites.outcome import Case, Outcome, shortened
from tools.suites.photo import data_url, photo
from tools.suites.server import KEY, Running

EXAMPLES = 20  # generated for an operation, besides the boundary values of its coverage phase
SEED = 20_261_117
LIMIT_S = 600
REQUEST_S = 60  # how long an answer takes is measured elsewhere, on a machine with nothing else
EXCLUDED = {
    "object_level_authorization": "one key opens everything: there are no users to tell apart",
}


def fuzz(python: Path, server: Running, folder: Path) -> Outcome:
    picture, report = folder / "photo.png", folder / "schemathesis.json"
    picture.write_bytes(photo())
    environment = {
        **server.environment(),
        "SCHEMATHESIS_HOOKS": "fuzz_hooks",
        "PYTHONPATH": str(Path(__file__).parent),
        "SUITES_PHOTO": str(picture),
        "SUITES_PHOTO_URL": data_url(),
    }
    command = [
        *(str(python.with_name("schemathesis")), "run", f"{server.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {KEY}", "--checks", "all"),
        *("--exclude-checks", ",".join(EXCLUDED)),
        *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", str(EXAMPLES)),
        *("--seed", str(SEED), "--generation-database", "none", "--continue-on-failure"),
        *("--request-timeout", str(REQUEST_S), "--max-response-time", str(REQUEST_S), "--no-color"),
        *("--report", "json", "--report-json-path", str(report)),
    ]
    log = folder / "schemathesis.log"
    with log.open("wb") as out:
        try:
            subprocess.run(
                command, stdout=out, stderr=out, env=environment, cwd=folder, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"schemathesis took longer than {LIMIT_S} s: see {log}") from None
    if not report.exists():
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"schemathesis wrote no report: {' '.join(last)}")
    return _outcome(json.loads(report.read_text()))


def _outcome(found: dict) -> Outcome:
    cases = found["test_cases"]
    failed = [
        Case(operation, f"{failure['code']} {failure['title']}")
        for failure in found["failures"]
        for operation in failure["operations"]
    ]
    failed += [Case("schemathesis", shortened(json.dumps(error))) for error in found["errors"]]
    skipped = [Case(name, why) for name, why in EXCLUDED.items()]
    skipped += [
        Case(f"phase {name}", phase["skip_reason"] or "the document has none")
        for name, phase in found["phases"].items()
        if phase["status"] == "skip"
    ]
    accepted = {
        operation: {phase: counts["accepted"] for phase, counts in phases.items()}
        for operation, phases in found["valid_rates"].items()
    }
    notes = {"requests": cases["generated"], "accepted": accepted, "seed": found["seed"]}
    passed = cases["generated"] - cases["with_failures"]
    return Outcome("schemathesis", PINNED["schemathesis"], passed, failed, skipped, notes)
