"""Which indexes a question is looked up in: those that the controller expects to be useful.

Enters: a library and a text encoder. Leaves: an embedding per index, by which a controller knows a
corpus that it was not trained with: the mean of a few dozen of its passages, evenly spaced. It is
computed on first use and costs no question anything after that.

Shape letters: I indexes, D the width of their embeddings.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.knowledge import Index, Library

PASSAGES = 32  # of each index
CHARACTERS = 200  # of each passage: its beginning says what kind of text it is


class DescribedIndexes:
    """The indexes of a library by name, each with its embedding."""

    def __init__(self, library: Library, backbone: Backbone) -> None:
        self.library, self.backbone = library, backbone

    @property
    def names(self) -> tuple[str, ...]:
        return self.library.names

    @cached_property
    def embeddings_ID(self) -> Tensor:
        return torch.stack([describe(i, self.backbone) for i in self.library.indexes.values()])


def describe(index: Index, backbone: Backbone) -> Tensor:
    """[D], of unit length."""
    rows = int(index.bases[-1])
    some = np.unique(np.linspace(0, rows - 1, min(PASSAGES, rows)).round().astype(int))
    texts = [index.passage(int(row)).text[:CHARACTERS] for row in some]
    return F.normalize(backbone.encode_texts(texts).embeddings.mean(0), dim=0)
