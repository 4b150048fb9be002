"""What is to do and what is done: the input cut into fragments, each with an output file.

Enters: sources. Leaves: fragments of at most `size` consecutive rows of one file; the name of a
fragment's output follows from the file's name and the rows alone. A fragment is done when its
output is there with all of its rows. It knows nothing of pipelines or of Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skipqa.batch.outputs import Tally, output_name, read_tally
from skipqa.batch.sources import Fragment, Source
from skipqa.errors import UserError


@dataclass(slots=True)
class Plan:
    """The fragments in order, and which of them are left."""

    fragments: list[Fragment]
    left: list[Fragment] = field(default_factory=list)
    before: Tally = field(default_factory=Tally)  # of those that earlier runs finished

    @property
    def questions(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def questions_left(self) -> int:
        return sum(fragment.rows for fragment in self.left)

    @property
    def num_done(self) -> int:
        return len(self.fragments) - len(self.left)


def cut(sources: Iterable[Source], size: int, limit: int | None = None) -> list[Fragment]:
    """Every row of every source, or the first `limit` rows, in fragments of at most `size`."""
    fragments: dict[str, Fragment] = {}
    left = limit
    for source in sources:
        rows = source.rows if left is None else min(left, source.rows)
        left = None if left is None else left - rows
        for number, start in enumerate(range(0, rows, size)):
            stop = min(start + size, rows)
            offset = source.offsets[number] if source.offsets else 0
            output = output_name(source.name, start, stop)
            if other := fragments.get(output):
                raise UserError(
                    f"{source.path} and {other.file} would have the same outputs: rename one"
                )
            fragments[output] = Fragment(str(source.path), start, stop, output, offset)
    return list(fragments.values())


def plan(fragments: Sequence[Fragment], out: Path) -> Plan:
    """What is left to answer: fragments whose output is missing or not whole."""
    found = Plan(list(fragments))
    for fragment in fragments:
        tally = read_tally(out / fragment.output)
        if tally is None or tally.questions != fragment.rows:
            found.left.append(fragment)
        else:
            found.before.add(tally)
    return found
