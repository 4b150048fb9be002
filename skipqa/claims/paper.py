"""The paper's own cost figures, checked against the arithmetic of its own shapes.

Enters: a preset's counted costs. Leaves: sentences, each with a figure of the paper and the same
quantity as counted here. It measures nothing.
"""

from __future__ import annotations

from skipqa.backbones.networks.llama import LlamaConfig
from skipqa.costs.systems import Architecture, Load, Part, kv_cache_bytes, prompt_tokens

# Table B.3's rows, in GFLOPs: (dense, SKIP).
TABLE_13B = {
    "vision encoder": (72.4, 72.4),
    "QVS scoring": (0.0, 0.5),
    "RCSR retrieval": (48.2, 19.3),
    "SKV gate": (0.0, 0.8),
    "DBC controller": (0.0, 0.3),
    "BSCA": (143.7, 14.6),
    "LLM decoder": (248.4, 76.4),
}
TOTALS = {"submission-7b": (1_710.0, 420.0), "ablation-13b": (512.7, 184.3)}  # GFLOPs


def doubts(
    name: str, preset: Architecture, load: Load, dense: list[Part], skip: list[Part]
) -> list[str]:
    """What the paper says about this preset that its own shapes contradict."""
    if name == "submission-7b":
        return _submission(preset, load, dense, skip)
    if name == "ablation-13b":
        return _ablation(preset, load, dense)
    return []


def _submission(preset: Architecture, load: Load, dense: list[Part], skip: list[Part]) -> list[str]:
    cost = {part.name: part.flops / 1e12 for part in skip}
    prompt = prompt_tokens(preset, load, "skip")
    dense_prompt = prompt_tokens(preset, load, "dense")
    total = sum(part.flops for part in dense) / 1e12
    cache = kv_cache_bytes(preset.decoder, 1)
    fusion_ratio = (load.V + load.T + load.K * load.L_c) ** 2 / (0.1 * load.V_kept * 8)
    return [
        f"0.42 TFLOPs per question pay for {0.42e12 / _per_token(preset.decoder):.0f} tokens of "
        f"this decoder; SKIP's prompt has {prompt} and takes {cost['decoder, prompt']:.2f} TFLOPs.",
        f"The vision encoder alone takes {cost['vision encoder']:.2f} TFLOPs and the drafter, "
        f"which always runs, {cost['SKV drafter']:.2f}.",
        f"The dense system's 1.71 TFLOPs are {total:.1f} when counted here.",
        f"A key/value cache of 12.7 GB holds {12.7e9 / cache:,.0f} tokens in 16 bits; the dense "
        f"prompt has {dense_prompt:,} and needs {cache * dense_prompt / 1e9:.2f} GB. SKIP's "
        f"4.8 GB would be {4.8e9 / cache:,.0f} tokens.",
        f"The memory totals (15.2 GB) are sums without the decoder's weights, which take "
        f"{2 * _parameters(preset.decoder) / 1e9:.1f} GB in 16 bits.",
        f"'~870x' for the fusion term: (V + T + K L_c)^2 / (beta V' K') with the numbers given "
        f"(V' = {load.V_kept}, K' = 8) is {fusion_ratio:,.0f}x.",
        f"Attention is {_attention_fraction(preset.decoder, dense_prompt):.0%} of the dense "
        f"decoder's prompt pass; it does not 'dominate inference' at {dense_prompt:,} tokens.",
    ]


def _ablation(preset: Architecture, load: Load, dense: list[Part]) -> list[str]:
    cost = {part.name: part.flops / 1e9 for part in dense}
    per_token = _per_token(preset.decoder)
    sam = 2 * 4_096 * 12 * 12 * 768**2  # the linear layers alone: 64 x 64 tokens, 12 layers
    return [
        f"The decoder's 248.4 GFLOPs (dense) pay for {248.4e9 / per_token:.0f} tokens of this "
        f"decoder and SKIP's 76.4 pay for {76.4e9 / per_token:.0f}; the prompts have "
        f"{prompt_tokens(preset, load, 'dense')} and {prompt_tokens(preset, load, 'skip')}.",
        f"The whole budget range, 143.8 to 384.6 GFLOPs, is {143.8e9 / per_token:.0f} to "
        f"{384.6e9 / per_token:.0f} tokens of this decoder.",
        f"The vision encoder's 72.4 G are near its multiply-adds: "
        f"{cost['vision encoder']:.0f} GFLOPs here.",
        f"RCSR's 19.3 G cannot hold SAM-ViT-B at its native 1,024 px: its linear layers alone take "
        f"{sam / 1e9:.0f} GFLOPs.",
        f"Peak memory of 14.2 GB is less than the decoder's weights in 16 bits, "
        f"{2 * _parameters(preset.decoder) / 1e9:.1f} GB.",
        "rho_v = 0.40 costs 184.3 GFLOPs in the cost table and 172.8 in the rho_v sweep; dense "
        "fusion costs 143.7 there and 58.2 at degree 16 in the degree sweep.",
        "The rho_v sweep keeps 102 of 256 tokens at 0.40, which is rounding; the definition's "
        "ceil(rho_v L) is 103.",
    ]


def _per_token(config: LlamaConfig) -> float:
    """FLOPs of one token through the decoder's linear layers."""
    return 2.0 * (_parameters(config) - 2 * config.vocabulary * config.width)


def _parameters(config: LlamaConfig) -> int:
    per_layer = config.width * (2 * config.width + 2 * config.kv_width + 3 * config.ffn)
    return config.layers * per_layer + (1 + (not config.tied)) * config.vocabulary * config.width


def _attention_fraction(config: LlamaConfig, tokens: int) -> float:
    attention = 4 * config.layers * config.width * tokens**2
    return attention / (attention + tokens * _per_token(config))
