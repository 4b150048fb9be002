"""An index is described by its passages: the same each time, and unlike another index."""

from __future__ import annotations

import torch

from skipqa.pipeline import Pipeline
from skipqa.stages.budget_sources import DescribedIndexes, describe


def test_indexes_are_described(pipeline: Pipeline) -> None:
    described = DescribedIndexes(pipeline.library, pipeline.backbone)
    assert described.names == pipeline.library.names
    embeddings = described.embeddings_ID
    assert embeddings.shape == (len(described.names), pipeline.backbone.widths.text)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(len(embeddings)))
    first = next(iter(pipeline.library.indexes.values()))
    assert torch.equal(describe(first, pipeline.backbone), embeddings[0])
    alike = (embeddings @ embeddings.T).fill_diagonal_(-1)
    assert float(alike.max()) < 0.99
