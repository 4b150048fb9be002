"""The smallest difference that will do, and that the file is what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from skipqa.training.shipping import read_back, ship


def tuned(published: nn.Linear) -> nn.Linear:
    """Changed along three directions, the last of them faint."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(64, 3, generator=generator), torch.randn(3, 80, generator=generator)
    network = nn.Linear(80, 64)
    scales = torch.tensor([1.0, 0.5, 0.05])
    weight = published.weight.detach() + (left * scales) @ right
    network.load_state_dict({"weight": weight, "bias": published.bias.detach() + 1})
    return network


@pytest.mark.parametrize(("max_loss", "rank"), [(1.0, 1), (0.1, 2), (0.0001, 8)])
def test_the_smallest_rank_that_loses_little(tmp_path: Path, max_loss: float, rank: int) -> None:
    torch.manual_seed(0)
    published = nn.Linear(80, 64)
    network = tuned(published)
    target = network.weight.detach().clone()

    def accuracy() -> float:
        with torch.no_grad():
            off, moved = network.weight - target, published.weight - target
        return 1 - float(off.norm() / moved.norm())

    path = tmp_path / "reader.safetensors"
    found = ship(
        network,
        published.state_dict(),
        accuracy,
        path,
        preset="pocket",
        ranks=(1, 2, 8),
        max_loss=max_loss,
    )
    assert found["whole"] == 1
    assert found["rank"] == rank
    assert list(found["by_rank"]) == [str(r) for r in (1, 2, 8) if r <= rank]
    again = nn.Linear(80, 64)
    read_back(again, published.state_dict(), path)
    assert torch.equal(again.weight, network.weight)
    assert torch.equal(again.bias, network.bias)
    assert accuracy() == pytest.approx(found["by_rank"][str(rank)])
