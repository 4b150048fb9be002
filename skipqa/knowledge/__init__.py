"""Knowledge: builds indexes from any corpus and answers queries. Knows nothing of images.

`index/` is one index; `library.py` asks several and makes one list. To add a knowledge source see
`sources/__init__.py`, to add a search engine `engines/__init__.py`.
"""

from skipqa.knowledge.index import Index
from skipqa.knowledge.library import Library

__all__ = ["Index", "Library"]
