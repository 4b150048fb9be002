"""A decoder's matrices in 8 bits, for a CPU: a quarter of the memory, and products of integers.

Enters: the float32 state of a `Llama`. Leaves: a state with a scale for every row of a matrix, and
the modules that compute with it; they take and give float32, so all between them is as it was.
Rounding the activations to 8 bits as well would cost too much: a few channels are a hundred times
as large as the others. So an activation is two digits of 8 bits each, both of which go through one
product of integers. Every CPU has such a product; where it has no instruction for it, it is slower.

Shapes: B rows of activations, N rows of a matrix, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn

from skipqa.backbones.networks.llama import Embedding, Linear, Llama, LlamaConfig
from skipqa.config import Weights
from skipqa.nn.compact import round_rows

Named: TypeAlias = tuple[str, Tensor]
LARGEST = 127
# Up to so many rows the time is that of reading the matrix, and a kernel that reads it only once
# and takes activations in bfloat16 is faster
FEW_ROWS = 4
ALIGNMENT = 64  # bytes; that kernel crashes on a matrix that starts anywhere
ROWS_AT_ONCE = 16_384  # that are rounded: an embedding's matrix has a gigabyte


class Int8Linear(Linear):
    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        nn.Module.__init__(self)
        self.weight = _eight_bits(out_features, in_features)
        self.scale = nn.Parameter(torch.empty(out_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        found = product(x, self.weight, self.scale)
        return found if self.bias is None else found + self.bias


class Int8Embedding(Embedding):
    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        nn.Module.__init__(self)
        self.weight = _eight_bits(num_embeddings, embedding_dim)
        self.scale = nn.Parameter(torch.empty(num_embeddings), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids] * self.scale[ids].unsqueeze(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        return product(hidden, self.weight, self.scale)


def _eight_bits(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.int8), requires_grad=False)


def product(x: Tensor, weight_ND: Tensor, scale_N: Tensor) -> Tensor:
    """x W^T in float32, the rows of W being `scale` times the integers."""
    rows_BD = x.flatten(0, -2)
    if len(rows_BD) <= FEW_ROWS and weight_ND.data_ptr() % ALIGNMENT == 0:
        ones_N = torch.ones_like(scale_N, dtype=torch.bfloat16)
        found = torch._weight_int8pack_mm(rows_BD.bfloat16(), weight_ND, ones_N).float()
    else:
        found = _two_digits(rows_BD, weight_ND)
    return found.mul_(scale_N).unflatten(0, x.shape[:-1])


def _two_digits(rows_BD: Tensor, weight_ND: Tensor) -> Tensor:
    """In place where that is possible: what goes around the product costs as much as half of it."""
    num_rows, base = len(rows_BD), 2 * LARGEST  # a rest is at most half a step
    step_B1 = torch.linalg.vector_norm(rows_BD, torch.inf, dim=1, keepdim=True)
    step_B1 = step_B1.clamp_(min=1e-30).div_(LARGEST)
    rest = rows_BD / step_B1
    first = rest.round()
    digits = rows_BD.new_empty(2 * num_rows, rows_BD.shape[1], dtype=torch.int8)
    digits[:num_rows] = first
    digits[num_rows:] = rest.sub_(first).mul_(base).round_()
    high, low = torch._int_mm(digits, weight_ND.T).split(num_rows)
    return low.float().div_(base).add_(high).mul_(step_B1)


def stored_as(weights: Weights, named: Iterable[Named]) -> Iterator[Named]:
    """The state of a decoder, in float32, as `build` of the same `weights` takes it."""
    for name, value in named:
        if weights == "bfloat16":
            yield name, value.bfloat16()
        elif weights == "int8" and value.ndim == 2:
            pieces = [round_rows(piece) for piece in value.split(ROWS_AT_ONCE)]
            yield name, torch.cat([rounded for rounded, _ in pieces])
            scale_N1 = torch.cat([scale for _, scale in pieces])
            yield f"{name.removesuffix('weight')}scale", scale_N1.squeeze(1)
        else:
            yield name, value


def build(config: LlamaConfig, weights: Weights) -> Llama:
    """Without values; those of a state replace its tensors, whatever their precision."""
    return Llama(config, Int8Linear, Int8Embedding) if weights == "int8" else Llama(config)
