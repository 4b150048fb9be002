"""What a cell shows: by itself, by those around it and by the same place at low resolution."""

from __future__ import annotations

from pathlib import Path

import torch

from skipqa.nn import checkpoint
from skipqa.nn.cell_tagger import CellTagger, CellTaggerConfig
from skipqa.nn.tagger import TaggerConfig

CONFIG = CellTaggerConfig(("beagle", "mali"), ("dog", "flag"), width=5, hidden=8)
MOST_BYTES = 1_500_000


def small() -> CellTagger:
    torch.manual_seed(0)
    return CellTagger(CONFIG).eval()


def maps(coarse: int = 4, fine: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(2, 5, coarse, coarse, generator=generator),
        torch.randn(2, 5, fine, fine, generator=generator),
    )


def test_names_and_none_are_one_distribution() -> None:
    tagger = small()
    for coarse, fine in ((4, 8), (3, 7), (5, 5)):
        seen = maps(coarse, fine)
        assert tagger(*seen).shape == (2, fine * fine, 3)
        probs = tagger.probs(*seen)
        torch.testing.assert_close(probs, tagger(*seen).softmax(-1)[..., :2])


def test_a_cell_sees_no_further_than_its_neighbours() -> None:
    tagger, (coarse, fine) = small(), maps()
    changed = fine.clone()
    changed[:, :, 2, 3] += 1
    differs = (tagger(coarse, fine) != tagger(coarse, changed)).any(-1).view(2, 8, 8)
    around = torch.zeros(8, 8, dtype=torch.bool)
    around[1:4, 2:5] = True
    assert torch.equal(differs, around.expand(2, 8, 8))


def test_a_gradient_reaches_everything() -> None:
    tagger = small().train()
    tagger(*maps())[..., 0].sum().backward()
    for name, parameter in tagger.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_rescaling_keeps_the_order_of_names() -> None:
    tagger, seen = small(), maps()
    before = tagger(*seen)
    tagger.rescale(2.0, 0.5)
    torch.testing.assert_close(tagger(*seen), before / 2 + torch.tensor([0.0, 0.0, 0.5]))


def test_its_names_are_found_among_the_taggers() -> None:
    tagger = TaggerConfig(("cup", "mali", "beagle", "beagle"), ("", "flag", "", "dog"))
    assert CONFIG.within(tagger)
    assert CONFIG.columns(tagger) == [3, 1]
    assert not CONFIG.within(TaggerConfig(("beagle", "mali"), ("cat", "flag")))


def test_the_file_is_small_and_says_the_same(tmp_path: Path) -> None:
    names = tuple(map(str, range(500)))
    torch.manual_seed(0)
    tagger, path = CellTagger(CellTaggerConfig(names, names)).eval(), tmp_path / "cells.safetensors"
    checkpoint.save(tagger, path, preset="pocket", eight_bit=True)
    assert path.stat().st_size < MOST_BYTES
    found = CellTagger(checkpoint.read_config(path, CellTaggerConfig)).eval()
    checkpoint.load(found, path, preset="pocket")
    seen = torch.randn(1, 1_280, 2, 2), torch.randn(1, 1_280, 4, 4)
    torch.testing.assert_close(found(*seen), tagger(*seen), atol=0.02, rtol=0)
