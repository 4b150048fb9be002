"""The OpenSearch engine against a stand-in that checks its requests: no server can be installed
here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from made_vectors import build_vectors, random_vectors

pytest.importorskip("opensearchpy", reason="the OpenSearch engine is an extra")

from opensearch_stand_in import StandIn, serving

from skipqa.errors import UserError
from skipqa.knowledge.index import Index, delete
from skipqa.types import SparseVector


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def uri(stand_in: StandIn) -> Iterator[str]:
    with serving(stand_in) as uri:
        yield uri


def test_it_agrees_with_the_oracle(tmp_path: Path, stand_in: StandIn, uri: str) -> None:
    folder = tmp_path / "i"
    empty = SparseVector(np.array([], np.int32), np.array([], np.float32))
    build_vectors(folder, [*random_vectors(1_200, 20, 1), empty])
    delete(folder, ["5", "6"])
    queries = [*random_vectors(8, 10, 2), empty]
    expected = Index.open(f"exact:{folder}").search(queries, 4)
    for _ in range(2):  # uploaded once
        opened = Index.open(f"opensearch:{folder}?uri={uri}")
        found = opened.search(queries, 4)
        assert [[h.row for h in hits] for hits in found] == [
            [h.row for h in hits] for hits in expected
        ]
        for hits, others in zip(found, expected, strict=True):
            assert [h.score for h in hits] == pytest.approx([h.score for h in others], rel=1e-5)
        opened.engine.close()  # type: ignore[attr-defined]
    assert [seen for seen in stand_in.seen if "_bulk" in seen] == ["POST /_bulk"] * 2
    assert len(stand_in.indexes) == 1


def test_half_an_upload_is_made_again(tmp_path: Path, stand_in: StandIn, uri: str) -> None:
    folder = tmp_path / "i"
    build_vectors(folder, random_vectors(50, 20, 1))
    query = random_vectors(1, 10, 2)
    first = Index.open(f"opensearch:{folder}?uri={uri}").search(query, 3)
    (held,) = stand_in.indexes.values()
    del held["documents"]["7"]  # as after a kill
    assert Index.open(f"opensearch:{folder}?uri={uri}&shards=2").search(query, 3) == first
    (held,) = stand_in.indexes.values()
    assert len(held["documents"]) == 50


def test_what_is_wrong_is_one_line(tmp_path: Path, stand_in: StandIn, uri: str) -> None:
    folder = tmp_path / "i"
    build_vectors(folder, random_vectors(20, 20, 1))

    def refused(uri: str, why: str) -> None:
        with pytest.raises(UserError, match=why) as raised:
            Index.open(f"opensearch:{folder}{uri}")
        assert "secret" not in str(raised.value)
        assert "\n" not in str(raised.value)

    refused("", "say where it is")
    refused("?uri=host", "say where it is")
    refused("?uri=http://me:secret@127.0.0.1:1", r"OpenSearch at 127\.0\.0\.1:1: .*refused")
    stand_in.has_neural_search = False
    refused(f"?uri={uri}", r"No handler for type \[sparse_vector\].*needed: 3\.3 or later")
