"""A grounding starts as the rule, learns from the first step, and can tell left from right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from skipqa.nn.grounding import PLACE, Grounding, GroundingConfig, Scene, flops, places

VARIANTS = pytest.mark.parametrize("variant", ["A", "B"])
WIDTH, CONCEPTS, TEXT = 12, 7, 10


def small(variant: str = "A", seed: int = 0) -> Grounding:
    torch.manual_seed(seed)
    config = GroundingConfig(
        WIDTH,
        CONCEPTS,
        TEXT,
        width=16,
        heads=2,
        variant=variant,
        hidden=8,  # type: ignore[arg-type]
    )
    return Grounding(config).eval()


def scene(grid: int, batch: int = 2, seed: int = 0) -> Scene:
    generator = torch.Generator().manual_seed(seed)
    cells = grid * grid
    return Scene(
        torch.randn(batch, cells, WIDTH, generator=generator),
        torch.randn(batch, cells, CONCEPTS, generator=generator).softmax(-1),
        torch.randn(batch, cells, generator=generator),
    )


def words(count: int, batch: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed + 1)
    states = torch.randn(batch, count, TEXT, generator=generator)
    return states, torch.ones(batch, count, dtype=torch.bool)


@VARIANTS
@given(grid=st.integers(1, 5), count=st.integers(1, 6), seed=st.integers(0, 1_000))
@settings(max_examples=25)
def test_untrained_it_is_the_rule(variant: str, grid: int, count: int, seed: int) -> None:
    seen = scene(grid, seed=seed)
    assert torch.equal(small(variant, seed)(seen, *words(count, seed=seed)), seen.rule_BV)


@VARIANTS
def test_every_weight_is_alive(variant: str) -> None:
    """The last product has a gradient at once, all others after the first step."""
    model = small(variant).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        model(scene(3), *words(4)).square().mean().backward()
        optimiser.step()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


@VARIANTS
@given(padding=st.integers(1, 5), seed=st.integers(0, 1_000))
@settings(max_examples=25)
def test_padding_changes_nothing(variant: str, padding: int, seed: int) -> None:
    model = trained(small(variant, seed))
    states, there = words(4, seed=seed)
    plain = model(scene(3, seed=seed), states, there)
    longer = torch.cat((states, torch.full((2, padding, TEXT), 9.0)), dim=1)
    masked = torch.cat((there, torch.zeros(2, padding, dtype=torch.bool)), dim=1)
    torch.testing.assert_close(model(scene(3, seed=seed), longer, masked), plain)


def trained(model: Grounding) -> Grounding:
    """With weights that are not 0 anywhere."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def test_places_are_fractions_of_the_image() -> None:
    """A cell of a coarse grid lies where the four cells are that it is made of."""
    coarse, fine = places(2), places(4)
    assert coarse.shape == (4, PLACE)
    assert not torch.equal(coarse[0], coarse[1])
    # The lowest frequency is monotone in the distance from the left edge.
    across = fine[:4, 4]
    assert bool((across[:-1] > across[1:]).all())


def test_flops_are_those_counted() -> None:
    model, seen = small(), scene(4, batch=1)
    states, there = words(5, batch=1)
    # Attention spelled out: torch's counter does not see into its fused kernel on a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(seen, states, there)
    assert flops(model.config, 16, 5) == pytest.approx(counter.get_total_flops(), rel=0.02)


@VARIANTS
def test_it_learns_which_of_two(variant: str) -> None:
    """Two cells look alike; "left" and "right" are words. A head that sees one token at a time and
    no place has nothing to choose by."""
    torch.manual_seed(0)
    model = small(variant).train()
    generator = torch.Generator().manual_seed(3)
    looks, alike = torch.randn(WIDTH, generator=generator), torch.zeros(CONCEPTS)
    alike[2] = 1.0
    said = torch.randn(2, 3, TEXT, generator=generator)  # "the one on the left", "… right"

    def draw(number: int) -> tuple[Scene, Tensor, Tensor]:
        grid = 4
        features = 0.3 * torch.randn(number, grid * grid, WIDTH, generator=generator)
        evidence = torch.full((number, grid * grid, CONCEPTS), 1 / CONCEPTS)
        left = 4 * torch.randint(4, (number,), generator=generator)
        right = left + 1 + torch.randint(3, (number,), generator=generator)
        for place in (left, right):
            features[torch.arange(number), place] += looks
            evidence[torch.arange(number), place] = alike
        which = torch.randint(2, (number,), generator=generator)
        asked = torch.where(which == 0, left, right)
        seen = Scene(features, evidence, torch.zeros(number, grid * grid))
        return seen, said[which], asked

    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(150):
        seen, states, asked = draw(64)
        logits = model(seen, states, torch.ones(states.shape[:2], dtype=torch.bool))
        loss = torch.nn.functional.cross_entropy(logits, asked)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    seen, states, asked = draw(200)
    logits = model.eval()(seen, states, torch.ones(states.shape[:2], dtype=torch.bool))
    assert float((logits.argmax(1) == asked).float().mean()) > 0.9
