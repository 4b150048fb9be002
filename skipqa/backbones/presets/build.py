"""Builds the backbone of a preset.

Enters: a config, where the published weights are, and what was trained on top of them. Leaves: a
backbone; its networks are loaded on first use. What a preset cannot use is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from skipqa.assets import Report
from skipqa.backbones.backbone import Backbone
from skipqa.backbones.presets.pocket import FineTuned, Pocket
from skipqa.config import Config
from skipqa.errors import UserError, choices
from skipqa.nn.projector import Projector

if TYPE_CHECKING:
    from skipqa.backbones.presets.clip_vicuna import ClipVicuna

POCKET = "pocket"
# The larger backbones by preset, as module and class: pocket starts without importing them
CLIP_VICUNA: Mapping[str, tuple[str, str]] = {
    "submission-7b": ("skipqa.backbones.presets.evaclip_vicuna", "EvaClipVicuna"),
    "ablation-13b": ("skipqa.backbones.presets.llava", "Llava"),
}


def build(
    config: Config,
    *,
    weights: Path | None = None,
    projector: Projector | None = None,
    adapter: Path | None = None,
    learned: FineTuned | None = None,
    report: Report = lambda _: None,
) -> Backbone:
    """`weights` is a folder of repositories; without one the Hugging Face cache is searched."""
    if config.preset not in (POCKET, *CLIP_VICUNA):
        known = choices(config.preset, (POCKET, *CLIP_VICUNA))
        raise UserError(f"no backbone of preset {config.preset!r}; there is {known}")
    if config.preset == POCKET:
        if weights is not None:
            raise UserError("preset pocket fetches its own weights: leave out --weights")
        if projector is not None or adapter is not None:
            raise UserError("preset pocket has a decoder that takes no projector and no adapter")
        return Pocket(config.encode, report, learned)
    if learned is not None and learned != FineTuned():
        raise UserError(f"preset {config.preset} takes no tagger, question or reader")
    module, name = CLIP_VICUNA[config.preset]
    kind: type[ClipVicuna] = getattr(import_module(module), name)
    return kind(config.encode, weights, report, projector=projector, adapter=adapter)
