"""People's questions, and the passages that seem to answer them: labels by what a passage says.

Enters: OK-VQA with its annotated objects, FVQA with its facts, a corpus. Leaves: queries whose gold
passages hold an answer, or state the fact, among the first that a lexical search finds by the
thing's name and the question. Passages that were found and do not are the hard negatives. A tenth
of the photos is held out; photos of Pocket-KB's `val` and its unseen entities are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from skipqa.data.held_out import is_held_out, photos_of_val
from skipqa.files import Fields, check_rows, read_jsonl
from skipqa.language import all_forms, base_forms, content_words, words_of
from skipqa.tasks.facts import states
from skipqa.tasks.okvqa import normalise
from skipqa.training.example import RIGHT
from skipqa.training.objects import read_objects
from skipqa.training.retrieval.about import IN_IMAGE, TRAIN
from skipqa.training.retrieval.query import Query
from skipqa.training.retrieval.stored import Corpus
from skipqa.training.run import Counted
from skipqa.types import Passage

OKVQA, FVQA = "okvqa", "fvqa"
EMPTY_ANSWERS = frozenset(("yes", "no"))  # too many passages hold these
DEPTH = 50  # passages searched for an answer
MOST = 16  # gold passages
MOST_WORDS = 2  # of a name that is taken from a fact


@dataclass(frozen=True, slots=True)
class Unlabelled:
    name: str
    text: str
    search: str  # what gold passages are looked for with
    answers: Callable[[Passage], bool]
    source: str
    held_out: bool


def read(data: Path, pocket_kb: Path | None, unseen: frozenset[str]) -> list[Unlabelled]:
    left_out = photos_of_val(pocket_kb)["coco"]
    asked = [*from_okvqa(data / "okvqa", left_out), *from_fvqa(data / "fvqa", left_out)]
    return [one for one in asked if one.name not in unseen]


def label(
    asked: Sequence[Unlabelled], corpus: Corpus, counted: Counted
) -> tuple[list[Query], dict[str, int]]:
    """Queries that some passage answers; and of each source, how many none does."""
    found: list[Query] = []
    unanswered = {OKVQA: 0, FVQA: 0}
    hits = corpus.find([one.search for one in asked], DEPTH, counted)
    for one, rows in zip(asked, hits, strict=True):
        passages = [corpus.passages[row] for row in rows]
        gold = tuple(passage.id for passage in passages if one.answers(passage))[:MOST]
        if gold:
            found.append(Query(one.name, one.text, gold, one.source, one.held_out))
        else:
            unanswered[one.source] += 1
    return found, unanswered


def from_okvqa(folder: Path, left_out: frozenset[str]) -> Iterator[Unlabelled]:
    path, thing_of = folder / TRAIN, read_objects(folder)
    if not thing_of:
        return
    fields: Fields = {"question_id": (int, str), "image": str, "question": str, "answers": dict}
    for row in check_rows(str(path), read_jsonl(path), fields):
        thing = thing_of.get(str(row["question_id"]))
        name = normalise(thing.name) if thing else ""
        right = [text for text, score in row["answers"].items() if score >= RIGHT]
        right = [text for text in right if text not in EMPTY_ANSWERS and not text.isdigit()]
        if name and right and row["image"] not in left_out:
            question = row["question"]
            holds = partial(holds_any, [_base_forms(text) for text in right])
            held_out = is_held_out(row["image"])
            yield Unlabelled(name, question, f"{name}: {question}", holds, OKVQA, held_out)


def from_fvqa(folder: Path, left_out: frozenset[str]) -> Iterator[Unlabelled]:
    """The thing is the answer where that is in the image; otherwise it is what the fact has besides
    question and answer. Passages are looked for with the fact itself."""
    path = folder / TRAIN
    if not path.is_file():
        return
    fields = dict.fromkeys(("image", "question", "answer", "fact", "from"), str)
    for row in check_rows(str(path), read_jsonl(path), fields):
        name = normalise(row["answer"]) if row["from"] == IN_IMAGE else _subject(row)
        if name and row["image"] not in left_out:
            states_it = partial(_states, row["fact"])
            held_out = is_held_out(row["image"])
            yield Unlabelled(name, row["question"], row["fact"], states_it, FVQA, held_out)


def _subject(row: Mapping[str, str]) -> str:
    """Empty where too much is left of the fact to be a name."""
    other = all_forms(words_of(f"{row['question']} {row['answer']}"))
    left = [word for word in content_words(row["fact"]) if base_forms(word).isdisjoint(other)]
    return " ".join(left) if len(left) <= MOST_WORDS else ""


def _states(fact: str, passage: Passage) -> bool:
    return states(fact, f"{passage.title}. {passage.text}")


def holds_any(answers: Sequence[Sequence[frozenset[str]]], passage: Passage) -> bool:
    """Whether the words of an answer stand there one after another, in any number."""
    words = _base_forms(f"{passage.title} {passage.text}")
    return any(
        all(not one.isdisjoint(words[start + i]) for i, one in enumerate(answer))
        for answer in answers
        if answer
        for start in range(len(words) - len(answer) + 1)
    )


def _base_forms(text: str) -> list[frozenset[str]]:
    return [base_forms(word) for word in re.findall(r"[^\W_]+", text.lower())]
