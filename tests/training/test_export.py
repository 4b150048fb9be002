"""The smallest delta that will do, and that the file is what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.training.export import Truncation, export, read_back, write_delta


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
    truncation = Truncation((1, 2, 8), max_loss)
    found = export(network, published.state_dict(), accuracy, path, truncation, preset="pocket")
    assert found["whole"] == 1
    assert found["rank"] == rank
    assert list(found["by_rank"]) == [str(r) for r in (1, 2, 8) if r <= rank]
    again = nn.Linear(80, 64)
    read_back(again, published.state_dict(), path)
    assert torch.equal(again.weight, network.weight)
    assert torch.equal(again.bias, network.bias)
    assert accuracy() == pytest.approx(found["by_rank"][str(rank)])


def small_encoder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(16, 32, 3), nn.Conv2d(32, 32, 3, groups=32), nn.Linear(80, 64))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_full_delta_is_off_by_half_a_step(
    tmp_path: Path, memory_format: torch.memory_format
) -> None:
    """Of each filter and row, by how far training moved the largest of its weights."""
    torch.manual_seed(0)
    published, network = small_encoder(), small_encoder()
    network.to(memory_format=memory_format)  # type: ignore[call-overload]
    before = {name: value.clone() for name, value in published.state_dict().items()}
    path = tmp_path / "vision.safetensors"
    write_delta(network, published.state_dict(), path, preset="pocket")
    again = small_encoder()
    read_back(again, published.state_dict(), path)
    assert all(torch.equal(before[name], value) for name, value in published.state_dict().items())
    for name, tuned in network.state_dict().items():
        moved = (tuned - before[name]).abs()
        largest = moved.amax(tuple(range(1, moved.ndim)), keepdim=True) if moved.ndim > 1 else moved
        off = (again.state_dict()[name] - tuned).abs()
        assert (off <= largest / 254 + 1e-6).all()
    assert path.stat().st_size < 0.35 * sum(value.nbytes for value in before.values())
    assert checkpoint.read_header(path).component == "vision"
    with pytest.raises(UserError, match="presets are not interchangeable"):
        checkpoint.check(path, component="vision", preset="submission-7b")


def test_no_delta_is_a_file_too(tmp_path: Path) -> None:
    published, path = small_encoder(), tmp_path / "vision.safetensors"
    write_delta(published, published.state_dict(), path, preset="pocket")
    again = small_encoder()
    read_back(again, published.state_dict(), path)
    for name, value in published.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
