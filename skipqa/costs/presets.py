"""The network shapes and the usual load of each preset, for counting only: no weights, no I/O.

Enters: a preset's name. Leaves: its `Architecture`. The two larger ones are the paper's designs,
with components as wide as the decoder and passages encoded by SPLADE's BERT; the pipeline runs
their networks with components as wide as its text encoder, which cost less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from skipqa.backbones.networks.bert import MINILM_L6, BertConfig
from skipqa.backbones.networks.efficientnet_lite import LITE2
from skipqa.backbones.networks.llama import QWEN2_1_5B, SMOLLM2_135M, VICUNA_7B, VICUNA_13B
from skipqa.backbones.networks.vit import CLIP_L_224, EVA_CLIP_G_336
from skipqa.config import PRESETS, Config
from skipqa.costs.systems import Architecture, Load
from skipqa.costs.vision import efficientnet, transformer
from skipqa.errors import UserError, choices
from skipqa.nn.budget import DifficultyBudgetConfig, DiscreteBudgetConfig
from skipqa.nn.drafter import DrafterConfig
from skipqa.nn.fusion import FusionConfig
from skipqa.nn.projector import ProjectorConfig
from skipqa.nn.region_query import RegionQueryConfig
from skipqa.nn.saliency import SaliencyConfig
from skipqa.nn.tagger import TaggerConfig
from skipqa.nn.verifier import VerifierConfig
from skipqa.types import Budget

SPLADE = BertConfig(width=768, layers=12, heads=12, ffn=3_072)
# The usual answer vocabulary of VQA; only its size matters here.
ANSWERS = tuple(map(str, range(3_129)))
# Of the pocket checkpoint
LOW_RES = 64  # tokens that its drafter reads
DRAFTED = tuple(map(str, range(4_001)))
TAGS, CONCEPTS = tuple(map(str, range(589))), 1_509  # names of the tagger; concepts


def architecture(name: str) -> Architecture:
    if name not in _ARCHITECTURES:
        raise UserError(f"no preset {name!r}; there is {choices(name, _ARCHITECTURES)}")
    return _ARCHITECTURES[name]()


def _submission_7b() -> Architecture:
    """The main text: EVA-CLIP-G/14 at 336 px, Vicuna-7B, a 700M drafter, SPLADE++."""
    config, width, vision = PRESETS["submission-7b"], VICUNA_7B.width, EVA_CLIP_G_336
    return Architecture(
        vision=partial(transformer, vision),
        text=SPLADE,
        decoder=VICUNA_7B,
        projector=ProjectorConfig(vision.width, width),
        drafter=_drafter_700m(vision.tokens, width),
        budget=DiscreteBudgetConfig(width, width),
        load=_load(config, vision.tokens, T=20),
        **_components(config, width, SPLADE.width, VICUNA_7B.heads, vision.width),
    )


def _ablation_13b() -> Architecture:
    """The appendix: CLIP ViT-L/14 at 224 px (its table's L = 256; LLaVA's published encoder has
    336), LLaVA-1.6-13B's decoder, which reads fused tokens only (algorithm 1)."""
    config, width, vision = PRESETS["ablation-13b"], VICUNA_13B.width, CLIP_L_224
    return Architecture(
        vision=partial(transformer, vision),
        text=SPLADE,
        decoder=VICUNA_13B,
        projector=ProjectorConfig(vision.width, width),
        drafter=_drafter_700m(vision.tokens, width),
        budget=DifficultyBudgetConfig(width, width),
        load=_load(config, vision.tokens, T=32),
        **_components(config, width, SPLADE.width, VICUNA_13B.heads, vision.width),
    )


def _pocket() -> Architecture:
    """The embedded default with the learned components at the text encoder's width; the decoder
    reads the kept passages as text and no visual tokens, and scores the drafted answers.

    Lengths are those of OK-VQA val over the default corpus, whose glosses are short: 11 tokens per
    question, 22 per passage, 27 for the words of the image and the rest of the prompt. The second
    pass without facts, which one question in eight takes, is not counted.
    """
    config, width = PRESETS["pocket"], MINILM_L6.width
    V = config.encode.num_tokens
    tags = TaggerConfig(TAGS, ("",) * len(TAGS), width=LITE2.features, text_width=width)
    see = partial(efficientnet, tags, CONCEPTS, config.encode.scales)
    return Architecture(
        vision=partial(see, high_res=False),
        high_res=partial(see, high_res=True),
        text=MINILM_L6,
        decoder=SMOLLM2_135M,
        projector=None,
        drafter=DrafterConfig(
            LOW_RES,
            LITE2.features,
            width,
            DRAFTED,
            width=384,
            layers=4,
            heads=6,
            ffn=1_536,
            words=True,
            named_answers=True,
        ),
        budget=DiscreteBudgetConfig(width, width),
        visual_prompt=False,
        words=12,
        question_encoders=2,
        frame=27,
        scored=6,
        load=replace(_load(config, V, T=11), L_c=22),
        **_components(config, width, width, MINILM_L6.heads, LITE2.features),
    )


def _desk() -> Architecture:
    """The pocket with another decoder, whose prompt is a chat of 40 tokens more."""
    pocket = _pocket()
    load = replace(pocket.load, K_read=PRESETS["desk"].decode.max_passages)
    return replace(pocket, decoder=QWEN2_1_5B, frame=pocket.frame + 40, load=load)


def _components(
    config: Config, width: int, text_width: int, heads: int, vision_width: int
) -> dict[str, Any]:
    """The components of the preset's variant, all at one width, but for what reads features."""
    fuse, variant = config.fuse, config.variant
    return {
        "saliency": SaliencyConfig(width, variant),
        "region_query": RegionQueryConfig(vision_width, CONCEPTS, width, variant),
        "verifier": VerifierConfig(text_width, width),
        "fusion": FusionConfig(
            width, text_width, heads, variant, beta=fuse.beta, degree=fuse.degree
        ),
        "k_means": config.regions.proposals == "clusters",
    }


def _load(config: Config, V: int, T: int) -> Load:
    """The load of a question of T tokens under the preset's own settings."""
    budget, decode = config.budget, config.decode
    K = budget.max_passages
    return Load(
        V=V,
        V_kept=budget.kept_tokens(V),
        T=T,
        K=K,
        K_kept=Budget(V, budget.passages, rho_r=budget.rho_r).most_passages(K),
        K_read=decode.max_passages if decode.passages_with_fused else 0,
        L_c=100,
        R=config.regions.max_regions,
        L_a=8,
        draft_rate=0.375,
    )


def _drafter_700m(visual_tokens: int, width: int) -> DrafterConfig:
    return DrafterConfig(
        visual_tokens, width, width, ANSWERS, width=1_536, layers=24, heads=16, ffn=6_144
    )


_ARCHITECTURES: dict[str, Callable[[], Architecture]] = {
    "pocket": _pocket,
    "desk": _desk,
    "submission-7b": _submission_7b,
    "ablation-13b": _ablation_13b,
}
