"""What a pair encoder reads: the question with what the image shows, next to a passage.

Enters: a question, the words of its image, a passage. Leaves: two texts, which one encoder reads
together: whether a passage states what is asked of the thing in the image shows where their words
attend to each other, and two separate embeddings have lost that. Answering and training write pairs
here.
"""

from __future__ import annotations

from collections.abc import Sequence

from skipqa.types import RetrievedPassage

NAMES = 6  # of what the image shows, the most probable first


def pair_of(question: str, words: Sequence[str], found: RetrievedPassage) -> tuple[str, str]:
    """The passage with its title, unless what is read of it begins with that."""
    title, text = found.passage.title, found.text
    named = text if text.lower().startswith(title.lower()) else f"{title}: {text}"
    return f"{question} {', '.join(words[:NAMES])}".rstrip(), named
