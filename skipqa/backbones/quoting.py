"""Decoding that can only quote: every generated token continues a span of the given texts.

Enters: texts and a tokenizer. Leaves: after each token, which tokens may come next. A span
starts and ends at word boundaries. It knows nothing of the model whose choice it narrows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tokenizers import Tokenizer

WORD_START = "Ġ"  # how a byte-level vocabulary writes a leading space


class SpanConstraint:
    """`allowed()` names the tokens that may come next, `advance(token)` takes one of them."""

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        stop: Collection[int],
        avoid: Collection[str] = (),
    ) -> None:
        """A span does not start with a word of `avoid`: those that the question already has."""
        self._stop = set(stop)
        self._tokens: list[int] = []
        self._starts_word: list[bool] = []  # of each token, and true behind each text
        self._places: list[int] = []  # where the next token of the span may stand
        avoided = {word.lower() for word in avoid}
        for text in texts:
            encoding = tokenizer.encode(" " + text)
            first = len(self._tokens)
            self._tokens += [*encoding.ids, -1]
            self._starts_word += [not t[0].isalnum() or t[0] == WORD_START for t in encoding.tokens]
            self._starts_word.append(True)
            for offset, token in enumerate(encoding.tokens):
                word = token.removeprefix(WORD_START)
                starts = token.startswith(WORD_START) and word[:1].isalnum()
                if starts and self._word_at(encoding.tokens, offset).lower() not in avoided:
                    self._places.append(first + offset)
        self._started = False

    @staticmethod
    def _word_at(tokens: Sequence[str], offset: int) -> str:
        """The whole word whose first token is at `offset`."""
        word = tokens[offset].removeprefix(WORD_START)
        for token in tokens[offset + 1 :]:
            if not token[0].isalnum() or token[0] == WORD_START:
                break
            word += token
        return word

    def __bool__(self) -> bool:
        """Whether there is anything to quote."""
        return bool(self._places)

    def allowed(self) -> list[int]:
        following = {self._tokens[place] for place in self._places} - {-1}
        if self._started and any(self._starts_word[place] for place in self._places):
            following |= self._stop
        return sorted(following)

    def advance(self, token: int) -> None:
        self._started = True
        self._places = [place + 1 for place in self._places if self._tokens[place] == token]
