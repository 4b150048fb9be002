"""The network shapes and the usual load of each preset, for counting alone: no weights, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from skipqa.backbones.bert import MINILM_L6, BertConfig
from skipqa.backbones.llama import SMOLLM2_135M, VICUNA_7B, VICUNA_13B
from skipqa.backbones.vit import CLIP_L_224, EVA_CLIP_G_336
from skipqa.config import PRESETS
from skipqa.costs.systems import Architecture, Load
from skipqa.costs.vision import efficientnet, transformer
from skipqa.errors import UserError
from skipqa.nn.budget import DifficultyBudgetConfig, DiscreteBudgetConfig
from skipqa.nn.drafter import DrafterConfig
from skipqa.nn.fusion import FusionConfig
from skipqa.nn.projector import ProjectorConfig
from skipqa.nn.region_query import RegionQueryConfig
from skipqa.nn.saliency import SaliencyConfig
from skipqa.nn.verifier import VerifierConfig

SPLADE = BertConfig(width=768, layers=12, heads=12, ffn=3_072)
# As many as the usual answer vocabulary of VQA; only their number costs anything.
ANSWERS = tuple(map(str, range(3_129)))


def architecture(name: str) -> Architecture:
    if name not in _ARCHITECTURES:
        raise UserError(f"no preset {name!r}; there is {', '.join(_ARCHITECTURES)}")
    return _ARCHITECTURES[name]()


def _submission_7b() -> Architecture:
    """The main text: EVA-CLIP-G/14 at 336 px, Vicuna-7B, a 700M drafter, SPLADE++."""
    width, vision = VICUNA_7B.width, EVA_CLIP_G_336
    return Architecture(
        vision=partial(transformer, vision),
        text=SPLADE,
        decoder=VICUNA_7B,
        projector=ProjectorConfig(vision.width, width),
        drafter=_drafter_700m(vision.tokens, width),
        budget=DiscreteBudgetConfig(width, width),
        saliency=SaliencyConfig(width),
        region_query=RegionQueryConfig(width, width),
        verifier=VerifierConfig(SPLADE.width, width),
        fusion=FusionConfig(width, SPLADE.width, VICUNA_7B.heads),
        k_means=True,
        load=Load(
            V=576, V_kept=64, T=20, K=16, K_kept=6, K_read=6, L_c=100, R=8, L_a=8, draft_rate=0.375
        ),
    )


def _ablation_13b() -> Architecture:
    """The appendix: CLIP ViT-L/14 at 224 px (its table's L = 256), LLaVA-1.6-13B's decoder, which
    reads fused tokens only (algorithm 1)."""
    width, vision = VICUNA_13B.width, CLIP_L_224
    return Architecture(
        vision=partial(transformer, vision),
        text=SPLADE,
        decoder=VICUNA_13B,
        projector=ProjectorConfig(vision.width, width),
        drafter=_drafter_700m(vision.tokens, width),
        budget=DifficultyBudgetConfig(width, width),
        saliency=SaliencyConfig(width, "B"),
        region_query=RegionQueryConfig(width, width, "B"),
        verifier=VerifierConfig(SPLADE.width, width),
        fusion=FusionConfig(width, SPLADE.width, VICUNA_13B.heads, "B"),
        k_means=False,
        load=Load(
            V=256,
            V_kept=103,
            T=32,
            K=16,
            K_kept=10,
            K_read=0,
            L_c=100,
            R=8,
            L_a=8,
            draft_rate=0.375,
        ),
    )


def _pocket() -> Architecture:
    """The embedded default with the learned components at the text encoder's width; the decoder
    reads the kept passages as text and no visual tokens."""
    config, width = PRESETS["pocket"], MINILM_L6.width
    tokens, passages = config.budget.tokens, config.budget.passages
    return Architecture(
        vision=partial(efficientnet, config.encode.scales),
        text=MINILM_L6,
        decoder=SMOLLM2_135M,
        projector=None,
        drafter=DrafterConfig(576, 1_280, width, ANSWERS),
        budget=DiscreteBudgetConfig(width, width),
        saliency=SaliencyConfig(width),
        region_query=RegionQueryConfig(width, width),
        verifier=VerifierConfig(width, width),
        fusion=FusionConfig(width, width, MINILM_L6.heads),
        k_means=True,
        visual_prompt=False,
        load=Load(
            V=576,
            V_kept=tokens,
            T=20,
            K=16,
            K_kept=passages,
            K_read=config.decode.max_passages,
            L_c=100,
            R=8,
            L_a=8,
            draft_rate=0.375,
        ),
    )


def _drafter_700m(visual_tokens: int, width: int) -> DrafterConfig:
    return DrafterConfig(
        visual_tokens, width, width, ANSWERS, width=1_536, layers=24, heads=16, ffn=6_144
    )


_ARCHITECTURES: dict[str, Callable[[], Architecture]] = {
    "pocket": _pocket,
    "submission-7b": _submission_7b,
    "ablation-13b": _ablation_13b,
}
