"""MobileSAM's encoder against the published network, written out with its batch norms.

The reference below is functional and has no code in common with the package: the checkpoint's
names, unfolded batch norms, attention window by window with its bias looked up pair by pair.
`tests/golden/test_mobile_sam.py` does the same at full size with the real weights.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.backbones.networks import tiny_vit
from skipqa.backbones.networks.tiny_vit import Stage, TinyVit, TinyVitConfig
from skipqa.costs.flops import count_flops

State = dict[str, Tensor]

# Cells per side: 24, 12, 6, 6. Windows that divide the map, that do not, and that are larger.
SMALL = TinyVitConfig(
    96,
    (
        Stage(8, 2),
        Stage(12, 2, heads=3, window=6, stride=2),
        Stage(16, 1, heads=2, window=4, stride=2),
        Stage(20, 1, heads=5, window=7),
    ),
    24,
)


def published(config: TinyVitConfig) -> State:
    """Random weights under the published names."""
    generator = torch.Generator().manual_seed(0)
    state: State = {}

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    def conv(name: str, inside: int, outside: int, kernel: int, groups: int = 1) -> None:
        fan = inside // groups * kernel * kernel
        shape = (outside, inside // groups, kernel, kernel)
        state[f"{name}.c.weight"] = normal(*shape, scale=math.sqrt(1 / fan))
        norm(f"{name}.bn", outside)
        state[f"{name}.bn.running_mean"] = normal(outside, scale=0.2)
        state[f"{name}.bn.running_var"] = torch.rand(outside, generator=generator) + 0.3
        state[f"{name}.bn.num_batches_tracked"] = torch.tensor(7)

    def norm(name: str, width: int) -> None:
        state[f"{name}.weight"] = torch.rand(width, generator=generator) + 0.5
        state[f"{name}.bias"] = normal(width, scale=0.3)

    def linear(name: str, inside: int, outside: int) -> None:
        state[f"{name}.weight"] = normal(outside, inside, scale=math.sqrt(1 / inside))
        state[f"{name}.bias"] = normal(outside, scale=0.3)

    width = config.stages[0].width
    conv("patch_embed.seq.0", 3, width // 2, 3)
    conv("patch_embed.seq.2", width // 2, width, 3)
    for number, stage in enumerate(config.stages):
        width = stage.width
        for i in range(stage.depth):
            name = f"layers.{number}.blocks.{i}"
            if number == 0:
                conv(f"{name}.conv1", width, 4 * width, 1)
                conv(f"{name}.conv2", 4 * width, 4 * width, 3, groups=4 * width)
                conv(f"{name}.conv3", 4 * width, width, 1)
                continue
            state[f"{name}.attn.attention_biases"] = normal(stage.heads, stage.window**2)
            norm(f"{name}.attn.norm", width)
            linear(f"{name}.attn.qkv", width, 3 * width)
            linear(f"{name}.attn.proj", width, width)
            conv(f"{name}.local_conv", width, width, 3, groups=width)
            norm(f"{name}.mlp.norm", width)
            linear(f"{name}.mlp.fc1", width, 4 * width)
            linear(f"{name}.mlp.fc2", 4 * width, width)
        if number + 1 < len(config.stages):
            outside, name = config.stages[number + 1].width, f"layers.{number}.downsample"
            conv(f"{name}.conv1", width, outside, 1)
            conv(f"{name}.conv2", outside, outside, 3, groups=outside)
            conv(f"{name}.conv3", outside, outside, 1)
    state["neck.0.weight"] = normal(config.features, width, 1, 1, scale=math.sqrt(1 / width))
    norm("neck.1", config.features)
    shape = (config.features, config.features, 3, 3)
    state["neck.2.weight"] = normal(*shape, scale=math.sqrt(1 / (9 * config.features)))
    norm("neck.3", config.features)
    return state


def reference(state: State, config: TinyVitConfig, x: Tensor) -> Tensor:
    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.c.weight"]
        x = F.conv2d(
            x, weight, None, stride, weight.shape[-1] // 2, groups=x.shape[1] // weight.shape[1]
        )
        parts = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(state[f"{name}.bn.{part}"] for part in parts))

    def three(name: str, x: Tensor, stride: int = 1) -> Tensor:
        x = F.gelu(conv(f"{name}.conv1", x))
        return conv(f"{name}.conv3", F.gelu(conv(f"{name}.conv2", x, stride)))

    def norm(name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def attend(name: str, window: Tensor, stage: Stage) -> Tensor:
        """One window [w * w, C]."""
        w, biases = stage.window, state[f"{name}.attention_biases"]
        qkv = linear(f"{name}.qkv", norm(f"{name}.norm", window))
        heads = []
        for head, of_head in enumerate(qkv.chunk(stage.heads, dim=-1)):
            q, k, v = of_head.chunk(3, dim=-1)
            scores = q @ k.T / math.sqrt(q.shape[-1])
            for a in range(w * w):
                for b in range(w * w):
                    dy, dx = abs(a // w - b // w), abs(a % w - b % w)
                    scores[a, b] += biases[head, dy * w + dx]
            heads.append(scores.softmax(-1) @ v)
        return linear(f"{name}.proj", torch.cat(heads, dim=-1))

    def block(name: str, x: Tensor, stage: Stage) -> Tensor:
        """One image [1, C, s, s]."""
        _, width, side, _ = x.shape
        w = stage.window
        padded = -(-side // w) * w
        empty = x.new_zeros(padded, padded, width)
        empty[:side, :side] = x[0].permute(1, 2, 0)
        mixed = torch.zeros_like(empty)
        for top in range(0, padded, w):
            for left in range(0, padded, w):
                here = slice(top, top + w), slice(left, left + w)
                window = empty[here].reshape(w * w, width)
                mixed[here] = attend(f"{name}.attn", window, stage).view(w, w, width)
        x = conv(f"{name}.local_conv", x + mixed[:side, :side].permute(2, 0, 1)[None])
        cells = x[0].permute(1, 2, 0)
        hidden = F.gelu(linear(f"{name}.mlp.fc1", norm(f"{name}.mlp.norm", cells)))
        return x + linear(f"{name}.mlp.fc2", hidden).permute(2, 0, 1)[None]

    x = conv("patch_embed.seq.2", F.gelu(conv("patch_embed.seq.0", x, 2)), 2)
    for number, stage in enumerate(config.stages):
        for i in range(stage.depth):
            name = f"layers.{number}.blocks.{i}"
            x = F.gelu(x + three(name, x)) if number == 0 else block(name, x, stage)
        if number + 1 < len(config.stages):
            stride = config.stages[number + 1].stride
            x = three(f"layers.{number}.downsample", x, stride)
    for i, padding in ((0, 0), (2, 1)):
        x = F.conv2d(x, state[f"neck.{i}.weight"], padding=padding)
        x = norm(f"neck.{i + 1}", x.permute(0, 2, 3, 1), 1e-6).permute(0, 3, 1, 2)
    return x


def test_equals_the_published_network() -> None:
    state = {name: value.double() for name, value in published(SMALL).items()}
    network = TinyVit(SMALL).double().eval().requires_grad_(False)
    network.load_state_dict(tiny_vit.from_published_names(state, SMALL))
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(2, 3, 96, 96, generator=generator, dtype=torch.float64)
    found = network(pixels)
    assert found.shape == (2, 24, 6, 6)
    for image, features in zip(pixels, found, strict=True):
        truth = reference(state, SMALL, image[None])[0]
        assert truth.std() > 0.1
        torch.testing.assert_close(features, truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("config", [SMALL, tiny_vit.MOBILE_SAM], ids=["small", "published"])
def test_flops_are_what_torch_counts(config: TinyVitConfig) -> None:
    with torch.device("meta"):
        network = TinyVit(config)
        counted = count_flops(lambda: network(torch.empty(1, 3, config.image, config.image)))
    assert tiny_vit.flops(config) == counted
