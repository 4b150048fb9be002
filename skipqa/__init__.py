"""skipqa: knowledge questions about images, answered along sparse pathways.

    pipeline = skipqa.load()
    answer = pipeline.answer("photo.jpg", "How is this drink brewed?")

The names below are imported on first use: `import skipqa` waits for neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skipqa.client import Client
    from skipqa.errors import UserError
    from skipqa.knowledge import Index
    from skipqa.model import SkipModel
    from skipqa.pipeline import Answer, Pipeline, load
    from skipqa.plugin import prune

__all__ = [
    "Answer",
    "Client",
    "Index",
    "Pipeline",
    "SkipModel",
    "UserError",
    "__version__",
    "load",
    "prune",
]
__version__ = "0.2.0"  # the only place: pyproject.toml reads it here

_HOMES = {
    "Answer": "skipqa.pipeline",
    "Client": "skipqa.client",
    "Index": "skipqa.knowledge",
    "Pipeline": "skipqa.pipeline",
    "SkipModel": "skipqa.model",
    "UserError": "skipqa.errors",
    "load": "skipqa.pipeline",
    "prune": "skipqa.plugin",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'skipqa' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
