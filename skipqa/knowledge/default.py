"""The index that `skipqa` builds for itself on first use: WordNet and the World Factbook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skipqa import assets
from skipqa.knowledge.index.build import Outcome, build
from skipqa.knowledge.index.format import MANIFEST, VERSION
from skipqa.knowledge.sources.factbook import Factbook
from skipqa.knowledge.sources.wordnet import WordNet
from skipqa.knowledge.sparse_encoder import LexicalEncoder

Report = Callable[[str, int, int | None], None]


def default_index_path() -> Path:
    return assets.home() / "indexes" / f"wordnet-factbook-{VERSION}"


def default_index_is_built() -> bool:
    """A build that was interrupted leaves a folder, but no manifest."""
    return (default_index_path() / MANIFEST).is_file()


def build_default(folder: Path | None = None, progress: Report = lambda *_: None) -> Outcome:
    """`progress` hears what is being done, how many passages or steps are through, and of how
    many where that is known."""
    return build(
        folder or default_index_path(),
        [WordNet(), Factbook()],
        LexicalEncoder.default(),
        report=progress,
    )
