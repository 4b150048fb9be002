"""Questions made from any passage: a sentence of it, asked for a name, a number or its last words.

Enters: a passage's text. Leaves: a question that this passage answers and the answer as it stands
there. Nobody would ask so ("Its walls were built in what?"), but every corpus has such sentences,
and what learns to read them learns to find the place that a question speaks of. It knows no image.
"""

from __future__ import annotations

import re
from random import Random

from skipqa.language import STOP_WORDS
from skipqa.training.retrieval.corpora import ENDS

MIN_WORDS, MAX_WORDS = 5, 32  # of a sentence
MAX_ANSWER = 4  # words
# "term (noun): its definition": what stands before says what it is about
_ABOUT = re.compile(r"^[^.:]{1,60}: ")
_NAME = re.compile(
    r"\b[A-Z][\w'’-]+(?: (?:(?:of|the|de|and) )?[A-Z][\w'’-]+)*|\b\d[\d,.]*\d\b|\b\d\b"
)
_WORD = re.compile(r"[^\W_][\w'’-]*")
_CLAUSE = re.compile(r"[,;:()]")


def question(text: str, draw: Random) -> tuple[str, str] | None:
    """None where no sentence can be asked for."""
    sentences = ENDS.split(" ".join(text.split()))
    draw.shuffle(sentences)
    for sentence in sentences:
        said = _ABOUT.sub("", sentence).strip().rstrip(".!?")
        if MIN_WORDS <= len(said.split()) <= MAX_WORDS and (spans := _spans(said)):
            start, end = draw.choice(spans)
            asked = f"{said[:start]}what{said[end:]}?"
            return asked[0].upper() + asked[1:], said[start:end]
    return None


def _spans(said: str) -> list[tuple[int, int]]:
    """Names and numbers inside the sentence; without any, the last words of its clauses."""
    named = [match.span() for match in _NAME.finditer(said) if match.start() > 0]
    if named := [span for span in named if len(said[slice(*span)].split()) <= MAX_ANSWER]:
        return named
    found, first = [], 0
    for end in [*(match.start() for match in _CLAUSE.finditer(said)), len(said)]:
        words = [match.span() for match in _WORD.finditer(said, first, end)]
        content = [span for span in words[2:] if said[slice(*span)].lower() not in STOP_WORDS]
        if content and content[-1] == words[-1]:
            found.append(content[-1])
        first = end
    return found
