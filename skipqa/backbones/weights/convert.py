"""Converts downloaded networks once into safetensors files that load quickly.

Enters: a downloaded asset, and the file of a delta that training added. Leaves: a folder under the
cache. Each function makes its folder the first time; an interrupted conversion is never taken for
a finished one. This is the only module that knows the published formats.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from skipqa import assets
from skipqa.assets import Report
from skipqa.backbones.networks import bert, efficientnet_lite, llama, mobile_sam
from skipqa.backbones.weights import loading

if TYPE_CHECKING:  # read only when something is converted
    from gguf import GGUFReader

# Part of every converted folder's name: raise it when what a converter writes changes.
FORMAT = 1

# GGUF's names of a layer's weights, and the Hub's
_GGUF = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def converted(
    asset: assets.Asset,
    report: Report,
    write: Callable[[Path, Path], None],
    *,
    delta: Path | None = None,
) -> Path:
    """The folder made from an asset: `write(source, target)` fills it the first time.

    With a trained `delta`, a hash of that file is part of the folder's name.
    """
    digest = "" if delta is None else f"-{assets.sha256_of(delta)[:8]}"
    target = assets.home() / "converted" / f"{asset.key}{digest}-{FORMAT}"
    if not target.is_dir():
        source = assets.fetch(asset, report)
        report(f"converting {asset.name}" + (" with its trained delta" if delta else ""))
        with assets.building(target) as partial:
            write(source, partial)
    return target


def decoder(report: Report = lambda _: None, delta: Path | None = None) -> Path:
    """SmolLM2's weights dequantised to float32, plus a trained delta, and its tokenizer."""

    def write(source: Path, target: Path) -> None:
        from gguf import GGUFReader

        reader = GGUFReader(next(source.glob("*.gguf")))
        weights = _decoder_weights(reader)
        if delta is not None:
            weights = loading.tuned(weights, delta)
        save_file(weights, target / "weights.safetensors")
        _decoder_tokenizer(reader).save(str(target / "tokenizer.json"))

    return converted(assets.SMOLLM2, report, write, delta=delta)


def text(report: Report = lambda _: None) -> Path:
    """MiniLM's weights; its tokenizer is read from the asset itself."""

    def write(source: Path, target: Path) -> None:
        state = load_file(source / "model.safetensors")
        save_file(bert.from_hub_names(state, bert.MINILM_L6), target / "weights.safetensors")

    return converted(assets.MINILM, report, write)


def vision(report: Report = lambda _: None, delta: Path | None = None) -> Path:
    """EfficientNet-Lite2 with its batch norms folded in, plus a trained delta."""

    def write(source: Path, target: Path) -> None:
        state = torch.load(next(source.glob("*.pth")), map_location="cpu", weights_only=True)
        weights = efficientnet_lite.fold(state)
        if delta is not None:
            weights = loading.tuned(weights, delta)
        save_file(weights, target / "weights.safetensors")

    return converted(assets.EFFICIENTNET_LITE2, report, write, delta=delta)


def segmenter(report: Report = lambda _: None) -> Path:
    """MobileSAM with its batch norms folded in."""

    def write(source: Path, target: Path) -> None:
        state = torch.load(source / "mobile_sam.pt", map_location="cpu", weights_only=True)
        save_file(mobile_sam.from_published_names(state), target / "weights.safetensors")

    return converted(assets.MOBILE_SAM, report, write)


def imagenet_synsets() -> list[str]:
    """WordNet ids (`n07920663`) of the thousand ImageNet classes, in the classifier's order."""
    return files("skipqa.backbones.weights").joinpath("imagenet_synsets.tsv").read_text().split()


def _decoder_weights(reader: GGUFReader) -> dict[str, Tensor]:
    from gguf import dequantize

    config = llama.SMOLLM2_135M
    state: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        state[tensor.name] = torch.from_numpy(values.reshape(tensor.shape.tolist()[::-1]).copy())

    def pair_halves(weight: Tensor, heads: int) -> Tensor:
        """Undo GGUF's interleaving of the two halves of each head, made for its rotary kernel."""
        rows, columns = weight.shape
        weight = weight.view(heads, rows // heads // 2, 2, columns)
        return weight.transpose(1, 2).reshape(rows, columns)

    hub = {
        "model.embed_tokens.weight": state["token_embd.weight"],
        "model.norm.weight": state["output_norm.weight"],
    }
    for i in range(config.layers):
        block, layer = f"blk.{i}.", f"model.layers.{i}."
        hub |= {f"{layer}{new}.weight": state[f"{block}{old}.weight"] for old, new in _GGUF.items()}
        for projection, heads in (("q", config.heads), ("k", config.kv_heads)):
            name = f"{layer}self_attn.{projection}_proj.weight"
            hub[name] = pair_halves(hub[name], heads)
    return llama.from_hub_names(hub, config)


def _decoder_tokenizer(reader: GGUFReader) -> Tokenizer:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    def field(name: str) -> list[Any]:
        return reader.fields[f"tokenizer.ggml.{name}"].contents()

    tokens, control = field("tokens"), 3
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, field("token_type"), strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer
