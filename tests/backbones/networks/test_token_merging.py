"""Token merging against plain loops over the published algorithm, and its counted FLOPs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from skipqa.backbones.networks import clip, vit
from skipqa.backbones.networks.token_merging import MergedTokens, merge
from skipqa.costs.flops import count_flops

VISION = vit.VitConfig(28, 7, 32, 4, 4, 48, norm_first=True, quick_gelu=True)
TEXT = clip.TextConfig(20, 8, 24, 1, 2, 32, quick_gelu=True)
CONFIG = clip.ClipConfig(VISION, TEXT, joint=12, bias=False)


@pytest.fixture(scope="module")
def network() -> clip.Clip:
    torch.manual_seed(0)
    return clip.Clip(CONFIG).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    return torch.randn(1, 3, 28, 28, generator=torch.Generator().manual_seed(1))


class Group:
    """A token in the plain implementation: its state and the patches in it."""

    def __init__(self, state: Tensor, patches: list[int], is_class: bool = False) -> None:
        self.state, self.patches, self.is_class = state, patches, is_class

    @property
    def size(self) -> int:
        return 1 if self.is_class else len(self.patches)


def merged_by_loops(groups: list[Group], keys: list[Tensor], count: int) -> list[Group]:
    looking, others = groups[::2], groups[1::2]
    pairs = []
    for n, group in enumerate(looking):
        if group.is_class:
            continue
        cosines = [float(torch.cosine_similarity(keys[2 * n], key, 0)) for key in keys[1::2]]
        best = max(range(len(others)), key=lambda m: (cosines[m], -m))
        pairs.append((-cosines[best], n, best))
    joining = sorted(pairs)[: min(count, (len(groups) - 1) // 2)]
    gone = {n for _, n, _ in joining}
    sums = [group.state * group.size for group in others]
    patches = [list(group.patches) for group in others]
    for _, n, m in joining:
        sums[m] = sums[m] + looking[n].state * looking[n].size
        patches[m] += looking[n].patches
    stayed = [group for n, group in enumerate(looking) if n not in gone]
    return stayed + [Group(s / len(p), p) for s, p in zip(sums, patches, strict=True)]


def layer_by_loops(layer: vit.Layer, groups: list[Group], count: int) -> list[Group]:
    """Attention token by token, as if a token of n patches were there n times, then merging."""
    c = layer.config
    E = c.width // c.heads
    rows = [layer.qkv(layer.attention_norm(group.state)) for group in groups]
    q, k, v = ([row.view(3, c.heads, E)[part] for row in rows] for part in range(3))
    attended = []
    for i, group in enumerate(groups):
        heads = []
        for h in range(c.heads):
            weights = [
                g.size * math.exp(float(q[i][h] @ k[j][h]) / math.sqrt(E))
                for j, g in enumerate(groups)
            ]
            mixed = sum(w * v[j][h] for j, w in enumerate(weights)) / sum(weights)
            heads.append(mixed)
        state = group.state + layer.out(torch.cat(heads))
        attended.append(Group(state, group.patches, group.is_class))
    groups = merged_by_loops(attended, [key.mean(0) for key in k], count)
    for group in groups:
        hidden = layer.up(layer.ffn_norm(group.state))
        group.state = group.state + layer.down(hidden * torch.sigmoid(1.702 * hidden))
    return groups


@pytest.mark.parametrize("per_layer", [1, 2, 4, 30])
def test_encoding_is_that_of_plain_loops(
    network: clip.Clip, pixels: Tensor, per_layer: int
) -> None:
    states = network.vision.embed(pixels)[0]
    groups = [Group(states[0], [], is_class=True)]
    groups += [Group(state, [n]) for n, state in enumerate(states[1:])]
    layers = [layer for layer in network.vision.layers if isinstance(layer, vit.Layer)]
    for layer in layers[:-1]:
        groups = layer_by_loops(layer, groups, per_layer)
    expected = torch.empty(16, 32)
    for group in groups[1:]:
        expected[group.patches] = group.state
    found = network.encode_image_merged(pixels, per_layer)
    torch.testing.assert_close(found.features[0], expected, rtol=1e-4, atol=1e-5)
    left = len(groups) - 1
    assert len(found.features[0].unique(dim=0)) == left < 16
    assert len(found.patches[0].unique(dim=0)) == left
    [whole, *_] = layer_by_loops(layers[-1], groups, 0)
    joint = network.vision_to_joint(network.vision_norm(whole.state))
    torch.testing.assert_close(found.whole[0], joint / joint.norm(), rtol=1e-4, atol=1e-5)


def test_without_merging_it_is_the_plain_encoder(network: clip.Clip, pixels: Tensor) -> None:
    plain, merged = network.encode_image(pixels), network.encode_image_merged(pixels, 0)
    for name in ("features", "patches", "whole"):
        torch.testing.assert_close(getattr(merged, name), getattr(plain, name))


@pytest.mark.parametrize("per_layer", [1, 3, 8, 100])
@pytest.mark.parametrize("size", [28, 42])
def test_flops_are_what_torch_counts(network: clip.Clip, size: int, per_layer: int) -> None:
    image = torch.randn(1, 3, size, size)
    counted = count_flops(lambda: network.encode_image_merged(image, per_layer))
    assert counted == clip.merged_flops(CONFIG, size, per_layer) < clip.flops(CONFIG, size)


@settings(deadline=None)
@given(
    T=st.integers(2, 20),
    count=st.integers(0, 12),
    rounds=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_patch_is_in_one_token_and_a_token_is_their_mean(
    T: int, count: int, rounds: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, T, 5, generator=generator)
    tokens = MergedTokens.apart(x)
    for _ in range(rounds):
        before = tokens.x_BTD.shape[1]
        tokens = merge(tokens, torch.randn(2, before, 3, generator=generator), count)
        assert tokens.x_BTD.shape[1] == before - min(count, (before - 1) // 2)
    for n in range(2):
        torch.testing.assert_close(tokens.x_BTD[n, 0], x[n, 0], msg="the class token")
        for token in range(1, tokens.x_BTD.shape[1]):
            members = x[n, 1:][tokens.token_BV[n] == token]
            assert len(members) == tokens.sizes_BT[n, token] > 0
            torch.testing.assert_close(tokens.x_BTD[n, token], members.mean(0))
    grid = tokens.on_grid(tokens.x_BTD)
    assert grid.shape == (2, T - 1, 5)
