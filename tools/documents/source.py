"""The line under a block: the command, machine, versions and commit behind its numbers."""

from __future__ import annotations

from skipqa.evaluation.results import Results


def source(results: Results) -> str:
    machine = results["machine"]
    cores = f"{machine['cores']} core{'' if machine['cores'] == 1 else 's'}"
    where = machine.get("gpu") or f"{machine['cpu']}, {cores}"
    torch = results["versions"].get("torch", "none")
    return (
        f"\n`{results['command']}` on {where}; Python {results['python']}, torch {torch}, "
        f"commit {results['commit']}, {results['date']}."
    )
