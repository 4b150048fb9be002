"""Answers for people in place of a few words: sentences, with the passages that they rest on.

- `ClauseQuoter`: a small decoder says what it always says, and the clause of the passage that its
  answer rests on is quoted after it.
- `SentenceReader`: a decoder that follows instructions writes a sentence of its own.

Enters: as for every reader, a state and the facts to read. Leaves: a `Reading` whose text has no
markers yet; `cited` adds them. Which statement rests on which passage is found by its words, since
a small decoder's own references are not to be trusted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from skipqa.backbones.backbone import Backbone, Decoding
from skipqa.config import DecodeConfig
from skipqa.language import STOP_WORDS, all_forms, base_forms, content_words
from skipqa.stages.prompts import sentence_prompt
from skipqa.stages.readers import Reader, Reading, names_shown, words_shown
from skipqa.state import State
from skipqa.types import Decoded

MAX_NEW_TOKENS = 64
FEW_WORDS = 4  # an answer of more is a quotation itself
SUPPORTED = 0.5  # of a statement's content words, in the passage that it rests on
_GAP = re.compile(r"(?<=[.!?])\s+(?=\S)")
_TITLES = ("Mr", "Ms", "Mrs", "Dr", "Prof")
# "C.", "St.", "U.S.", but not "30 °C." or "R&B."
_SHORT = re.compile(rf"(?<![\w°&])(?:\w+\.)*([A-Z]|St|Mt|{'|'.join(_TITLES)})\.$")
_LETTERED = ("vitamin", "hepatitis", "class", "type", "group", "grade", "plan", "letter")
_OPENING = "\"'“‘("
_MARKER = re.compile(r"\s*\[\d+\]")
_CLAUSE = r"[^.;:()\"]*"


class ClauseQuoter:
    """Only an answer that the passages made likelier rests on one of them."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.max_passages = reader, reader.max_passages

    def __call__(self, state: State, facts: Sequence[str]) -> Reading:
        reading = self.reader(state, facts)
        text = reading.answer.text
        clause = clause_with(text, facts) if reading.answer.grounded else ""
        if not clause:
            return reading
        said = clause if len(text.split()) > FEW_WORDS else f"{text}: “{clause}”"
        return replace(reading, answer=replace(reading.answer, text=said))


class SentenceReader:
    def __init__(self, config: DecodeConfig, backbone: Backbone) -> None:
        self.config, self.backbone = config, backbone
        self.max_passages = config.max_passages

    def __call__(self, state: State, facts: Sequence[str]) -> Reading:
        words = words_shown(state.kept.tokens.words, self.config)
        shown = words or names_shown(state, self.backbone)
        prompt = sentence_prompt(facts, shown, state.question.text)
        completion = self.backbone.generate(prompt, Decoding(MAX_NEW_TOKENS))
        text = _MARKER.sub("", completion.text)
        return Reading(Decoded(text), prompt, completion, "in a sentence")


def clause_with(answer: str, facts: Sequence[str]) -> str:
    """The whole clause, in the best fact that has the answer; empty where none has it."""
    found = re.compile(rf"{_CLAUSE}(?<!\w){re.escape(answer)}(?!\w){_CLAUSE}", re.IGNORECASE)
    clauses = (match[0].strip(" ,") for text in reversed(facts) if (match := found.search(text)))
    return next(clauses, "") if answer else ""


def cited(text: str, facts: Sequence[str], numbers: Sequence[int]) -> str:
    """Each statement followed by the number of the fact it rests on, if there is one."""
    told = [all_forms(content_words(fact)) for fact in facts]

    def marked(statement: str) -> str:
        said = content_words(statement)
        support = [sum(not forms.isdisjoint(base_forms(w)) for w in said) for forms in told]
        most = max(support, default=0)
        if not said or most < SUPPORTED * len(said):
            return statement
        best = max(range(len(facts)), key=lambda n: (support[n], n))  # of equals the last, the best
        return f"{statement} [{numbers[best]}]"

    return " ".join(map(marked, statements(text)))


def statements(text: str) -> list[str]:
    found, start = [], 0
    for gap in _GAP.finditer(text):
        statement = text[start : gap.start()]
        if _ends(statement, text[gap.end() :]):
            found.append(statement)
            start = gap.end()
    return [*found, text[start:]]


def _ends(statement: str, after: str) -> bool:
    """Not with a title or an initial of a name that goes on. Where that is open it is taken to go
    on: a marker within a name is worse than one for two statements."""
    previous, last = ["", *statement.split()][-2:]
    if (short := _SHORT.search(last)) is None:
        return True
    word, dot, _ = after.split()[0].lstrip(_OPENING).partition(".")
    initial_follows = dot and len(word) == 1  # "J. R. R. Tolkien"
    if short[1] in _TITLES or initial_follows or not word[:1].isupper():
        return False
    if word.lower() in STOP_WORDS or previous.lower() in _LETTERED:  # "Main St. It", "vitamin C"
        return True
    # After a capitalised word, I is a numeral far more often than an initial: "World War I"
    return last == "I." and previous[:1].isupper() and previous[-1:].isalnum()
