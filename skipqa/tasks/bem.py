"""The official BEM model, a `BemScorer` for `evqa.score`.

A folder enters: the TensorFlow SavedModel of google/answer_equivalence/bem/1 with the
`vocab.txt` of BERT base uncased next to it. A callable leaves. TensorFlow is imported on use
(extra `bem`); the tokens come from `tokenizers`, which the package has anyway.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from skipqa.errors import MissingExtra, UserError

LENGTH = 512


class Bem:
    """(candidate, reference, question) -> two logits, for "different" and "equivalent"."""

    def __init__(self, folder: Path) -> None:
        vocabulary = folder / "vocab.txt"
        for needed in (vocabulary, folder / "saved_model.pb"):
            if not needed.is_file():
                raise UserError(
                    f"{needed} does not exist: put the SavedModel of "
                    "https://tfhub.dev/google/answer_equivalence/bem/1 and the vocab.txt of "
                    f"BERT base uncased into {folder}"
                )
        try:
            import tensorflow
        except ImportError:
            raise MissingExtra("BEM", "bem") from None
        from tokenizers import BertWordPieceTokenizer

        self.folder = folder
        self.tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
        self.model = tensorflow.saved_model.load(str(folder))

    def __call__(self, candidate: str, reference: str, question: str) -> ArrayLike:
        segments = [
            self.tokenizer.encode(text, add_special_tokens=False).ids
            for text in (candidate, reference, question)
        ]
        start, stop = (self.tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
        return np.asarray(self.model(_inputs(segments, start, stop)))

    def __reduce__(self) -> tuple[type[Bem], tuple[Path]]:
        return Bem, (self.folder,)  # another process reads the model for itself


def _inputs(segments: list[list[int]], start: int, stop: int) -> dict[str, np.ndarray]:
    """[CLS] candidate [SEP] reference [SEP] question [SEP], segments 0, 1, 2, padded with 0."""
    tokens, segment_ids = [start], [0]
    for number, segment in enumerate(segments):
        tokens += [*segment, stop]
        segment_ids += [number] * (len(segment) + 1)
    if len(tokens) > LENGTH:
        raise UserError(f"BEM reads {LENGTH} tokens; candidate, reference and question have more")
    padding = [0] * (LENGTH - len(tokens))
    return {
        "input_ids": np.array([tokens + padding]),
        "segment_ids": np.array([segment_ids + padding]),
    }
