"""Names that a tagger learns from one labelled photo each, without training.

Enters: a tagger, and of each new name the features of a photo. Leaves: a tagger with these names
after its own. A view is as probable to show a named thing as it is near to the photo's prototype
(Snell et al., 2017) in the tagger's hidden layer, which was trained to tell things apart and does
so for those that it never saw. The cosine becomes a probability by a curve whose slope is fitted on
photos of things that the tagger knows, next to photos of none of them (`benchmarks/prototypes.py`).
Its midpoint is lower than fitted: what was never trained on is never as near (LOG.md).

Shapes: N names, E = 2 F features of a view, H the hidden width, d text width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn.tagger import Tagger
from skipqa.types import Prototypes

SLOPE = 18.9
MIDPOINT = 0.7  # the cosine at which a match is as probable as not


class PrototypeTagger(Tagger):
    """Shares the tagger's layers. What the tagger knows by the same name is not added again: it saw
    more than one photo of it."""

    prototypes_NH: Tensor

    def __init__(self, tagger: Tagger, added: Prototypes) -> None:
        nn.Module.__init__(self)
        config = tagger.config
        new = [i for i, name in enumerate(added.names) if name not in config.names]
        self.config = replace(
            config,
            names=(*config.names, *(added.names[i] for i in new)),
            kinds=(*config.kinds, *(added.kinds[i] for i in new)),
        )
        self.known = tagger
        self.register_buffer("meanings", torch.cat((tagger.meanings, added.meanings_Nd[new])))
        self.eval()
        with torch.no_grad():
            hidden_NH = tagger.hidden(added.pooled_NE[new])
        self.register_buffer("prototypes_NH", F.normalize(hidden_NH, dim=-1))

    @property
    def num_known(self) -> int:
        return len(self.known.config.names)

    def judge(self, pooled: Tensor) -> Tensor:
        hidden = self.known.hidden(pooled)
        near = F.normalize(hidden, dim=-1) @ self.prototypes_NH.T
        return torch.cat((self.known.name(hidden), SLOPE * (near - MIDPOINT)), dim=-1)
