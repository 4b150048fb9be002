"""Active learning: which things to write passages about first.

Enters: what was asked (the records of a run, or a file of names and questions) and how many
passages of a library are titled with a name. Leaves: the things whose coverage is thin, by what a
passage about each is expected to gain: how often it was asked about, times how unsure the answers
were, times how much of its coverage is missing. No label is read: how unsure an answer is says
its calibrated confidence. It opens no index and writes no passage.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from skipqa.config import ConsultConfig
from skipqa.errors import UserError
from skipqa.evaluation.records import Record
from skipqa.files import check_rows, parse_json, read_text, write_jsonl, write_text
from skipqa.knowledge.coverage import name_key
from skipqa.stages.names import named_in

FORMATS = (".jsonl", ".csv")


class Mention(NamedTuple):
    """A thing that a question is about, with which probability, and how unsure the answer was."""

    name: str
    prob: float
    doubt: float  # 1 - confidence; 1 where nothing is known of the answer


@dataclass(frozen=True, slots=True)
class ThinThing:
    name: str
    asked: float  # how many questions are expected to be about it
    doubt: float  # the mean over these questions
    passages: int  # that the library has about it
    expected_gain: float  # in questions


def of_records(records: Iterable[Record]) -> list[Mention]:
    """What the questions of a run were looked up for; an accepted draft looked up nothing."""
    looked_up = [record for record in records if record["route"] == "full"]
    if looked_up and not any("names" in record for record in looked_up):
        raise UserError("the records of this run name no things: run it again with this release")
    return [
        Mention(name, float(prob), 1 - record.get("confidence", 0.0))
        for record in looked_up
        for name, prob in record.get("names", {}).items()
    ]


def of_file(path: Path, is_title: Callable[[str], bool]) -> list[Mention]:
    """A line of a text is a name, or a question if it ends in a question mark; a row of JSON Lines
    has a `name` or a `question`."""
    said: list[tuple[str, bool]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text, is_question = line.strip(), line.strip().endswith("?")
        if path.suffix == ".jsonl" and text:
            row = check_rows(f"{path} line {number}", [parse_json(text)], {})[0]
            is_question = "name" not in row
            text = row.get("question" if is_question else "name", "")
            if not isinstance(text, str) or not text:
                raise UserError(f"{path} line {number} has no name and no question")
        said.append((text, is_question))
    return [
        Mention(name, 1.0, 1.0)
        for text, is_question in said
        if text
        for name in (named_in(text, is_title) if is_question else [text])
    ]


def thin_things(
    mentions: Sequence[Mention],
    passages: Callable[[str], int],
    covered: int = ConsultConfig().covered,
) -> list[ThinThing]:
    """The highest expected gain first; things with `covered` passages or more are not thin."""
    by_name: dict[str, list[Mention]] = {}
    for mention in mentions:
        by_name.setdefault(name_key(mention.name), []).append(mention)
    found = []
    for key, some in by_name.items():
        count = passages(some[0].name)
        asked = sum(mention.prob for mention in some)
        if not key or count >= covered or asked == 0:
            continue
        unsure = sum(mention.prob * mention.doubt for mention in some)
        gain = unsure * (1 - count / covered)
        doubt = round(unsure / asked, 4)
        found.append(ThinThing(some[0].name, round(asked, 4), doubt, count, round(gain, 4)))
    return sorted(found, key=lambda thing: (-thing.expected_gain, thing.name))


def write(things: Sequence[ThinThing], path: Path) -> None:
    """JSON Lines or CSV, by the name of the file."""
    check_format(path)
    rows: list[Mapping[str, object]] = [asdict(thing) for thing in things]
    if path.suffix == ".jsonl":
        write_jsonl(path, rows)
        return
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, [field.name for field in fields(ThinThing)], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())


def check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise UserError(f"{path.name}: the list is written as {' or '.join(FORMATS)}")
