"""Token merging between the layers of a ViT (ToMe, Bolya et al., 2023).

Enters: the tokens of a layer and their keys. Leaves: fewer tokens, how many patches are in each,
and where each patch went, so that the result can be put back on the grid. The class token comes
first and is never merged away. It does not know what the tokens show.

Shapes: B batch, V patches, T tokens of which the first is the class token, D width, E width of a
key, N the first half of the matching (every second token), M the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MergedTokens:
    x_BTD: Tensor
    sizes_BT: Tensor  # how many patches are in each token
    token_BV: Tensor  # int64: the token that each patch is in

    @staticmethod
    def apart(x_BTD: Tensor) -> MergedTokens:
        """Nothing merged yet."""
        B, T, _ = x_BTD.shape
        token_BV = torch.arange(1, T, device=x_BTD.device).expand(B, T - 1)
        return MergedTokens(x_BTD, x_BTD.new_ones(B, T), token_BV)

    def on_grid(self, of_token_BTX: Tensor) -> Tensor:
        """[B, V, X]: for each patch what its token has."""
        index = self.token_BV[..., None].expand(-1, -1, of_token_BTX.shape[-1])
        return of_token_BTX.gather(1, index)


def merge(tokens: MergedTokens, keys_BTE: Tensor, count: int) -> MergedTokens:
    """The `count` most similar pairs joined, at most half of the patches' tokens.

    Bipartite soft matching: every second token looks for the key most similar to its own among the
    others. A joined token is the mean of its patches. Those that look and stay come first, in
    order, then the others, as in the original, on which the next matching depends.
    """
    x_BTD, sizes_BT = tokens.x_BTD, tokens.sizes_BT
    count = most_merged(x_BTD.shape[1], count)
    unit_BTE = F.normalize(keys_BTE, dim=-1)
    cosine_BNM = unit_BTE[:, ::2] @ unit_BTE[:, 1::2].mT
    cosine_BNM[:, 0] = -torch.inf  # the class token stays
    best_BN = cosine_BNM.max(-1)
    order_BN = best_BN.values.argsort(dim=1, descending=True, stable=True)
    joining, staying = order_BN[:, :count], order_BN[:, count:].sort(1).values
    target = best_BN.indices.gather(1, joining)  # among the others

    def joined(values_BTX: Tensor) -> Tensor:
        looking, others = values_BTX[:, ::2], values_BTX[:, 1::2]
        width = values_BTX.shape[-1]
        moved = looking.gather(1, joining[..., None].expand(-1, -1, width))
        others = others.scatter_add(1, target[..., None].expand(-1, -1, width), moved)
        return torch.cat((looking.gather(1, staying[..., None].expand(-1, -1, width)), others), 1)

    new_sizes_BT1 = joined(sizes_BT[..., None])
    new_x_BTD = joined(x_BTD * sizes_BT[..., None]) / new_sizes_BT1
    num_staying = staying.shape[1]
    places = torch.arange(x_BTD.shape[1], device=x_BTD.device)
    moved_to_BT = places.repeat(len(x_BTD), 1)
    moved_to_BT[:, 1::2] = num_staying + places[: cosine_BNM.shape[2]]
    stayed = places[:num_staying].expand_as(staying)
    looked_BN = torch.empty_like(order_BN).scatter(1, staying, stayed)
    moved_to_BT[:, ::2] = looked_BN.scatter(1, joining, num_staying + target)
    token_BV = moved_to_BT.gather(1, tokens.token_BV)
    return MergedTokens(new_x_BTD, new_sizes_BT1[..., 0], token_BV)


def most_merged(num_tokens: int, count: int) -> int:
    """At most half of the tokens, the class token apart, find another to join."""
    return min(count, (num_tokens - 1) // 2)


def matching_flops(num_tokens: int, key_width: int) -> int:
    """FLOPs of comparing one half with the other, a multiply and an add counted as two."""
    return 2 * ((num_tokens + 1) // 2) * (num_tokens // 2) * key_width
