"""Decoders in GGUF files: tiny ones written here by GGUF's own writer, and the published Qwen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import Qwen2Tokenizer

from skipqa import assets
from skipqa.backbones.networks import int8
from skipqa.backbones.networks.llama import Llama, LlamaConfig
from skipqa.backbones.weights import convert, gguf_decoder, loading
from skipqa.backbones.weights.gguf_decoder import PublishedDecoder
from skipqa.config import Weights

gguf = pytest.importorskip("gguf")

TINY = LlamaConfig(304, 64, 2, 4, 2, 96, rope_theta=1e6, tied=True, qkv_bias=True)
TENSORS = "weights.safetensors"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "1 2", "' S", "Ċ Ċ", "! Ċ"]
TEXTS = [
    "hello world",
    "  two  spaces, tabs\tand\r\nline breaks\n\n\n end ",
    "IT'S 2026, 12345.6 kg — naïve café, ﬁne: 東京 🙂",
    "e\u0301 is composed",
    "!!!\n\n??",
]


def vocabulary() -> list[str]:
    """Every byte, what is merged from them, the special tokens, padding."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = list(bytes_to_unicode().values())
    tokens += [merge.replace(" ", "") for merge in MERGES]
    tokens += SPECIAL
    return tokens + [f"[PAD{n}]" for n in range(len(tokens), TINY.vocabulary)]


def write(path: Path, state: dict[str, torch.Tensor], kind: Any) -> Path:
    """A file as llama.cpp's converter lays Qwen2 out, its matrices quantised."""
    writer = gguf.GGUFWriter(path, "qwen2")
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    special, padding = gguf.TokenType.CONTROL, gguf.TokenType.UNUSED
    kinds = [special if t in SPECIAL else padding if "[PAD" in t else 1 for t in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges(MERGES)
    for name, value in state.items():
        data = value.numpy()
        if data.ndim == 2:
            data = gguf.quantize(data, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Llama]:
    torch.manual_seed(0)
    network = Llama(TINY).requires_grad_(False)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    state = {
        "token_embd.weight": torch.zeros_like(network.embedding.weight),
        "output.weight": network.embedding.weight,
        "output_norm.weight": network.norm.weight,
    }
    for i, layer in enumerate(network.layers):
        rows = (TINY.width, TINY.kv_width, TINY.kv_width)
        parts: dict[str, torch.Tensor] = {
            "attn_norm.weight": layer.attention_norm.weight,  # type: ignore[union-attr,dict-item]
            "ffn_norm.weight": layer.ffn_norm.weight,  # type: ignore[union-attr,dict-item]
            "attn_output.weight": layer.out.weight,  # type: ignore[union-attr,dict-item]
            "ffn_down.weight": layer.down.weight,  # type: ignore[union-attr,dict-item]
        }
        for kind in ("weight", "bias"):
            for x, part in zip("qkv", getattr(layer.qkv, kind).split(rows), strict=True):
                parts[f"attn_{x}.{kind}"] = part
        for x, part in zip(("gate", "up"), layer.gate_up.weight.chunk(2), strict=True):  # type: ignore[union-attr,operator]
            parts[f"ffn_{x}.weight"] = part
        state |= {f"blk.{i}.{name}": value for name, value in parts.items()}
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return write(path, state, gguf.GGMLQuantizationType.Q8_0), network


def test_weights_come_back_under_our_names(published: tuple[Path, Llama]) -> None:
    path, network = published
    decoder = PublishedDecoder(assets.QWEN, TINY)
    found = dict(gguf_decoder.weights(gguf_decoder.open_file(path), decoder))
    expected = network.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = (found[name] - value).abs().max()
        assert error <= (0.02 if value.ndim == 2 else 0), name
        assert found[name].dtype == torch.float32


def test_interleaved_heads_are_undone(published: tuple[Path, Llama]) -> None:
    """Rows 0, 1, 2, 3… of a head become 0, 2, …, 1, 3, …; values and biases stay."""
    reader = gguf_decoder.open_file(published[0])
    plain, paired = (
        dict(gguf_decoder.weights(reader, PublishedDecoder(assets.QWEN, TINY, interleaved)))
        for interleaved in (False, True)
    )
    order = [*range(0, TINY.head_width, 2), *range(1, TINY.head_width, 2)]
    first_head = plain["layers.0.qkv.weight"][: TINY.head_width]
    assert torch.equal(paired["layers.0.qkv.weight"][: TINY.head_width], first_head[order])
    values = slice(TINY.width + TINY.kv_width, None)
    for name in plain:
        rows = values if name.endswith("qkv.weight") else slice(None)
        assert torch.equal(plain[name][rows], paired[name][rows])


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_converted_once_in_each_precision(
    published: tuple[Path, Llama],
    weights: Weights,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, network = published
    monkeypatch.setenv("SKIPQA_HOME", str(tmp_path))
    asset = assets.Asset("tiny", "tiny", "1.0", None, 1, "CC0", {"tiny.gguf": "0" * 64})
    with assets.building(tmp_path / "assets" / asset.key) as folder:
        (folder / "tiny.gguf").write_bytes(path.read_bytes())
    decoder = PublishedDecoder(asset, TINY)
    said: list[str] = []
    made = convert.decoder(said.append, published=decoder, weights=weights)
    kind = "" if weights == "float32" else f"-{weights}"
    assert made.name == f"tiny-00000000{kind}-{convert.FORMAT}"
    assert convert.decoder(said.append, published=decoder, weights=weights) == made
    assert said == ["converting tiny"]
    assert [path.name for path in sorted(made.iterdir())] == ["tokenizer.json", TENSORS]

    stored = load_file(made / TENSORS)
    assert str(stored["layers.1.down.weight"].dtype) == f"torch.{weights}"
    if weights == "int8":  # they can be used where the file is mapped
        assert all(value.data_ptr() % int8.ALIGNMENT == 0 for value in stored.values())
    found = loading.load(lambda: int8.build(TINY, weights), made)
    expected, ids = network.embedding.weight[[3, 5]], torch.tensor([3, 5])
    torch.testing.assert_close(found.embedding(ids).float(), expected, rtol=0, atol=0.03)


@pytest.fixture(scope="module")
def tokenizers(published: tuple[Path, Llama]) -> tuple[Tokenizer, Qwen2Tokenizer]:
    tokens = vocabulary()
    reference = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in MERGES],
        additional_special_tokens=SPECIAL,
    )
    return gguf_decoder.tokenizer(gguf_decoder.open_file(published[0])), reference


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_cut_as_transformers_cuts_them(
    tokenizers: tuple[Tokenizer, Qwen2Tokenizer], text: str
) -> None:
    import unicodedata

    ours, reference = tokenizers
    ids = ours.encode(text).ids
    assert ids == reference(text)["input_ids"]
    assert ours.decode(ids) == unicodedata.normalize("NFC", text)


def test_special_tokens_are_one_token_each(tokenizers: tuple[Tokenizer, Any]) -> None:
    ours, _ = tokenizers
    for token in SPECIAL:
        assert ours.encode(f"hello{token}").tokens[-1] == token
        assert len(ours.encode(token).ids) == 1
    assert ours.decode(ours.encode("hello<|im_end|>").ids) == "hello"


@pytest.mark.slow
@pytest.mark.network
def test_the_published_qwen_answers() -> None:
    """A gigabyte is downloaded the first time. Heads that were paired wrongly would babble."""
    folder = convert.decoder(published=gguf_decoder.QWEN, weights="int8")
    tokenizer = loading.load_tokenizer(folder)
    decoder = loading.load(lambda: int8.build(gguf_decoder.QWEN.config, "int8"), folder)
    prompt = (
        "<|im_start|>user\nWhat is the capital of Hungary? One word.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(prompt).ids
    assert ids[0] == tokenizer.token_to_id("<|im_start|>") == 151_644
    stop = [tokenizer.token_to_id("<|im_end|>")]
    answer = decoder.generate(decoder.embedding(torch.tensor([ids])), 6, stop)
    assert "Budapest" in tokenizer.decode(answer.tokens)
    assert os.path.getsize(folder / TENSORS) < 1.6e9
    assert np.isfinite(answer.log_probs).all()
