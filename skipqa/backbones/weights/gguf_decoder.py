"""A decoder in a GGUF file: its weights under our names, and its tokenizer.

Enters: the path of a file, and which published decoder it holds. Leaves: tensors one at a time,
dequantised, so that a large decoder is never in memory at full precision; a byte-level BPE
tokenizer. It does not know where the file came from or what becomes of the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer
from torch import Tensor

from skipqa import assets
from skipqa.backbones.networks import llama
from skipqa.errors import UserError
from skipqa.nn import checkpoint

if TYPE_CHECKING:  # read only when something is converted
    from gguf import GGUFReader

# GGUF's names of a layer's tensors, and the Hub's
_LAYER = {
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
CONTROL = 3  # GGUF's type of a token that stands for structure

# How Qwen2 cuts a text into words before byte pairs are merged: contractions in any case, one digit
# at a time, line breaks with what stands before them
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PublishedDecoder:
    asset: assets.Asset | assets.SplitAsset
    config: llama.LlamaConfig
    # Whether the file has the two halves of each head of q and k interleaved, as GGUF does for its
    # rotary kernel of Llama's and not for that of Qwen2's
    interleaved: bool = False

    def as_base(self) -> dict[str, str]:
        """What a delta's file says of the weights that it was trained on."""
        return {"base": self.asset.name, "base_sha256": self.asset.sha256}

    def check_base(self, delta: Path | None) -> None:
        """Refuse a delta that says it belongs to other weights; older files say nothing."""
        if delta is None:
            return
        stored = checkpoint.read_header(delta).config
        if stored.get("base_sha256", self.asset.sha256) != self.asset.sha256:
            raise UserError(
                f"{delta} was trained on {stored['base']} with sha256 "
                f"{stored['base_sha256'][:12]}…, not on {self.asset.name} with "
                f"{self.asset.sha256[:12]}…: it cannot be added to these weights"
            )


SMOLLM2 = PublishedDecoder(assets.SMOLLM2, llama.SMOLLM2_135M, interleaved=True)
QWEN = PublishedDecoder(assets.QWEN, llama.QWEN2_1_5B)


def weights(reader: GGUFReader, decoder: PublishedDecoder) -> Iterator[tuple[str, Tensor]]:
    """The state of `Llama` in float32, one tensor after another."""
    return llama.renamed(_HubTensors(reader, decoder), decoder.config)


class _HubTensors(Mapping[str, Tensor]):
    """The tensors of a file under the Hub's names, dequantised when they are asked for."""

    def __init__(self, reader: GGUFReader, decoder: PublishedDecoder) -> None:
        self.config, self.interleaved = decoder.config, decoder.interleaved
        stored = {tensor.name: tensor for tensor in reader.tensors}
        embedding = "token_embd.weight"
        if self.config.tied and "output.weight" in stored:
            embedding = "output.weight"  # the same, in more bits
        self._stored: dict[str, Any] = {
            "model.embed_tokens.weight": stored[embedding],
            "model.norm.weight": stored["output_norm.weight"],
        }
        if not self.config.tied:
            self._stored["lm_head.weight"] = stored["output.weight"]
        for name, tensor in stored.items():
            if name.startswith("blk."):
                _, number, part, kind = name.split(".")
                self._stored[f"model.layers.{number}.{_LAYER[part]}.{kind}"] = tensor

    def __getitem__(self, name: str) -> Tensor:
        from gguf import dequantize

        tensor = self._stored[name]
        values = dequantize(tensor.data, tensor.tensor_type).astype(
            np.float32
        )  # a copy: the file is read-only
        found = torch.from_numpy(values.reshape(tensor.shape.tolist()[::-1]))
        for projection, heads in (("q", self.config.heads), ("k", self.config.kv_heads)):
            if self.interleaved and name.endswith(f"self_attn.{projection}_proj.weight"):
                found = _pair_halves(found, heads)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def _pair_halves(weight: Tensor, heads: int) -> Tensor:
    rows, columns = weight.shape
    weight = weight.view(heads, rows // heads // 2, 2, columns)
    return weight.transpose(1, 2).reshape(rows, columns)


def tokenizer(reader: GGUFReader) -> Tokenizer:
    """Byte-level BPE with the words and special tokens that the file names."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

    def field(name: str) -> Any:
        return reader.fields[f"tokenizer.ggml.{name}"].contents()

    tokens = field("tokens")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    qwen2 = field("pre") == "qwen2"
    words: Any = pre_tokenizers.Digits(individual_digits=True)
    if qwen2:
        made.normalizer = normalizers.NFC()
        words = pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not qwen2)
    made.pre_tokenizer = pre_tokenizers.Sequence([words, in_bytes])
    made.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, field("token_type"), strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return made


def open_file(path: Path) -> GGUFReader:
    from gguf import GGUFReader

    return GGUFReader(path)
