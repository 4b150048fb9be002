"""Photos into rows: find pairs, write a question about each, filter it, write everything down.

Enters: photos and what finds their pairs; an endpoint and filters. Leaves, in a folder:
`rows.jsonl`, which `skipqa eval vqa` reads; `rejected.jsonl` with the filter that rejected each;
`journal.jsonl`, a line per photo, from which a stopped run goes on; `run.json`. A photo is done
when its line is there, so a kill costs the photos that were being asked about and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.files import append_jsonl, claim, read_appended, write_jsonl
from skipqa.image import open_image
from skipqa.prompted.answer import Usage
from skipqa.prompted.asking import Asking, concurrently
from skipqa.prompted.endpoint import Endpoint, EndpointError
from skipqa.prompted.images import as_picture
from skipqa.prompted.parsing import one_line
from skipqa.synthetic.config import SyntheticConfig
from skipqa.synthetic.filters import Filter, judge
from skipqa.synthetic.pairs import Pair, PairFinder
from skipqa.synthetic.writing import Candidate, write_question

ROWS, REJECTED, JOURNAL, RUN = "rows.jsonl", "rejected.jsonl", "journal.jsonl", "run.json"
Row = dict[str, Any]
Progress = Callable[[int, int], None]  # photos done, of how many


@dataclass(frozen=True, slots=True)
class Outcome:
    photos: int
    rows: int
    rejected: Mapping[str, int]  # by filter
    usage: Usage  # of all photos in the folder, those of earlier runs included
    failed: tuple[str, ...] = ()  # one line about each photo that has to be tried again


@dataclass(frozen=True)
class Generator:
    endpoint: Endpoint
    model: str
    find: PairFinder
    filters: Sequence[Filter]
    config: SyntheticConfig

    def run(
        self,
        images: Path,
        names: Sequence[str],
        folder: Path,
        about: Mapping[str, Any],
        progress: Progress = lambda done, total: None,
    ) -> Outcome:
        """`names` are of photos below `images`; `about` is what else the rows depend on."""
        claim(folder / RUN, {"model": self.model, "config": _settings(self.config), **about})
        journal = folder / JOURNAL
        done = {line["image"] for line in read_appended(journal)}
        missing = [name for name in names if name not in done]
        progress(len(names) - len(missing), len(names))
        failed: list[str] = []
        concurrency = self.config.endpoint.concurrency

        def work(name: str) -> Row | str:
            return self._photo(images / name, name)

        try:
            for number, (_, line) in enumerate(concurrently(missing, work, concurrency), 1):
                if isinstance(line, str):
                    failed.append(line)
                else:
                    append_jsonl(journal, line)
                progress(len(names) - len(missing) + number, len(names))
        finally:
            outcome = write_rows(folder, failed)
        return outcome

    def _photo(self, path: Path, name: str) -> Row | str:
        """Its line of the journal, or why there is none."""
        asking = Asking(self.endpoint, self.model)
        try:
            image = open_image(path)
            pairs = _distinct(self.find(name, image))[: self.config.pairs]
            picture = as_picture(image, self.config.image_side)
            rows, rejected = [], []
            for number, pair in enumerate(pairs):
                candidate = write_question(asking, pair, picture, self.config)
                verdict = judge(self.filters, candidate, image, asking)
                row = _row(name, number, candidate) | {
                    "filters": verdict.values,
                    "model": self.model,
                }
                if verdict.passed:
                    rows.append(row)
                else:
                    rejected.append(row | {"rejected_by": verdict.rejected_by})
        except UserError as error:
            if isinstance(error, EndpointError) and error.for_everyone:
                raise
            return one_line(f"{name}: {error}")
        usage = asdict(asking.usage)
        return {"image": name, "rows": rows, "rejected": rejected, "usage": usage}


def write_rows(folder: Path, failed: Sequence[str] = ()) -> Outcome:
    """`rows.jsonl` and `rejected.jsonl` from the journal, in the order of the photos' names."""
    lines = sorted(read_appended(folder / JOURNAL), key=lambda line: line["image"])
    rows = [row for line in lines for row in line["rows"]]
    rejected = [row for line in lines for row in line["rejected"]]
    write_jsonl(folder / ROWS, rows)
    write_jsonl(folder / REJECTED, rejected)
    by_filter: dict[str, int] = {}
    for row in rejected:
        by_filter[row["rejected_by"]] = by_filter.get(row["rejected_by"], 0) + 1
    usage = sum((Usage(**line["usage"]) for line in lines), Usage())
    return Outcome(len(lines), len(rows), by_filter, usage, tuple(failed))


def _settings(config: SyntheticConfig) -> dict[str, Any]:
    """Those that the rows depend on: the pace may change when a run goes on."""
    settings = asdict(config)
    settings["temperature"] = settings.pop("endpoint")["temperature"]
    return settings


def _row(name: str, number: int, candidate: Candidate) -> Row:
    passage = candidate.pair.passage
    return {
        "question_id": f"{name}#{number}",
        "image": name,
        "question": candidate.question,
        "answer": candidate.answer,
        "gold": [passage.id],
        "type": "synthetic",
        "entity": candidate.pair.entity,
        "names_entity": candidate.names_entity,
    }


def _distinct(pairs: Sequence[Pair]) -> list[Pair]:
    """A passage once, with the entity that comes first."""
    return list({pair.passage.id: pair for pair in reversed(pairs)}.values())[::-1]
