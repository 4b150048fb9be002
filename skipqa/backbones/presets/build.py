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
from skipqa.backbones.presets.desk import Desk
from skipqa.backbones.presets.pocket import FineTuned, Pocket
from skipqa.config import Config
from skipqa.errors import UserError, choices
from skipqa.nn.projector import Projector

if TYPE_CHECKING:
    from skipqa.backbones.presets.clip_vicuna import ClipVicuna

# Those that fetch their own weights
SMALL: Mapping[str, type[Pocket]] = {"pocket": Pocket, "desk": Desk}
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
    name = config.preset
    if name not in (*SMALL, *CLIP_VICUNA):
        known = choices(name, (*SMALL, *CLIP_VICUNA))
        raise UserError(f"no backbone of preset {name!r}; there is {known}")
    if name in SMALL:
        if weights is not None:
            raise UserError(f"preset {name} fetches its own weights: leave out --weights")
        if projector is not None or adapter is not None:
            raise UserError(f"preset {name} has a decoder that takes no projector and no adapter")
        return SMALL[name](config.encode, report, learned, config.decode.weights)
    if learned is not None and learned != FineTuned():
        raise UserError(f"preset {name} takes no tagger, question or reader")
    module, class_name = CLIP_VICUNA[name]
    kind: type[ClipVicuna] = getattr(import_module(module), class_name)
    return kind(config.encode, weights, report, projector=projector, adapter=adapter)
