"""Queries in words into passages of a library.

Enters: queries and the question. Leaves: the best passages of all queries and indexes, each once. A
query is encoded by each index as a question is: by its network where it has one, else term by
term. It does not know who writes the queries.
"""

from __future__ import annotations

from collections.abc import Sequence

from skipqa.knowledge import Library
from skipqa.knowledge.excerpt import excerpt, subject_of
from skipqa.knowledge.library import merge
from skipqa.knowledge.text_query import TextQuery, encode_queries
from skipqa.language import content_words
from skipqa.prompted.answer import JudgedPassage
from skipqa.prompted.config import PromptedConfig


def search(
    library: Library, queries: Sequence[str], question: str, most: int, config: PromptedConfig
) -> list[JudgedPassage]:
    """Unjudged, best first, at most `most`."""
    sources = library.searched(library.weights(config.general_weight))
    encoders = [source.index.encoder for source in sources]
    asked = " ".join(content_words(question))
    beside = ((config.question_weight, asked),) if asked and config.question_weight else ()
    encoded, _ = encode_queries([TextQuery(q, q, 1.0, beside) for q in queries], encoders)
    hits = [
        source.index.search(vectors, config.per_query)
        for source, vectors in zip(sources, encoded, strict=True)
    ]
    found = []
    for hit in merge(sources, hits, config.index_sharpness)[:most]:
        passage = library.passage(hit.row)
        text = passage.text
        if config.excerpt_words:
            query = encoded[hit.source][hit.query]
            text = excerpt(passage, query, encoders[hit.source], config.excerpt_words)
        found.append(
            JudgedPassage(
                id=passage.id,
                title=passage.title,
                text=_with_subject(passage.title, text),
                source=passage.source,
                index=library.name_of(hit.row),
                query=hit.query,
                relative=hit.relative,
                score=None,
                kept=False,
            )
        )
    return found


def _with_subject(title: str, text: str) -> str:
    """A passage that only says "it" is no use to a reader who has nothing else."""
    subject = subject_of(title)
    return text if subject.lower() in text.lower() else f"{subject}: {text}"
