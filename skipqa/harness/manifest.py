"""What the entry point `lmms_eval.models` of this package loads: where the model's class is.

lmms-eval calls `manifest` while it starts, so nothing heavy is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmms_eval.models.registry_v2 import ModelManifest


def manifest() -> ModelManifest:
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id="skipqa", simple_class_path="skipqa.harness.model.SkipQA")
