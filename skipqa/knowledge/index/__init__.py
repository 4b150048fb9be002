"""The index on disk: `build` writes it, `Index` reads it."""

from skipqa.knowledge.index.build import add, build, compact, delete
from skipqa.knowledge.index.encode import Execution, Settings
from skipqa.knowledge.index.format import verify
from skipqa.knowledge.index.index import Index

__all__ = ["Execution", "Index", "Settings", "add", "build", "compact", "delete", "verify"]
