"""A LoRA adapter, merged into the decoder when it is loaded: W + (alpha / r) B A.

Enters: a folder with `adapter_config.json` and `adapter_model.safetensors` as PEFT writes them, and
the decoder of the model that it was trained on. Leaves: the decoder changed in place, at no cost
per token. The paper's adapter has r = 64 and alpha = 128 on q, k, v and o; r and alpha are read
from the config.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from skipqa.backbones.networks.llama import Layer, Llama, LlamaConfig
from skipqa.errors import UserError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
NAME = re.compile(r"\.layers\.(\d+)\.self_attn\.([qkvo])_proj\.lora_([AB])\.weight$")


@torch.no_grad()
def merge(decoder: Llama, folder: Path, base: str) -> None:
    """`base` is the decoder's repository; an adapter trained on another one is refused."""
    try:
        config = json.loads((folder / CONFIG).read_text())
        scale = config["lora_alpha"] / config["r"]
        trained_on = config["base_model_name_or_path"].rstrip("/").split("/")[-1]
        state = load_file(folder / WEIGHTS)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"the adapter in {folder} cannot be read: {error!r}") from None
    if trained_on != base.split("/")[-1]:
        raise UserError(f"the adapter in {folder} was trained on {trained_on}, not on {base}")
    parts: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name, value in state.items():
        if (match := NAME.search(name)) is None:
            raise UserError(
                f"the adapter in {folder} changes {name}: only q, k, v and o are supported"
            )
        number, projection, matrix = match.groups()
        parts.setdefault((int(number), projection), {})[matrix] = value.float()
    for (place, projection), pair in parts.items():
        if place >= len(decoder.layers) or len(pair) != 2:
            raise UserError(f"the adapter in {folder} does not fit layer {place} of {base}")
        layer = decoder.layers[place]
        assert isinstance(layer, Layer)
        linear = layer.out if projection == "o" else layer.qkv
        rows = _rows(decoder.config, projection)
        change = scale * pair["B"] @ pair["A"]
        if change.shape != linear.weight[rows].shape:
            raise UserError(
                f"the adapter in {folder} is for {tuple(change.shape)} in {projection}_proj, "
                f"{base} has {tuple(linear.weight[rows].shape)}"
            )
        merged = linear.weight.clone()  # the weights may be a memory-mapped file
        merged[rows] += change.to(merged)
        linear.weight = nn.Parameter(merged, requires_grad=False)


def _rows(config: LlamaConfig, projection: str) -> slice:
    """The rows of a projection in `Layer.qkv`, or all rows of `Layer.out`."""
    q, kv = config.width, config.kv_width
    starts = {"q": (0, q), "k": (q, q + kv), "v": (q + kv, q + 2 * kv)}
    return slice(*starts.get(projection, (0, q)))
