"""Was it measured with what ships?

Enters: checksums of components, as a run or a results file names them, and those of the bundled
checkpoint. Leaves: the components by which the two differ. A measurement counts as long as every
component that it depends on is, bit for bit, the one that ships.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from skipqa.components import Components, bundled
from skipqa.evaluation.reports.runs import Run

PRESET = "pocket"
# Components that these systems alone use. `benchmarks/unchanged.py` has to show that the answers
# of all others stay the same.
USED_ONLY_BY: Mapping[str, frozenset[str]] = MappingProxyType({"bridge": frozenset({"skip-iter"})})


def shipped() -> dict[str, str]:
    """The checksum of every component that is bundled with the preset, by name."""
    return Components(folder=bundled(PRESET)).checksums()


def outdated(
    named: Mapping[str, str], shipped: Mapping[str, str], uses: Collection[str] | None = None
) -> list[str]:
    """The components that differ from those that ship. Without `uses` all count that either side
    has, but those of single systems; with it only those."""
    if uses is None:
        uses = {name for name in (*named, *shipped) if name not in USED_ONLY_BY}
    return sorted(name for name in uses if named.get(name) != shipped.get(name))


def is_current(run: Run, shipped: Mapping[str, str]) -> bool:
    named = run.about.get("components") or {}
    own = [name for name, systems in USED_ONLY_BY.items() if run.system in systems]
    return not outdated(named, shipped) and not outdated(named, shipped, own)


def current(runs: Sequence[Run], shipped: Mapping[str, str]) -> list[Path]:
    """The folders of the runs that were made with what ships."""
    return [run.folder for run in runs if is_current(run, shipped)]
