"""Knowledge: builds an index from any corpus and answers queries. Knows nothing of images.

To add a knowledge source see `sources/__init__.py`, to add a search engine `engines/__init__.py`.
"""

from skipqa.knowledge.default import (
    build_default,
    default_index_is_built,
    default_index_path,
)
from skipqa.knowledge.index import Index

__all__ = ["Index", "build_default", "default_index_is_built", "default_index_path"]
