"""Blocks about the server: load, batches, other people's tests, attacks, poisoned passages.

Enters: a results file. Leaves: the Markdown of a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from skipqa.evaluation.reports.markdown import table
from skipqa.evaluation.results import Results
from tools.documents.source import source


def batches(results: Results) -> str:
    found = results["results"]
    rows = [
        ["vision encoder, 8 images", f"{found['1']['speed_up']:.2f}x", "the same bits"],
        [f"drafter, {found['drafts']['at_once']} questions", f"{found['drafts']['speed_up']:.2f}x"],
    ]
    for count, measured in found["decoding"].items():
        same = f"{measured['same_answers']} of {found['questions']} answers the same"
        difference = f"{same}, log-probabilities within {measured['largest_difference']:.0e}"
        rows.append([f"decoder, {count} questions", f"{measured['speed_up']:.2f}x", difference])
    padded = [[*row, ""][:3] for row in rows]
    header = ["together, on one thread", "faster than alone", ""]
    return table(header, padded) + "\n" + source(results)


def serve_load(results: Results) -> str:
    found = results["results"]
    rows = []
    for kind in ("one_client", "many_clients"):
        load = found[kind]
        errors = sum(load["errors"].values())
        cells = [str(load["clients"]), f"{load['per_second']:.2f}"]
        cells += [f"{load['drafted']} of {load['answered']}"]
        for route in ("draft", "full"):
            latency = load["latency_s"].get(route, {})
            cells.append(" / ".join(f"{latency[p]:.2f}" for p in ("p50", "p95") if p in latency))
        rows.append([*cells, str(sum(load["refusals"].values())), str(errors)])
    header = ["clients", "answers per s", "drafted", "drafted: p50 / p95, s"]
    header += ["looked up: p50 / p95, s", "429", "errors"]
    memory, killed, stopped = (found[key] for key in ("memory", "killed_worker", "stopped"))
    slope = memory["mb_per_1000_requests"]["anonymous"]
    workers = [marks["100%"]["pss"] for name, marks in memory["mb"].items() if name != "server"]
    notes = [
        f"{found['throughput_ratio']:.2f} times as many answers as one at a time, "
        f"{found['workers']} workers of one thread.",
        f"Memory over {memory['requests']:,} requests: {slope:+.1f} MB per 1,000 in the second "
        f"half; {memory['mb']['server']['100%']['rss']:.0f} MB for the HTTP process, "
        f"{sum(workers) / len(workers):,.0f} MB for a worker, what they share divided.",
        f"A worker killed with {killed['in_flight']} questions in flight: "
        f"{_errors(killed['errors'])}; all workers back after "
        f"{killed['seconds_until_all_workers']:.1f} s. Stopped by SIGTERM with "
        f"{stopped['in_flight']} in flight: {_errors(stopped['errors'])}, exit code "
        f"{stopped['exit_code']}.",
    ]
    return table(header, rows) + "\n\n" + "\n".join(notes) + "\n" + source(results)


def _errors(errors: Mapping[str, int]) -> str:
    lost = sum(errors.values())
    return f"{lost} lost" if lost else "none lost"


def suites(results: Results) -> str:
    rows = [
        [
            suite["suite"],
            str(suite["version"]),
            str(suite["passed"]),
            str(len(suite["failed"])),
            str(len(suite["skipped"])),
        ]
        for suite in results["results"]["suites"]
    ]
    header = ["suite", "version", "passed", "failed", "does not apply"]
    return table(header, rows) + "\n" + source(results)


def serve_attacks(results: Results) -> str:
    """One row for each kind of attack, over all servers that it was tried on."""
    found = results["results"]
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for row in found["attacks"]:
        by_kind.setdefault(row["kind"], []).append(row)
    rows = []
    for kind, attacks in by_kind.items():
        outcomes: Counter[str] = Counter()
        for attack in attacks:
            outcomes.update(attack["outcomes"])
        rows.append(
            [
                kind,
                str(len(attacks)),
                f"{sum(attack['tries'] for attack in attacks):,}",
                ", ".join(f"{outcome} × {count:,}" for outcome, count in sorted(outcomes.items())),
                *(f"{max(a[key] for a in attacks):,}" for key in ("slowest_ms", "server_mb")),
                f"{max(attack['worker_mb'] for attack in attacks):,}",
            ]
        )
    faults = "No fault." if not found["faults"] else f"{len(found['faults'])} faults."
    header = ["attack", "ways", "tries", "outcomes", "slowest, ms", "server, MB", "a worker, MB"]
    return table(header, rows) + f"\n\n{faults}\n" + source(results)


def poisoned(results: Results) -> str:
    found = results["results"]
    systems = found["systems"]
    names = {
        "skip": "as shipped",
        "skip-no-verify": "without verification",
        "two-documents": "two documents must agree",
        "two-corpora": "two corpora must agree",
    }
    conditions = list(next(iter(systems.values())))
    rows = []
    for condition in conditions:
        cells = [condition]
        for system in names:
            row = systems[system][condition]
            attacked = "" if condition == "clean" else f"{_percent(row['asr'])}, "
            cells.append(f"{attacked}{_percent(row['accuracy'])}")
        rows.append(cells)
    header = ["passages", *names.values()]
    note = (
        f"\nAttack success, then accuracy, in percent with 95 % intervals; "
        f"{found['questions']} questions of Pocket-KB val, the fast path off.\n"
    )
    return table(header, rows) + "\n" + note + source(results).lstrip()


def _percent(interval: Mapping[str, float]) -> str:
    mean, low, high = (100 * interval[key] for key in ("mean", "low", "high"))
    return f"{mean:.0f} ({low:.0f} to {high:.0f})"
