"""Knowledge: from any corpus to region queries. Knows nothing of images or models."""

from skipqa.knowledge.default import (
    build_default,
    default_index_is_built,
    default_index_path,
)
from skipqa.knowledge.index import Index

__all__ = ["Index", "build_default", "default_index_is_built", "default_index_path"]
