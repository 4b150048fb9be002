"""Which cells a loss is of, and that a cell tagger learns by it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from skipqa.nn.cell_tagger import CellTagger, CellTaggerConfig
from skipqa.training.cells.scenes import Scenes
from skipqa.training.cells.targets import NOBODY, Targets, cells_of

CPU, GRID, NAMES = torch.device("cpu"), 8, 4


def scenes(
    boxes: list[tuple[float, ...]], image: list[int], names: list[int], *, images: int = 1,
    may_show: tuple[int, ...] = (), known: bool = True,
) -> Scenes:  # fmt: skip
    shown = torch.zeros(images, NAMES + 1, dtype=torch.bool)
    shown[:, [*may_show, NAMES]] = True
    pixels = torch.zeros(images, 3, 2, 2)
    return Scenes(
        *(pixels, pixels, torch.tensor(boxes).view(-1, 4)),
        *(torch.tensor(image).long(), torch.tensor(names).long(), shown),
        torch.full((images,), known),
    )


def gradient(made: Scenes) -> tuple[Tensor, Targets]:
    """[B, V, N + 1] of the loss, at logits that say nothing."""
    logits = torch.zeros(len(made.low_res), GRID * GRID, NAMES + 1, requires_grad=True)
    targets = Targets.of(made, GRID, CPU)
    targets.loss(logits).backward()
    assert logits.grad is not None
    return logits.grad, targets


@given(
    x=st.floats(0, 0.9), y=st.floats(0, 0.9), w=st.floats(0.01, 0.9), h=st.floats(0.01, 0.9)
)  # fmt: skip
@settings(max_examples=50)
def test_every_box_has_a_cell_and_touches_those_that_it_has(
    x: float, y: float, w: float, h: float
) -> None:
    box = torch.tensor([[x, y, min(1.0, x + w), min(1.0, y + h)]])
    inside, touched = cells_of(box, GRID)
    assert inside.sum() >= 1
    assert (touched | ~inside).all()


def test_a_border_carries_no_loss() -> None:
    """A box of four by four cells has all but the corners of them; cells around are the ground."""
    grad, targets = gradient(scenes([(0.25, 0.25, 0.75, 0.75)], [0], [2]))
    moved = (grad[0] != 0).any(-1).view(GRID, GRID)
    corners = [(2, 2), (2, 5), (5, 2), (5, 5)]
    border = torch.zeros(GRID, GRID, dtype=torch.bool)
    for row, column in corners:
        border[row, column] = True
    assert torch.equal(moved, ~border)
    assert (targets.owner_BV != NOBODY).sum() == 12
    assert (grad[0, targets.owner_BV[0] == 0, 2] < 0).all()  # its name
    assert (grad[0, targets.ground_BV[0], NAMES] < 0).all()  # none


def test_a_small_box_counts_as_much_as_a_large_one() -> None:
    made = scenes([(0.0, 0.0, 0.5, 0.5), (0.8, 0.8, 0.9, 0.9)], [0, 0], [0, 1])
    grad, targets = gradient(made)
    of_box = [grad[0, targets.owner_BV[0] == box].abs().sum() for box in (0, 1)]
    torch.testing.assert_close(of_box[0], of_box[1])


def test_the_smaller_of_two_is_in_front() -> None:
    made = scenes([(0.4, 0.4, 0.6, 0.6), (0.0, 0.0, 1.0, 1.0)], [0, 0], [0, 1])
    owner = Targets.of(made, GRID, CPU).owner_BV.view(GRID, GRID)
    assert (owner[3:5, 3:5] == 0).all()
    assert owner[1, 3] == 1


def test_the_ground_may_show_what_the_photo_is_labelled_with() -> None:
    grad, targets = gradient(scenes([(0.0, 0.0, 0.3, 0.3)], [0], [0], may_show=(3,)))
    ground = grad[0, targets.ground_BV[0]]
    torch.testing.assert_close(ground[:, 3], ground[:, NAMES])
    assert (ground[:, 3] < 0).all()
    assert (ground[:, 0] > 0).all()


def test_an_unknown_ground_carries_no_loss() -> None:
    grad, targets = gradient(scenes([(0.0, 0.0, 0.3, 0.3)], [0], [0], known=False))
    assert not targets.ground_BV.any()
    assert torch.equal((grad[0] != 0).any(-1), targets.owner_BV[0] == 0)


def test_nothing_to_see_is_no_loss() -> None:
    grad, _ = gradient(scenes([], [], [], known=False))
    assert not grad.any()


def test_it_overfits_fifty_boxes() -> None:
    torch.manual_seed(0)
    names = torch.randint(NAMES, (50,))
    coarse, fine = torch.randn(25, 6, 4, 4), torch.randn(25, 6, GRID, GRID)
    left, right = (0.0, 0.25, 0.4, 0.75), (0.6, 0.25, 1.0, 0.75)
    made = scenes([left, right] * 25, [i // 2 for i in range(50)], names.tolist(), images=25)
    targets = Targets.of(made, GRID, CPU)
    words = tuple(map(str, range(NAMES)))
    model = CellTagger(CellTaggerConfig(words, words, width=6, hidden=128, dropout=0.0))
    optimiser = torch.optim.AdamW(model.parameters(), 0.02)
    for _ in range(150):
        optimiser.zero_grad()
        targets.loss(model(coarse, fine)).backward()
        optimiser.step()
    best = model.eval()(coarse, fine).argmax(-1)
    image, cell = (targets.owner_BV != NOBODY).nonzero().unbind(1)
    right_names = best[image, cell] == names[targets.owner_BV[image, cell]]
    assert right_names.float().mean() > 0.95
    assert (best[targets.ground_BV] == NAMES).float().mean() == pytest.approx(1, abs=0.05)
