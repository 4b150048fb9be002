"""The 30,522-term vocabulary: its tokenizer, and which terms a lexical match uses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from skipqa import assets
from skipqa.errors import UserError
from skipqa.knowledge.vectors import NUM_TERMS

# Function and question words: they match almost every passage and identify none.
GRAMMAR_AND_QUESTIONS = """
a about above after again all also although am among an and another any anyone anything are aren
around as at be because been before being below between both but by can cannot could couldn did
didn do does doesn doing don done down during each either else etc ever every few for from
further had hadn has hasn have haven having he hence her here hers herself him himself his how
however i if in into is isn it its itself just let like ll may me might mine more most much must
my myself neither no nor not now of off often on once one ones only onto or other others our
ours ourselves out over own per please quite rather re same shall she should shouldn since so
some someone something such than that the their theirs them themselves then there these they
this those though through thus to too toward towards under until up upon us ve very was wasn we
were weren what whatever when where whether which while who whom whose why will with within
without won would wouldn yes yet you your yours yourself
"""
STOP_WORDS = frozenset(GRAMMAR_AND_QUESTIONS.split())


class Vocabulary:
    """A BERT tokenizer file, used for matching: no padding and no truncation. Never changed, since
    all that hold an equal file share it (`read`)."""

    def __init__(self, json: str) -> None:
        self.json = json
        self.tokenizer = Tokenizer.from_str(json)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    @staticmethod
    def read(path: Path) -> Vocabulary:
        """Every index has a copy of its tokenizer; equal ones are parsed once."""
        try:
            found = _parsed(path.read_text(encoding="utf-8"))
        except Exception as error:  # the tokenizers library raises bare Exception
            raise UserError(f"{path} is not a tokenizer file: {error}") from error
        if (size := found.tokenizer.get_vocab_size()) > np.iinfo(np.uint16).max:
            raise UserError(f"{path} has {size} terms; the index holds at most 65,535")
        return found

    @staticmethod
    def default() -> Vocabulary:
        return Vocabulary.read(assets.fetch(assets.MINILM) / "tokenizer.json")

    @cached_property
    def tokens(self) -> list[str]:
        by_id = self.tokenizer.get_vocab()
        tokens = [""] * max(NUM_TERMS, len(by_id))
        for token, term in by_id.items():
            tokens[term] = token
        return tokens

    @cached_property
    def matched_as(self) -> NDArray[np.int32]:
        """What each term is matched as: -1 if it is ignored, the singular for a plural."""
        known = {token: term for term, token in enumerate(self.tokens)}
        return np.array([_matched_as(token, known) for token in self.tokens], dtype=np.int32)


@lru_cache(maxsize=4)
def _parsed(json: str) -> Vocabulary:
    return Vocabulary(json)


def cut_pieces(ids: Sequence[int], most: int) -> list[int]:
    """Word pieces between [CLS] and [SEP], at most so many; what is cut still ends with [SEP]."""
    return [*ids] if len(ids) <= most else [*ids[: most - 1], ids[-1]]


def _matched_as(token: str, known: dict[str, int]) -> int:
    if token.startswith("##"):  # one-letter suffixes distinguish nothing
        return known[token] if len(token) > 3 and token.isascii() else -1
    if token in STOP_WORDS or not any(c.isalnum() for c in token) or token.startswith("["):
        return -1
    if len(token) == 1 and not token.isdigit() and token.isascii():
        return -1
    return known.get(_singular(token), known[token])


def _singular(word: str) -> str:
    """Harman's S-stemmer: three rules for English plurals."""
    if len(word) <= 3 or not word.endswith("s") or word.endswith(("us", "ss", "is")):
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    return word[:-1]
