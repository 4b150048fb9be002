"""What the fingerprint of a pipeline covers, and what records of it depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipqa.components import bundled, change_settings
from skipqa.config import preset
from skipqa.errors import UserError
from skipqa.knowledge.encoder_wrappers import CachedQueries
from skipqa.knowledge.engines.local import ExactEngine
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.training.pathway import gather
from skipqa.training.pipelines import Source, components_digest, index_digests


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "drafter.safetensors").write_bytes(b"drafter")
    change_settings(tmp_path / "settings.toml", draft={"threshold": 0.5})
    return Source(components=tmp_path)


@pytest.mark.parametrize(
    ("settings", "of_records"),
    [
        ({"retrieve": {"question_weight": 0.9}}, True),
        ({"draft": {"candidates": 3}}, True),
        ({"draft": {"threshold": 0.9}}, False),
        ({"verify": {"threshold": 0.9}}, False),
        ({"decode": {"prompt": "short"}}, False),
        ({"confidence": {"drafted": [1.0]}}, False),
    ],
)
def test_settings_count_where_they_have_an_effect(
    source: Source, settings: dict[str, dict[str, object]], of_records: bool
) -> None:
    whole, records = source.fingerprint(), gather.records_fingerprint(source)
    change_settings(source.folder / "settings.toml", **settings)
    assert source.fingerprint() != whole
    assert (gather.records_fingerprint(source) != records) == of_records


@pytest.mark.parametrize(
    ("name", "of_records"), [("tagger", True), ("saliency", False), ("reader", False)]
)
def test_components_count_where_they_have_an_effect(
    source: Source, name: str, of_records: bool
) -> None:
    whole, records = source.fingerprint(), gather.records_fingerprint(source)
    (source.folder / f"{name}.safetensors").write_bytes(b"another")
    assert source.fingerprint() != whole
    assert (gather.records_fingerprint(source) != records) == of_records


def test_the_config_is_that_of_the_pipeline(source: Source) -> None:
    assert source.config == preset("pocket", {"draft": {"threshold": 0.5}})
    assert Source().folder == bundled("pocket")


def test_the_pipeline_opens_the_index_as_it_was_named(tmp_path: Path) -> None:
    """With its engine, and keeping the queries it encoded."""
    passages = tmp_path / "passages.jsonl"
    passages.write_text('{"id": "1", "title": "Tea", "text": "Tea is a drink."}\n')
    build(tmp_path / "index", [JsonLines(passages)], LexicalEncoder.default())
    uris = (f"exact:{tmp_path / 'index'}",)
    (index,) = Source(index=uris).load().library.indexes.values()
    assert isinstance(index.engine, ExactEngine)
    assert isinstance(index.encoder, CachedQueries)


def test_an_index_counts_by_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    one = index_digests([tmp_path])
    assert one == index_digests([f"exact:{tmp_path}"]) != index_digests([])
    assert index_digests(["default", tmp_path]) == [*index_digests(["default"]), *one]
    assert index_digests([]) == index_digests(["default"])
    with pytest.raises(UserError, match="does not exist"):
        index_digests([tmp_path / "nowhere"])


def test_no_folder_has_no_components(tmp_path: Path) -> None:
    assert components_digest(tmp_path / "nowhere") == components_digest(tmp_path)
