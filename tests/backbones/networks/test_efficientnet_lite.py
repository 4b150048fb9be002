"""The pocket vision encoder against the published network, written out with its batch norms.

The reference below is functional and has no code in common with the package: the stage table of
EfficientNet-Lite as published, TensorFlow's "same" padding, unfolded batch norms, weights by
the checkpoint's own names.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from skipqa.backbones.networks.efficientnet_lite import (
    LITE2,
    EfficientNetLite,
    EfficientNetLiteConfig,
    flops,
    fold,
)

State = dict[str, Tensor]

# (input, output, kernel, stride, expansion) of every block, before scaling by 1.1 and 1.2
LITE2_BLOCKS = (
    [(32, 16, 3, 1, 1)]
    + [(16, 24, 3, 2, 6)] + [(24, 24, 3, 1, 6)] * 2
    + [(24, 48, 5, 2, 6)] + [(48, 48, 5, 1, 6)] * 2
    + [(48, 88, 3, 2, 6)] + [(88, 88, 3, 1, 6)] * 3
    + [(88, 120, 5, 1, 6)] + [(120, 120, 5, 1, 6)] * 3
    + [(120, 208, 5, 2, 6)] + [(208, 208, 5, 1, 6)] * 4
    + [(208, 352, 3, 1, 6)]
)  # fmt: skip


def published(blocks: list[tuple[int, int, int, int, int]], features: int, classes: int) -> State:
    """Random weights under the published names, scaled so that signals keep their size."""
    generator = torch.Generator().manual_seed(0)
    state: State = {}

    def conv(name: str, outside: int, inside: int, kernel: int) -> None:
        shape = (outside, inside, kernel, kernel)
        scale = math.sqrt(2 / (inside * kernel * kernel))
        state[f"{name}.weight"] = torch.randn(shape, generator=generator) * scale

    def norm(name: str, width: int) -> None:
        state[f"{name}.weight"] = torch.rand(width, generator=generator) + 0.5
        state[f"{name}.bias"] = torch.randn(width, generator=generator) * 0.5 + 0.5
        state[f"{name}.running_mean"] = torch.randn(width, generator=generator) * 0.2
        state[f"{name}.running_var"] = torch.rand(width, generator=generator) + 0.3
        state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    conv("_conv_stem", 32, 3, 3)
    norm("_bn0", 32)
    for i, (inside, outside, kernel, _, expansion) in enumerate(blocks):
        hidden = inside * expansion
        if expansion > 1:
            conv(f"_blocks.{i}._expand_conv", hidden, inside, 1)
            norm(f"_blocks.{i}._bn0", hidden)
        conv(f"_blocks.{i}._depthwise_conv", hidden, 1, kernel)
        norm(f"_blocks.{i}._bn1", hidden)
        conv(f"_blocks.{i}._project_conv", outside, hidden, 1)
        norm(f"_blocks.{i}._bn2", outside)
    conv("_conv_head", features, blocks[-1][1], 1)
    norm("_bn1", features)
    state["_fc.weight"] = torch.randn((classes, features), generator=generator) * 0.05
    state["_fc.bias"] = torch.randn(classes, generator=generator)
    return state


def reference(
    state: State, blocks: list[tuple[int, int, int, int, int]], x: Tensor
) -> tuple[Tensor, Tensor]:
    """The feature map and the network's own logits."""

    def convolve(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        kernel = weight.shape[-1]
        padding = []
        for size in (x.shape[3], x.shape[2]):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            padding += [total // 2, total - total // 2]
        return F.conv2d(F.pad(x, padding), weight, stride=stride, groups=groups)

    def normalise(x: Tensor, name: str) -> Tensor:
        mean, variance, weight, bias = (
            state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=1e-3)

    x = F.relu6(normalise(convolve(x, "_conv_stem", 2), "_bn0"))
    for i, (inside, outside, _, stride, expansion) in enumerate(blocks):
        before, name = x, f"_blocks.{i}"
        if expansion > 1:
            x = F.relu6(normalise(convolve(x, f"{name}._expand_conv"), f"{name}._bn0"))
        x = convolve(x, f"{name}._depthwise_conv", stride, groups=x.shape[1])
        x = F.relu6(normalise(x, f"{name}._bn1"))
        x = normalise(convolve(x, f"{name}._project_conv"), f"{name}._bn2")
        if stride == 1 and inside == outside:
            x = x + before
    x = F.relu6(normalise(convolve(x, "_conv_head"), "_bn1"))
    return x, F.linear(x.mean((2, 3)), state["_fc.weight"], state["_fc.bias"])


@pytest.fixture(scope="module")
def lite2() -> tuple[EfficientNetLite, State]:
    state = published(LITE2_BLOCKS, LITE2.features, LITE2.classes)
    network = EfficientNetLite().eval().requires_grad_(False)
    network.load_state_dict(fold(state))
    return network, state


@pytest.mark.parametrize("size", [64, 96, 65])
def test_folded_network_equals_the_published_one(
    lite2: tuple[EfficientNetLite, State], size: int
) -> None:
    network, state = lite2
    pixels = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(size)) * 2 - 1
    exact = reference({k: v.double() for k, v in state.items()}, LITE2_BLOCKS, pixels.double())
    features = network(pixels)
    outputs = features, network.classifier(features.mean((2, 3)))
    # Random weights amplify rounding: the error may be that of float32 without folding.
    for found, plain, truth in zip(
        outputs, reference(state, LITE2_BLOCKS, pixels), exact, strict=True
    ):
        assert truth.std() > 0.1
        assert (found - truth).abs().mean() <= 2 * (plain - truth).abs().mean()
        assert (found - truth).abs().max() <= 0.02 * truth.std()


def test_mean_of_cell_logits_is_the_networks_own_logits(
    lite2: tuple[EfficientNetLite, State],
) -> None:
    network, _ = lite2
    pixels = torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(3)) * 2 - 1
    features = network(pixels)
    assert features.shape == (1, 1_280, 4, 4)
    cells = network.classifier(features.permute(0, 2, 3, 1))
    torch.testing.assert_close(
        cells.mean((1, 2)), network.classifier(features.mean((2, 3))), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("size", [64, 260])
def test_flops_are_what_torch_counts(size: int) -> None:
    with torch.device("meta"):
        network = EfficientNetLite()
        with FlopCounterMode(display=False) as counter:
            features = network(torch.empty(1, 3, size, size))
            network.classifier(features[0].permute(1, 2, 0))
    assert flops(network, size) == counter.get_total_flops()


def test_channels_are_scaled_as_published() -> None:
    lite0 = EfficientNetLite(EfficientNetLiteConfig(1.0, 1.0, 224))
    widths = [block.project.out_channels for block in lite0.blocks]
    repeats = [16, *[24] * 2, *[40] * 2, *[80] * 3, *[112] * 3, *[192] * 4, 320]
    assert widths == repeats
    assert [b.project.out_channels for b in EfficientNetLite().blocks] == [
        outside for _, outside, *_ in LITE2_BLOCKS
    ]
