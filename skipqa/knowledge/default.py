"""The default index, built by `skipqa setup`: WordNet and the World Factbook."""

from __future__ import annotations

from pathlib import Path

from skipqa import assets
from skipqa.knowledge.index.build import Outcome, build
from skipqa.knowledge.index.encode import Execution, Report, silent
from skipqa.knowledge.index.format import MANIFEST, VERSION
from skipqa.knowledge.sources.factbook import Factbook
from skipqa.knowledge.sources.wordnet import WordNet
from skipqa.knowledge.sparse_encoder import LexicalEncoder


def default_index_path() -> Path:
    return assets.home() / "indexes" / f"wordnet-factbook-{VERSION}"


def default_index_is_built() -> bool:
    """An interrupted build leaves a folder without a manifest."""
    return (default_index_path() / MANIFEST).is_file()


def build_default(folder: Path | None = None, progress: Report = silent) -> Outcome:
    """`progress` is called with the current step, how many passages or steps are done, and their
    total if it is known."""
    return build(
        folder or default_index_path(),
        [WordNet(), Factbook()],
        LexicalEncoder.default(),
        execution=Execution(progress),
    )
