"""A real server under attack: what it answers, how long it takes, what memory it needs.

A server with keys, and one without that fetches URLs, get requests that no honest client sends
(`attacks_on_*.py`). A fault is a status that is not allowed for the attack, any 500, a request that
hangs, a connection that is dropped where a status was due, a worker process that ended, memory
beyond a limit, others who wait, and a message that names this machine (`hostile_requests.py`). Any
fault makes the command fail.

    python benchmarks/serve_attacks.py
    python benchmarks/serve_attacks.py --only pictures --only bodies
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attacks_on_content import Canary, fetches, indexes, mutations, pictures, texts, urls
from attacks_on_http import bodies, browsers, connections, forms, headers, smuggling
from hostile_requests import HANGS, Attack, Attempt, Reply, Target, complaints
from rich.table import Table
from server_process import ServerProcess, kill, wait_until

from skipqa.cli.console import err, out
from skipqa.costs.environment import write_results
from skipqa.knowledge.index import build
from skipqa.knowledge.sources import open_source
from skipqa.knowledge.sparse_encoder import LexicalEncoder

STALL_S = 5.0  # others wait: /health takes longer
SERVER_MB, WORKER_MB = 1_500, 3_500
HEALTH_S = 60.0
OWN_INDEX = "handbook"  # that the server was started with
RAISED = re.compile(r"^Traceback (?:.*\n )+.*\n([\w.]+(?:: .{0,100})?)", re.MULTILINE)
Row = dict[str, Any]
KINDS: dict[str, Callable[[Target, Any], Iterator[Attack]]] = {
    "headers": headers,
    "smuggling": smuggling,
    "browsers": browsers,
    "urls": urls,
    "texts": texts,
    "forms": forms,
    "indexes": indexes,
    "mutations": mutations,
    "bodies": bodies,
    "pictures": pictures,
    "connections": connections,
}


class Watch:
    """What others see while an attack runs, and the memory that it takes at most."""

    def __init__(self, server: ServerProcess, target: Target) -> None:
        self.server, self.target = server, target
        self.workers = server.workers()
        self.slowest_s = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Watch:
        for pid in (self.server.process.pid, *self.workers):
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # forgets the peak
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.server_mb = _peak_mb(self.server.process.pid)
        self.worker_mb = max(map(_peak_mb, self.server.workers()), default=0.0)

    def _ask(self) -> None:
        while True:
            reply = self.target.send(self.target.request("GET /health", key=None), HEALTH_S)
            self.slowest_s = max(self.slowest_s, reply.seconds)
            if self._over.wait(0.05):
                return


def _peak_mb(pid: int) -> float:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))
    return 0.0


def attempt(attack: Attack, target: Target) -> list[Reply]:
    def one(given: Attempt) -> Reply:
        made = given if isinstance(given, bytes) else given()
        return made if isinstance(made, Reply) else target.send(made, attack.limit_s)

    with ThreadPoolExecutor(attack.at_once) as pool:
        return list(pool.map(one, attack.tries))


def judged(attack: Attack, replies: Iterable[Reply]) -> list[str]:
    """What is wrong with the replies, whatever time and memory they took."""
    return list(dict.fromkeys(_faults(attack, replies)))


def run(attack: Attack, server: ServerProcess, target: Target) -> tuple[Row, list[str]]:
    with Watch(server, target) as watch:
        replies = attempt(attack, target)
    outcomes = Counter(str(reply.outcome) for reply in replies)
    slowest_s = max(reply.seconds for reply in replies)
    row = {
        "tries": len(replies),
        "outcomes": dict(sorted(outcomes.items())),
        "slowest_ms": round(slowest_s * 1e3),
        "health_ms": round(watch.slowest_s * 1e3),
        "server_mb": round(watch.server_mb),
        "worker_mb": round(watch.worker_mb),
    }
    faults = judged(attack, replies)
    if slowest_s > attack.limit_s + 1:
        faults.append(f"{slowest_s:.0f} s, more than {attack.limit_s:.0f}")
    if watch.slowest_s > STALL_S:
        faults.append(f"others waited {watch.slowest_s:.1f} s for /health")
    if watch.server_mb > SERVER_MB or watch.worker_mb > WORKER_MB:
        faults.append(f"{watch.server_mb:,.0f} MB, and {watch.worker_mb:,.0f} MB of a worker")
    if outcomes[HANGS]:
        faults += _recover(server)
    elif server.workers() != watch.workers:
        faults.append("a worker process ended")
    return row, faults


def _faults(attack: Attack, replies: Iterable[Reply]) -> Iterator[str]:
    for reply in replies:
        if reply.outcome not in attack.allowed:
            yield f"{reply.outcome}: {reply.message or reply.body[:100]!r}"
        yield from complaints(reply)
        if attack.check is not None and (said := attack.check(reply)):
            yield said


def _recover(server: ServerProcess) -> list[str]:
    """A worker that is still busy with what nobody waits for would slow down all that follows."""
    try:
        wait_until(lambda: server.num_questions() == 0, 5.0)
        for pid in server.workers():
            kill(pid)
        wait_until(lambda: server.health() != "ok", 10.0)
        server.wait_ready()
    except (OSError, TimeoutError, AssertionError) as error:
        return [f"the server does not recover: {error!r}"]
    return []


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[ServerProcess]:
    own = folder.with_name(OWN_INDEX)
    text = folder.with_name("own.txt")
    text.write_text("A beagle is a small hound.")
    build(own, [open_source(str(text))], LexicalEncoder.default())
    searched = ("--index", "default", "--index", str(own))
    usual = ("--port", "0", "--workers", "1", "--store", str(folder), *searched)
    with ServerProcess(*usual, *options) as server:
        server.wait_ready()
        yield server


class Report:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.faults: list[str] = []

    def attack(self, server: ServerProcess, name: str, kinds: list[str], options: Any) -> None:
        target = Target(server.host, server.port, server.key)
        for kind in kinds:
            for attack in KINDS[kind](target, options):
                started = time.perf_counter()
                row, faults = run(attack, server, target)
                row = {"server": name, "kind": kind, "attack": attack.name, **row}
                self.rows.append(row)
                self.faults += [f"{name}, {kind}, {attack.name}: {fault}" for fault in faults]
                spent = time.perf_counter() - started
                mark = "[red]fault[/]" if faults else "held"
                err.print(f"{name}: {kind}: {attack.name}: {row['outcomes']} {spent:.0f} s {mark}")
                for fault in faults:
                    err.print(f"    {fault[:300]}", style="red", markup=False)
        raised = Counter(RAISED.findall(server.log()))
        self.faults += [f"{name}: {count} in the log: {what}" for what, count in raised.items()]

    def show(self) -> None:
        table = Table("attack", "tries", "outcomes", "slowest ms", "health ms", "MB", "worker MB")
        for row in self.rows:
            counts = " ".join(f"{key}:{count}" for key, count in row["outcomes"].items())
            rest = (row[key] for key in ("slowest_ms", "health_ms", "server_mb", "worker_mb"))
            name = f"{row['server']}: {row['kind']}: {row['attack']}"
            table.add_row(name, str(row["tries"]), counts, *(f"{one:,}" for one in rest))
        out.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=sorted(KINDS), help="kinds of attack")
    parser.add_argument("--server", action="append", help="key or urls; default: both")
    parser.add_argument("--mutations", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()

    report = Report()
    plan = {
        "key": list(KINDS),
        "urls": ["urls", "browsers"],
    }
    with tempfile.TemporaryDirectory() as base, Canary() as canary:
        for name, kinds in plan.items():
            chosen = [kind for kind in kinds if given.only is None or kind in given.only]
            if not chosen or (given.server is not None and name not in given.server):
                continue
            folder = Path(base, name)
            folder.mkdir()
            options = SimpleNamespace(**vars(given), canary=canary, configured=[OWN_INDEX])
            more = ("--allow-urls", "--no-key") if name == "urls" else ()
            with serving(folder / "store", *more) as server:
                report.attack(server, name, chosen, options)
            left = sorted(path.name for path in folder.iterdir())
            allowed = {"store", OWN_INDEX, "own.txt"}
            if strange := set(left) - allowed:
                report.faults.append(f"{name}: files outside of the store: {strange}")
        report.faults += fetches()
        if canary.touched:
            report.faults.append(f"{canary.touched} requests reached the inside of the network")
    report.show()
    results = {"seed": given.seed, "attacks": report.rows, "faults": report.faults}
    if given.only is None and given.server is None:
        err.print(f"written to {write_results(results, 'serve_attacks', given.out)}")
    for fault in report.faults:
        err.print(fault, style="red", markup=False)
    sys.exit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
