"""Attention along the surviving edges of a (visual token, passage) graph."""

from skipqa.ops.bipartite_attention.dispatch import (
    Backend,
    bipartite_attention,
    compatibility,
    passage_mass,
    select_edges,
    word_mass,
)
from skipqa.ops.bipartite_attention.paths import path_edges

__all__ = [
    "Backend",
    "bipartite_attention",
    "compatibility",
    "passage_mass",
    "path_edges",
    "select_edges",
    "word_mass",
]
