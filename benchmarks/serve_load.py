"""A server under load on this machine: throughput, latency, memory, and what it does when killed.

One `skipqa serve` answers questions about photos of a benchmark, each asked once, so that nothing
kept from one helps another. One client and many take turns, so that both see the same machine.
Then memory is watched over many requests, a worker is killed (SIGKILL) and the server is stopped
(SIGTERM), each with clients that keep asking. Where fast and full are mixed, the shipped threshold
decides.

    python benchmarks/serve_load.py --questions okvqa/val.jsonl --images okvqa/val.zip
"""

from __future__ import annotations

import argparse
import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from serve_clients import ANSWERED, Asked, Clients, Question, pairs
from server_process import Memory, ServerProcess, cpu_seconds, is_running, kill, memory, wait_until

from skipqa.cli.console import counting, err, out
from skipqa.costs.environment import available_cores, write_results

TURNS = 2  # of one client and of many
PERCENTILES = (50, 95, 99)
ROUTES = ("draft", "full")
MARKS = (25, 50, 75, 100)  # percent of the requests whose memory is reported
FULL_EVERY = 10  # while memory is watched: the others are drafts
SAMPLE_S = 1.0
FLAT = 0.02  # growth of what is allocated over the second half, as a fraction, that is noise
BEFORE_S, AFTER_S = 3.0, 5.0  # of load around a kill
Report = Callable[[str, int, int | None], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True, help="a zip of the photos")
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--disturbed", type=int, default=16, help="clients where one is killed")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each kind of load")
    parser.add_argument("--requests", type=int, default=2_000, help="while memory is watched")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    questions = pairs(options.questions, options.images, options.seed)
    serve = ("--port", "0", "--no-uploads", "--workers", str(options.workers))
    with counting() as report, ServerProcess(*serve) as server:
        server.wait_ready()
        wait_until(lambda: server.metric("num_workers") == options.workers)
        loads = measure_loads(server, questions, options, report)
        results = {
            "workers": options.workers,
            "seed": options.seed,
            **loads,
            "memory": watch_memory(server, questions, options, report),
            "killed_worker": kill_worker(server, questions, options, report),
            "stopped": stop(server, questions, options, report),
        }
    show(results)
    err.print(f"written to {write_results(results, 'serve_load', options.out)}")


# One client and many


def measure_loads(
    server: ServerProcess, questions: Iterator[Question], options: Any, report: Report
) -> dict[str, Any]:
    kinds = {"one_client": 1, "many_clients": options.clients}
    asked: dict[str, list[Asked]] = {kind: [] for kind in kinds}
    seconds, cpu = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
    processes = [server.process.pid, *server.workers()]
    for turn, (kind, count) in itertools.product(range(TURNS), kinds.items()):
        name = f"{count} client{'s' * (count > 1)}, turn {turn + 1}"
        cpu[kind] -= sum(map(cpu_seconds, processes))
        start = time.perf_counter()
        with Clients(server, questions, count) as clients:
            while (spent := time.perf_counter() - start) < options.seconds / TURNS:
                report(name, round(spent), round(options.seconds / TURNS))
                time.sleep(0.2)
        asked[kind] += clients.asked  # what was begun is waited for, and counted
        seconds[kind] += time.perf_counter() - start
        cpu[kind] += sum(map(cpu_seconds, processes))
    measured = {
        kind: {
            "clients": count,
            **summary(asked[kind], seconds[kind]),
            # Many clients that keep fewer cores busy than there are: the machine was not quiet
            "cores_busy": cpu[kind] / seconds[kind],
        }
        for kind, count in kinds.items()
    }
    ratio = measured["many_clients"]["per_second"] / measured["one_client"]["per_second"]
    return {**measured, "throughput_ratio": ratio}


def summary(asked: Sequence[Asked], seconds: float) -> dict[str, Any]:
    answered = [one for one in asked if one.outcome == ANSWERED]
    return {
        "seconds": seconds,
        "answered": len(answered),
        "drafted": sum(one.route == "draft" for one in answered),
        "per_second": len(answered) / seconds,
        "latency_s": latencies(answered),
        "latency_after_first_s": latencies([one for one in answered if not one.first]),
        **failures(asked),
    }


def latencies(answered: Sequence[Asked]) -> dict[str, dict[str, float]]:
    by_route = {route: [one.seconds for one in answered if one.route == route] for route in ROUTES}
    return {route: percentiles(values) for route, values in by_route.items() if values}


def failures(asked: Sequence[Asked]) -> dict[str, Any]:
    """Refusals that a client waited out, and questions that were never answered."""
    return {
        "refusals": dict(Counter(str(status) for one in asked for status in one.refusals)),
        "retries": sum(len(one.refusals) for one in asked),
        "errors": dict(Counter(one.outcome for one in asked if one.outcome != ANSWERED)),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}


# Memory over many requests


def watch_memory(
    server: ServerProcess, questions: Iterator[Question], options: Any, report: Report
) -> dict[str, Any]:
    limited = itertools.islice(mostly_drafts(questions), options.requests)
    names = {server.process.pid: "server"}
    names |= {pid: f"worker {n}" for n, pid in enumerate(server.workers(), 1)}
    done: list[int] = []
    samples: dict[str, list[Memory]] = {name: [] for name in names.values()}

    def sample() -> None:
        done.append(len(clients.asked))
        for pid, name in names.items():
            samples[name].append(memory(pid))
        report("memory", done[-1], options.requests)

    with Clients(server, limited, options.disturbed) as clients:
        while clients.busy:
            sample()
            time.sleep(SAMPLE_S)
    sample()
    found = {kind: trend(done, samples, kind) for kind in Memory._fields}
    return {
        "requests": options.requests,
        "drafted": sum(one.route == "draft" for one in clients.asked),
        **failures(clients.asked),
        "mb": {name: at_marks(done, values) for name, values in samples.items()},
        "mb_per_1000_requests": found,
        "growth_of_second_half": found["anonymous"] * done[-1] / 2e3 / total(samples, -1),
    }


def total(samples: Mapping[str, Sequence[Memory]], place: int) -> float:
    """MB that all processes have allocated."""
    return sum(values[place].anonymous for values in samples.values())


def trend(done: Sequence[int], samples: Mapping[str, Sequence[Memory]], kind: str) -> float:
    """MB per 1,000 requests, of all processes: the slope of a line through the second half."""
    half = next(n for n, count in enumerate(done) if count >= done[-1] / 2)
    together = np.sum([[getattr(one, kind) for one in values] for values in samples.values()], 0)
    return 1e3 * float(np.polyfit(done[half:], together[half:], 1)[0])


def mostly_drafts(questions: Iterator[Question]) -> Iterator[Question]:
    for number, question in enumerate(questions):
        full = number % FULL_EVERY == 0
        fields = {"fast_path": "false"} if full else {"threshold": "0"}
        yield question._replace(fields=fields)


def at_marks(done: Sequence[int], samples: Sequence[Memory]) -> dict[str, dict[str, float]]:
    """When so many percent of the requests were answered."""
    places = {
        mark: next(n for n, count in enumerate(done) if count >= done[-1] * mark / 100)
        for mark in MARKS
    }
    return {f"{mark}%": samples[place]._asdict() for mark, place in places.items()}


# One that is killed, and all that are stopped


def kill_worker(
    server: ServerProcess, questions: Iterator[Question], options: Any, report: Report
) -> dict[str, Any]:
    with Clients(server, questions, options.disturbed) as clients:
        time.sleep(BEFORE_S)
        report("one worker killed", 0, 2)
        in_flight = clients.in_flight
        killed = server.workers()[0]
        kill(killed)
        whole = wait_until(lambda: server.metric("num_workers") < options.workers)
        unhealthy = wait_until(lambda: server.health() == "ok")
        report("one worker killed", 1, 2)
        whole += unhealthy + wait_until(lambda: server.metric("num_workers") == options.workers)
        time.sleep(AFTER_S)
    report("one worker killed", 2, 2)
    return {
        "clients": options.disturbed,
        "in_flight": in_flight,
        "asked": len(clients.asked),
        **failures(clients.asked),
        "seconds_without_health": unhealthy,
        "seconds_until_all_workers": whole,
    }


def stop(
    server: ServerProcess, questions: Iterator[Question], options: Any, report: Report
) -> dict[str, Any]:
    with Clients(server, questions, options.disturbed) as clients:
        time.sleep(BEFORE_S)
        report("stopped", 0, 1)
        clients.hold()  # so that all that were sent are known to be taken on
        wait_until(lambda: server.num_questions() == clients.in_flight)
        workers = server.workers()
        start = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        clients.go_on()
        code = server.end(signal.SIGTERM)
        seconds = time.perf_counter() - start
    report("stopped", 1, 1)
    accepted = [one for one in clients.asked if one.begun < start <= one.ended]
    after = [one for one in clients.asked if one.begun >= start]
    return {
        "clients": options.disturbed,
        "in_flight": len(accepted),
        "answered": sum(one.outcome == ANSWERED for one in accepted),
        **failures(accepted),
        "asked_later": dict(Counter(one.outcome for one in after)),
        "exit_code": code,
        "seconds": seconds,
        "processes_left": sum(map(is_running, workers)),
    }


def show(results: dict[str, Any]) -> None:
    columns = ("clients", "answers/s", "cores", "drafted", "route")
    table = Table(*columns, *(f"p{p}" for p in PERCENTILES))
    for kind in ("one_client", "many_clients"):
        found = results[kind]
        of_all = f"{found['drafted']} of {found['answered']}"
        rates = (f"{found['per_second']:.2f}", f"{found['cores_busy']:.2f}")
        row = [str(found["clients"]), *rates, of_all]
        for note, which in (("", "latency_s"), (" later", "latency_after_first_s")):
            for route, values in found[which].items():
                cells = (f"{1e3 * value:,.0f} ms" for value in values.values())
                table.add_row(*row, route + note, *cells)
                row = [""] * len(row)
    out.print(table)
    out.print(f"many clients answer {results['throughput_ratio']:.2f} times as many questions")
    watched, killed, stopped = (results[key] for key in ("memory", "killed_worker", "stopped"))
    table = Table(f"MB in {watched['requests']:,} requests", *(f"{mark}%" for mark in MARKS))
    for name, marks in watched["mb"].items():
        cells = (" ".join(f"{megabytes:,.0f}" for megabytes in m.values()) for m in marks.values())
        table.add_row(name, *cells)
    out.print(table)
    slopes = watched["mb_per_1000_requests"]
    flat = abs(watched["growth_of_second_half"]) < FLAT
    out.print(
        f"(resident, proportional, anonymous); per 1,000 requests of the second half "
        f"{slopes['anonymous']:+.1f} MB anonymous, {slopes['rss']:+.1f} resident: "
        f"{'flat' if flat else 'NOT flat'}"
    )
    table = Table("", "questions in flight", "errors", "refused, then answered", "seconds")
    spent = {"killed": killed["seconds_until_all_workers"], "stopped": stopped["seconds"]}
    for (name, seconds), found in zip(spent.items(), (killed, stopped), strict=True):
        failed = (str(found[kind] or "none") for kind in ("errors", "refusals"))
        table.add_row(name, str(found["in_flight"]), *failed, f"{seconds:.1f}")
    out.print(table)
    out.print(
        f"stopped with exit code {stopped['exit_code']}; asked later: {stopped['asked_later']}; "
        f"processes left: {stopped['processes_left']}"
    )


if __name__ == "__main__":
    main()
