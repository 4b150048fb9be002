"""The command: start a server, run the suites against it, print and write what they found."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from skipqa.costs.environment import write_results
from skipqa.errors import UserError
from skipqa.evaluation.reports.markdown import table
from tools.suites.curl import curl
from tools.suites.environment import python_of
from tools.suites.fuzz import fuzz
from tools.suites.outcome import Outcome
from tools.suites.pytests import langchain, openai_client, openai_own
from tools.suites.replay import replay
from tools.suites.server import Running, running

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
Suite = Callable[[Path, Running, Path], Outcome]
# In this order: what fuzzing leaves behind in the store must not matter to anyone
SUITES: dict[str, Suite] = {
    "schemathesis": fuzz,
    "langchain": langchain,
    "openai-own": openai_own,
    "openai-client": openai_client,
    "shapes": replay,
    "curl": curl,
}
NEED_NO_ENVIRONMENT = {"shapes", "curl"}
HEADER = ["suite", "version", "passed", "failed", "skipped"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.suites", description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; default: all")
    parser.add_argument("--env", type=Path, help="virtual environment, made if it is absent")
    parser.add_argument("--workers", type=int, default=1, help="of the server")
    parser.add_argument("--keep", type=Path, help="folder for logs and reports, else none is kept")
    parser.add_argument("--no-write", action="store_true", help="write no results file")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.suites) - set(SUITES):
        raise UserError(
            f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}"
        )
    names = [name for name in SUITES if not chosen.suites or name in chosen.suites]
    with tempfile.TemporaryDirectory(prefix="suites-") as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        environment = (chosen.env or Path(temporary) / "env").absolute()
        python = environment / "bin" / "python"
        if set(names) - NEED_NO_ENVIRONMENT:
            python = python_of(environment)
        with running(folder, chosen.workers) as server:
            outcomes = [_run(name, python, server, folder) for name in names]
            lost = server.workers_lost()
    print(table(HEADER, [outcome.row() for outcome in outcomes]))
    if chosen.suites == [] and not chosen.no_write:
        found = {"workers_lost": lost, "suites": [outcome.as_dict() for outcome in outcomes]}
        print(f"written: {write_results(found, 'suites', RESULTS).relative_to(ROOT)}")
    return 1 if lost or any(outcome.failed for outcome in outcomes) else 0


def _run(name: str, python: Path, server: Running, folder: Path) -> Outcome:
    place = folder / name
    place.mkdir(exist_ok=True)
    begin, started = len(server.process.log()), time.monotonic()
    found = SUITES[name](python, server, place.absolute())
    notes = {**found.notes, "statuses": server.statuses(begin)}
    notes["seconds"] = round(time.monotonic() - started)
    print(f"{found.suite}: {found.passed} passed, {len(found.failed)} failed", flush=True)
    for case in found.failed:
        print(f"  {case.name}: {case.why}", flush=True)
    return replace(found, notes=notes)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(str(error))
