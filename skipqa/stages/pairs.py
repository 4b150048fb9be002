"""What a pair encoder reads: the question with what the image shows, next to a passage.

Enters: a question, the region that asked for the passage, the words of its image, a passage.
Leaves: two texts, which one encoder reads together: whether a passage states what is asked of the
thing in the image shows where their words attend to each other, and two separate embeddings have
lost that.
In a crowd the words of the whole image do not say which thing is asked about; the region does.
Answering and training write pairs here.
"""

from __future__ import annotations

from collections.abc import Sequence

from skipqa.backbones.concepts import Concepts
from skipqa.types import Region, RetrievedPassage

NAMES = 6  # of what the image shows, the most probable first
OF_REGION = 2  # names of what the region shows, before them


def pair_of(
    question: str,
    words: Sequence[str],
    found: RetrievedPassage,
    regions: Sequence[Region],
    concepts: Concepts,
) -> tuple[str, str]:
    """The passage with its title, unless what is read of it begins with that."""
    region = regions[found.region].concepts if found.region < len(regions) else ()
    asking = [concepts[concept].name for concept, _ in region[:OF_REGION]]
    shown = "; ".join(", ".join(names) for names in (asking, words[:NAMES]) if names)
    title, text = found.passage.title, found.text
    named = text if text.lower().startswith(title.lower()) else f"{title}: {text}"
    return f"{question} {shown}".rstrip(), named
