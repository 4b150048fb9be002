"""Constrained decoding: the completion is a span of given texts, or given tokens exactly.

Enters: texts and a tokenizer. Leaves: after each token, which tokens may come next. A span
starts and ends at word boundaries. It knows nothing of the model whose choice it restricts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from tokenizers import Tokenizer

WORD = re.compile(r"\w+")


class SpanConstraint:
    """`allowed()` lists the tokens that may come next, `advance(token)` appends one of them."""

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        stop: Collection[int],
        avoid: Collection[str] = (),
    ) -> None:
        """No span starts with a word of `avoid`, such as the words of the question."""
        self._stop = set(stop)
        self._tokens: list[int] = []  # all texts one after another, -1 after each
        self._boundary: list[bool] = []  # whether a span may end before the token
        self._places: list[int] = []  # indices into `_tokens` at which the span may continue
        self._started = False
        avoided = {word.lower() for word in avoid}
        for text in texts:
            self._add(" " + text, tokenizer, avoided)

    def _add(self, text: str, tokenizer: Tokenizer, avoided: Collection[str]) -> None:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        words = {match.start(): match[0].lower() for match in WORD.finditer(text)}
        before = -1
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            # A token includes the space before its word.
            start += len(text[start:end]) - len(text[start:end].lstrip())
            word = words.get(start) if start > before else None  # else a byte inside a character
            if word is not None and word not in avoided and text[start - 1].isspace():
                self._places.append(len(self._tokens))
            inside = start <= before or (WORD.match(text, start) and start not in words)
            self._tokens.append(token)
            self._boundary.append(not inside)
            before = start
        self._tokens.append(-1)
        self._boundary.append(True)

    def __bool__(self) -> bool:
        """Whether there is anything to quote."""
        return bool(self._places)

    def allowed(self) -> list[int]:
        following = {self._tokens[place] for place in self._places} - {-1}
        if self._started and any(self._boundary[place] for place in self._places):
            following |= self._stop
        return sorted(following)

    def advance(self, token: int) -> None:
        self._started = True
        self._places = [place + 1 for place in self._places if self._tokens[place] == token]

    def likely(self) -> list[int]:
        """The rest of the first text that contains the span so far."""
        if not self._started or not self._places:
            return []
        start = self._places[0]
        return self._tokens[start : self._tokens.index(-1, start)]


class Verbatim:
    """Forces exactly these tokens, to read off their log-probabilities (teacher forcing)."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.left = list(tokens)

    def allowed(self) -> list[int]:
        return self.left[:1]

    def advance(self, token: int) -> None:
        self.left = self.left[1:]

    def likely(self) -> list[int]:
        return self.left
