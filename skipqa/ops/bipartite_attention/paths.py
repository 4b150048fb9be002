"""Edges over several rounds of passages: what a visual token can reach.

Enters: the edges of tokens to the passages of the first round, and of the passages of each round to
those of the next. Leaves: one edge matrix over the passages of all rounds, in their order, which
makes k-partite attention a configuration of the bipartite operator: a token attends to the words of
a passage if and only if a path leads there.

Shape letters: V visual tokens, J and K passages of two rounds, N of all rounds together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from skipqa.errors import UserError


def path_edges(edges_VJ: Tensor, *further_JK: Tensor) -> Tensor:
    """[V, N] bool. Without further rounds it is `edges_VJ` itself."""
    reached = [edges_VJ]
    for number, onward_JK in enumerate(further_JK, 2):
        num_before = reached[-1].shape[1]
        if onward_JK.dim() != 2 or len(onward_JK) != num_before:
            raise UserError(
                f"the edges to round {number} have shape {tuple(onward_JK.shape)}, "
                f"the round before has {num_before} passages"
            )
        # A product of booleans: some passage of the round before lies on the way
        reached.append((reached[-1][:, :, None] & onward_JK[None]).any(1))
    return torch.cat(reached, dim=1)
