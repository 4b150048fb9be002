"""Tiny vision-language models with random weights, of transformers' own classes, and prompts.

`build(name)` gives a `TinyVlm`: the model, how many visual tokens an image has, and `inputs`, which
writes prompts as the family's processor would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PAD, BOS, EOS, IMAGE, VIDEO, START, END, MARKER = 0, 1, 2, 90, 91, 92, 93, 94
VOCABULARY = 99
WORDS = list(range(3, 80))
IDS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
LLAMA = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "initializer_range": 0.3, **IDS,
}  # fmt: skip
CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 24, "intermediate_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": 4, "initializer_factor": 8.0,
}  # fmt: skip

Row = Sequence[int]  # images (their index) and words of a prompt: negative numbers are images


@dataclass(frozen=True)
class TinyVlm:
    model: Any
    sizes: tuple[int, ...]  # visual tokens of image -1, -2, ...
    pixels: Callable[[list[int]], dict[str, Tensor]]  # of these images, in order
    before: tuple[int, ...] = ()  # ids that the processor writes around every image
    behind: tuple[int, ...] = ()

    def inputs(self, *rows: Row) -> dict[str, Any]:
        """Rows of word ids, with -1 for the first image, -2 for the second; padded on the left."""
        ids = [[BOS, *(one for item in row for one in self._written(item))] for row in rows]
        longest = max(map(len, ids))
        input_ids = torch.tensor([[PAD] * (longest - len(row)) + row for row in ids])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
        given = {"input_ids": input_ids, "attention_mask": mask}
        images = [[-item - 1 for item in row if item < 0] for row in rows]
        if any(images):
            flat = [image for row in images for image in row]
            given |= self.pixels(flat)
        if self.model.config.model_type.startswith("qwen"):
            given["mm_token_type_ids"] = (input_ids == IMAGE).int()
        if "smolvlm" in self.model.config.model_type or "idefics" in self.model.config.model_type:
            given["pixel_values"] = by_row(given["pixel_values"], [len(row) for row in images])
        if self.model.config.model_type == "instructblip":
            given["qformer_input_ids"] = torch.tensor([[5, 6, 7]]).repeat(len(rows), 1)
        return given

    def _written(self, item: int) -> list[int]:
        if item >= 0:
            return [item]
        return [*self.before, *[IMAGE] * self.sizes[-item - 1], *self.behind]


def photo(image: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(image))


def by_row(pixels: Tensor, counts: list[int]) -> Tensor:
    """[images, ...] -> [rows, most images of a row, ...], padded with black ones."""
    rows = torch.zeros(len(counts), max(counts), *pixels.shape[1:])
    for row, images in zip(rows, pixels.split(counts), strict=True):
        row[: len(images)] = images
    return rows


def stacked(*shape: int) -> Callable[[list[int]], dict[str, Tensor]]:
    return lambda images: {"pixel_values": torch.stack([photo(i, *shape) for i in images])}


def llava() -> TinyVlm:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    config = LlavaConfig(
        vision_config={**CLIP, "image_size": 24}, text_config=LLAMA, image_token_id=IMAGE,
        image_seq_length=36, **IDS,
    )  # fmt: skip
    return TinyVlm(LlavaForConditionalGeneration(config), (36, 36), stacked(3, 24, 24))


def llava_next() -> TinyVlm:
    from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration

    config = LlavaNextConfig(
        vision_config={**CLIP, "image_size": 16}, text_config=LLAMA, image_token_id=IMAGE,
        image_grid_pinpoints=[[16, 32], [32, 32]], **IDS,
    )  # fmt: skip
    size = [(16, 32), (32, 32)]
    tiles = [3, 5]

    def pixels(images: list[int]) -> dict[str, Tensor]:
        padded = torch.zeros(len(images), 5, 3, 16, 16)
        for row, image in zip(padded, images, strict=True):
            row[: tiles[image]] = photo(image, tiles[image], 3, 16, 16)
        return {"pixel_values": padded, "image_sizes": torch.tensor([size[i] for i in images])}

    # The whole image, then its grid of patches with the end of each row.
    sizes = (16 + 4 * 9, 16 + 8 * 9)
    return TinyVlm(LlavaNextForConditionalGeneration(config), sizes, pixels)


QWEN_TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "initializer_range": 0.3, **IDS,
}  # fmt: skip
QWEN_IDS = {
    "image_token_id": IMAGE, "video_token_id": VIDEO,
    "vision_start_token_id": START, "vision_end_token_id": END, **IDS,
}  # fmt: skip
GRIDS = [(1, 12, 12), (1, 8, 12)]


def grids(images: list[int]) -> dict[str, Tensor]:
    width = 3 * 2 * 4 * 4
    patches = [photo(i, GRIDS[i][1] * GRIDS[i][2], width) for i in images]
    return {
        "pixel_values": torch.cat(patches),
        "image_grid_thw": torch.tensor([GRIDS[i] for i in images]),
    }


def qwen2_5_vl() -> TinyVlm:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 4,
        "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1],
        "initializer_range": 0.3,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        vision_config=vision, text_config={**QWEN_TEXT, "rope_parameters": rope}, **QWEN_IDS
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    return TinyVlm(model, (36, 24), grids, (START,), (END,))


def qwen3_vl() -> TinyVlm:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    vision = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 4,
        "out_hidden_size": 32, "num_position_embeddings": 144, "deepstack_visual_indexes": [0, 1],
        "initializer_range": 0.3,
    }  # fmt: skip
    text = {**QWEN_TEXT, "head_dim": 8, "rope_parameters": rope}
    config = Qwen3VLConfig(vision_config=vision, text_config=text, **QWEN_IDS)
    return TinyVlm(Qwen3VLForConditionalGeneration(config), (36, 24), grids, (START,), (END,))


SIGLIP = {
    "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 48, "patch_size": 4, "initializer_range": 0.3,
}  # fmt: skip


def idefics3() -> TinyVlm:
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    config = Idefics3Config(
        vision_config=SIGLIP, text_config=LLAMA, image_token_id=IMAGE, scale_factor=2, **IDS
    )
    model = Idefics3ForConditionalGeneration(config)
    return TinyVlm(model, (36, 36), stacked(3, 48, 48), (MARKER, MARKER + 1), (MARKER,))


def smolvlm() -> TinyVlm:
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    config = SmolVLMConfig(
        vision_config=SIGLIP, text_config=LLAMA, image_token_id=IMAGE, scale_factor=2, **IDS
    )
    model = SmolVLMForConditionalGeneration(config)
    return TinyVlm(model, (36, 36), stacked(3, 48, 48), (MARKER, MARKER + 1), (MARKER,))


def instructblip(text: dict[str, Any]) -> TinyVlm:
    from transformers import InstructBlipConfig, InstructBlipForConditionalGeneration

    vision = {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 24, "patch_size": 4, "initializer_range": 0.3,
    }  # fmt: skip
    qformer = {
        "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 32, "encoder_hidden_size": 24,
        "initializer_range": 0.3,
    }  # fmt: skip
    config = InstructBlipConfig(
        vision_config=vision, qformer_config=qformer, text_config=text, num_query_tokens=32,
        image_token_index=IMAGE,
    )  # fmt: skip
    model = InstructBlipForConditionalGeneration(config)
    torch.nn.init.normal_(model.query_tokens, std=1.0)
    return TinyVlm(model, (32, 32), stacked(3, 24, 24))


T5 = {
    "model_type": "t5", "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48,
    "num_layers": 2, "num_heads": 4, "pad_token_id": PAD, "eos_token_id": EOS,
    "decoder_start_token_id": PAD, "is_encoder_decoder": True, "initializer_factor": 3.0,
}  # fmt: skip
FAMILIES: dict[str, Callable[[], TinyVlm]] = {
    "llava": llava,
    "llava_next": llava_next,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "instructblip": lambda: instructblip(LLAMA),
    "instructblip_t5": lambda: instructblip(T5),
}
DECODER_ONLY = [name for name in FAMILIES if name != "instructblip_t5"]
SEVERAL_IMAGES = [name for name in FAMILIES if not name.startswith("instructblip")]
WITH_PROJECTOR = [name for name in SEVERAL_IMAGES if not name.startswith("qwen")]


def build(name: str) -> TinyVlm:
    torch.manual_seed(2026)
    vlm = FAMILIES[name]()
    vlm.model.eval()
    return vlm
