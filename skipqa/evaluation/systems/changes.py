"""How one pipeline becomes another: over the same networks and index, with something changed.

Enters: a pipeline and what shall differ. Leaves: a new pipeline; the old one stays as it is.
Where a trained component would decide instead of the config, it is overruled too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.components import Components
from skipqa.config import override
from skipqa.nn.budget import BudgetController
from skipqa.pipeline import Pipeline
from skipqa.types import Budget, Fused, Verified


class FixedBudget(BudgetController):
    """A trained controller that is overruled: its V', its K' or both are fixed."""

    def __init__(
        self, controller: BudgetController, tokens: int | None, passages: int | None
    ) -> None:
        super().__init__()
        self.config = controller.config
        self.controller = controller
        self.tokens, self.passages = tokens, passages

    def decide(
        self, visual: Tensor, question: Tensor, num_tokens: int, num_passages: int
    ) -> Budget:
        decided = self.controller.decide(visual, question, num_tokens, num_passages)
        tokens = decided.tokens if self.tokens is None else min(self.tokens, num_tokens)
        if self.passages is None:
            return dataclasses.replace(decided, tokens=tokens)
        return dataclasses.replace(decided, tokens=tokens, passages=self.passages, rho_r=1.0)


def with_backbone(base: Pipeline, backbone: Backbone) -> Pipeline:
    return Pipeline(backbone, base.index, base.config, base.components, base.stages)


def with_config(base: Pipeline, **changes: dict[str, Any]) -> Pipeline:
    config = override(base.config, changes)
    return Pipeline(base.backbone, base.index, config, base.components, base.stages)


def with_components(base: Pipeline, **modules: torch.nn.Module | None) -> Pipeline:
    components: Components = dataclasses.replace(base.components, **modules)  # type: ignore[arg-type]
    return Pipeline(base.backbone, base.index, base.config, components, base.stages)


def with_stages(base: Pipeline, **functions: Callable[..., Any]) -> Pipeline:
    stages = dataclasses.replace(base.stages, **functions)
    return Pipeline(base.backbone, base.index, base.config, base.components, stages)


def up_to_retrieval(base: Pipeline, seen: Callable[..., object] = lambda *_: None) -> Pipeline:
    """Nothing is verified, fused or decoded; `seen` gets what verification would."""

    def stop(*given: object) -> Verified:
        seen(*given)
        return Verified((), (), (), torch.zeros(0), ())

    nothing = Fused(torch.zeros(0), torch.zeros(0, 0), ())
    return with_stages(base, verify=stop, fuse=lambda *_: nothing, decode=lambda *_: "")


def with_budget(base: Pipeline, tokens: int | None = None, passages: int | None = None) -> Pipeline:
    """A fixed K' is all of it: verification's own share is not on top."""
    fixed: dict[str, Any] = {} if tokens is None else {"tokens": tokens}
    fixed |= {} if passages is None else {"passages": passages, "rho_r": 1.0}
    system = with_config(base, budget=fixed)
    if (controller := base.components.budget) is None:
        return system
    return with_components(system, budget=FixedBudget(controller, tokens, passages))
