"""The line under a block: the command, machine, versions and commit behind its numbers."""

from __future__ import annotations

from skipqa.evaluation.results import Results


def source(results: Results) -> str:
    machine = results["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    torch = results["versions"].get("torch", "none")
    return (
        f"\n`{results['command']}` on {where}; Python {results['python']}, torch {torch}, "
        f"commit {results['commit']}, {results['date']}."
    )
