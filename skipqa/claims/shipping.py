"""Was it measured with what ships?

Enters: checksums of components, as a run or a results file names them, and those of the bundled
checkpoint. Leaves: the components by which the two differ. A measurement counts as long as every
component that it depends on is, bit for bit, the one that ships.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from skipqa.components import Components, bundled
from skipqa.evaluation.reports.runs import Run

PRESET = "pocket"
OF_BASELINES = {"dense_reader"}  # no part of SKIP: a baseline is as strong as it can be made


def shipped() -> dict[str, str]:
    """The checksum of every component that is bundled with the preset, by name."""
    return Components(folder=bundled(PRESET)).checksums()


def outdated(
    named: Mapping[str, str], shipped: Mapping[str, str], uses: Collection[str] | None = None
) -> list[str]:
    """The components that differ from those that ship: of `uses`, or else of all that either side
    has."""
    if uses is None:
        uses = {*named, *shipped}
    return sorted(name for name in uses if named.get(name) != shipped.get(name))


def is_current(run: Run, shipped: Mapping[str, str]) -> bool:
    """A dense baseline may have a reader of its own."""
    named = run.about.get("components") or {}
    return not outdated(named, shipped, {*named, *shipped} - OF_BASELINES)


def current(runs: Sequence[Run], shipped: Mapping[str, str]) -> list[Path]:
    """The folders of the runs that were made with what ships."""
    return [run.folder for run in runs if is_current(run, shipped)]
