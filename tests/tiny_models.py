"""Tiny models with random weights, written as the Hub's repositories are: same classes, same names.

`write_submission` and `write_ablation` fill a folder that `--weights` takes. Widths are small and
all different, so that a mix-up of two of them fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from skipqa.backbones.presets.evaclip_vicuna import EvaClipVicuna
from skipqa.backbones.presets.llava import Llava

START, END, VOCABULARY = 256, 257, 260
IMAGE, PATCH = 56, 14  # 4 x 4 patches
LLAMA = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "bos_token_id": START, "eos_token_id": END,
    "rms_norm_eps": 1e-5, "initializer_range": 0.2,
}  # fmt: skip
VISION = {
    "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4,
    "image_size": IMAGE, "patch_size": PATCH, "initializer_range": 0.2, "initializer_factor": 8.0,
}  # fmt: skip
TEXT = {
    "hidden_size": 64, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 1,
    "vocab_size": VOCABULARY, "max_position_embeddings": 77, "bos_token_id": START,
    "eos_token_id": END, "pad_token_id": 0, "initializer_factor": 8.0,
}  # fmt: skip
JOINT = 24
EVA_WIDTH, EVA_NATIVE = 88, 28  # one head of EVA's size; trained on 2 x 2 patches


def write_submission(folder: Path) -> Path:
    torch.manual_seed(2026)
    vicuna, eva = (folder / one.folder for one in EvaClipVicuna.repositories)
    write_vicuna(vicuna)
    write_eva(eva)
    return folder


def write_ablation(folder: Path) -> Path:
    torch.manual_seed(2026)
    llava, clip = (folder / one.folder for one in Llava.repositories)
    write_llava(llava)
    write_clip(clip)
    return folder


def write_vicuna(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(folder)
    write_tokenizer(folder, ends=False)


def write_llava(folder: Path) -> None:
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaNextConfig,
        LlavaNextForConditionalGeneration,
    )

    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**LLAMA),
        image_grid_pinpoints=[[IMAGE, 2 * IMAGE]],
        image_token_index=VOCABULARY - 1,
    )
    LlavaNextForConditionalGeneration(config).save_pretrained(folder)
    write_tokenizer(folder, ends=False)


def write_clip(folder: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    joint = {"projection_dim": JOINT}
    config = CLIPConfig(text_config=TEXT | joint, vision_config=VISION | joint, **joint)
    CLIPModel(config).save_pretrained(folder)
    write_tokenizer(folder, ends=True)


def eva_parts() -> tuple[Any, Any]:
    """BLIP-2's vision model is EVA-CLIP-G's; CLIP's text model with a plain GELU its text tower."""
    from transformers import (
        Blip2VisionConfig,
        Blip2VisionModel,
        CLIPTextConfig,
        CLIPTextModelWithProjection,
    )

    vision = Blip2VisionConfig(
        hidden_size=EVA_WIDTH, intermediate_size=96, num_hidden_layers=3, num_attention_heads=1,
        image_size=EVA_NATIVE, patch_size=PATCH, layer_norm_eps=1e-6,
    )  # fmt: skip
    text = CLIPTextConfig(**TEXT, projection_dim=JOINT, hidden_act="gelu")
    towers = Blip2VisionModel(vision).eval(), CLIPTextModelWithProjection(text).eval()
    for tower in towers:
        for parameter in tower.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return towers


def write_eva(folder: Path) -> None:
    vision, text = eva_parts()
    head = {"visual.trunk.head.weight": torch.randn(JOINT, EVA_WIDTH),
            "visual.trunk.head.bias": torch.randn(JOINT)}  # fmt: skip
    folder.mkdir(parents=True)
    state = as_open_clip(vision, text) | head | {"logit_scale": torch.tensor(3.0)}
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "open_clip_model.safetensors")
    write_tokenizer(folder, ends=True)


def as_open_clip(vision: Any, text: Any) -> dict[str, Tensor]:
    """The two towers under the names of an OpenCLIP checkpoint with timm's EVA."""
    theirs = {k.removeprefix("vision_model."): v for k, v in vision.state_dict().items()}
    named: dict[str, Tensor] = {
        "visual.trunk.cls_token": theirs["embeddings.class_embedding"],
        "visual.trunk.pos_embed": theirs["embeddings.position_embedding"],
    }
    renamed = {
        "embeddings.patch_embedding": "patch_embed.proj", "post_layernorm": "norm",
        "encoder.layers": "blocks", "layer_norm1": "norm1", "layer_norm2": "norm2",
        "self_attn.projection": "attn.proj", "self_attn.qkv": "attn.qkv",
    }  # fmt: skip
    for name, value in theirs.items():
        if name in ("embeddings.class_embedding", "embeddings.position_embedding"):
            continue
        for old, new in renamed.items():
            name = name.replace(old, new)
        if name.endswith("qkv.bias"):
            q, k, v = value.chunk(3)
            k.zero_()  # EVA has none
            block = f"visual.trunk.{name.removesuffix('qkv.bias')}"
            named |= {f"{block}q_bias": q.clone(), f"{block}v_bias": v.clone()}
        else:
            named[f"visual.trunk.{name}"] = value
    return named | _text_as_open_clip(text)


def _text_as_open_clip(text: Any) -> dict[str, Tensor]:
    theirs = {k.removeprefix("text_model."): v for k, v in text.state_dict().items()}
    named = {
        "text.token_embedding.weight": theirs["embeddings.token_embedding.weight"],
        "text.positional_embedding": theirs["embeddings.position_embedding.weight"],
        "text.ln_final.weight": theirs["final_layer_norm.weight"],
        "text.ln_final.bias": theirs["final_layer_norm.bias"],
        "text.text_projection": theirs["text_projection.weight"].T,
    }
    for i in range(TEXT["num_hidden_layers"]):
        old, new = f"encoder.layers.{i}.", f"text.transformer.resblocks.{i}."
        for part in ("weight", "bias"):
            qkv = [theirs[f"{old}self_attn.{x}_proj.{part}"] for x in "qkv"]
            named[f"{new}attn.in_proj_{part}"] = torch.cat(qkv)
            for there, here in (
                ("self_attn.out_proj", "attn.out_proj"), ("layer_norm1", "ln_1"),
                ("layer_norm2", "ln_2"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"),
            ):  # fmt: skip
                named[f"{new}{here}.{part}"] = theirs[f"{old}{there}.{part}"]
    return named


def write_tokenizer(folder: Path, *, ends: bool) -> None:
    """A token a byte; Llama's tokenizer sets a mark before a text, CLIP's also one behind it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary | {"<s>": START, "</s>": END}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if ends else "<s> $A",
        special_tokens=[("<s>", START), ("</s>", END)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
