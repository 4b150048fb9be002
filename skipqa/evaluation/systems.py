"""SKIP, its ablations and its baselines: one pipeline each, on the same networks and index.

Enters: a pipeline, the name of a system, a seed. Leaves: another pipeline that differs in its
config and, where trained components decide instead of the config, in those. Every system goes
through the same stages; none knows the questions it will be asked.
"""

from __future__ import annotations

import copy
import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from skipqa.backbones.pocket import CELL
from skipqa.components import Components
from skipqa.config import Config, override
from skipqa.errors import UserError
from skipqa.nn.budget import BudgetController
from skipqa.nn.saliency import Saliency, SaliencyConfig
from skipqa.pipeline import Pipeline
from skipqa.types import Budget

DENSE_PASSAGES = 16


class FixedShare(BudgetController):
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
        passages = decided.passages if self.passages is None else self.passages
        return dataclasses.replace(decided, tokens=tokens, passages=passages)


class RandomSaliency(Saliency):
    """Scores that know nothing: a draw for each question, the same in whatever order they come.

    They lie in [0, 1), so the regions weigh their tokens almost equally.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(SaliencyConfig(width=0, hidden=0))  # a draw costs no FLOPs
        self.seed = seed

    def forward(self, visual: Tensor, question: Tensor) -> Tensor:
        signs = np.packbits((question > 0).numpy())  # unlike the values, the same on any machine
        generator = torch.Generator().manual_seed(zlib.crc32(signs.tobytes(), self.seed))
        return torch.rand(len(visual), generator=generator)


def skip(base: Pipeline, seed: int) -> Pipeline:
    """The pipeline as it is."""
    return base


def without_draft(base: Pipeline, seed: int) -> Pipeline:
    """No fast path: no confidence exceeds 1."""
    return _changed(base, draft={"threshold": 1.0, "counting_threshold": 1.0})


def without_pruning(base: Pipeline, seed: int) -> Pipeline:
    """V' = V."""
    return _with_budget(base, tokens=_num_tokens(base.config))


def random_pruning(base: Pipeline, seed: int) -> Pipeline:
    """As many tokens, anywhere."""
    return _with_components(base, saliency=RandomSaliency(seed))


def dense_fusion(base: Pipeline, seed: int) -> Pipeline:
    """beta = 1: every token attends to every passage."""
    system = _changed(base, fuse={"beta": 1.0})
    if base.components.fusion is None:
        return system
    layer = copy.copy(base.components.fusion)  # the same weights under another rule
    layer.rule = dataclasses.replace(layer.rule, top=1.0, degree=None)
    return _with_components(system, fusion=layer)


def without_retrieval(base: Pipeline, seed: int) -> Pipeline:
    """K' = 0: the decoder answers from the names of what it is shown."""
    return _with_budget(base, passages=0)


def dense(base: Pipeline, seed: int) -> Pipeline:
    """All tokens, one query for the whole image, all that it finds accepted, fused and read."""
    system = without_draft(dense_fusion(base, seed), seed)
    system = _with_budget(system, tokens=_num_tokens(base.config), passages=DENSE_PASSAGES)
    return _changed(
        system,
        regions={"max_regions": 1},
        retrieve={"per_region": DENSE_PASSAGES},
        verify={"threshold": 0.0},
        decode={"max_passages": DENSE_PASSAGES},
    )


SYSTEMS: dict[str, Callable[[Pipeline, int], Pipeline]] = {
    "skip": skip,
    "skip-no-draft": without_draft,
    "skip-no-pruning": without_pruning,
    "skip-random-pruning": random_pruning,
    "skip-dense-fusion": dense_fusion,
    "no-retrieval": without_retrieval,
    "dense": dense,
}


def check_name(name: str) -> None:
    if name not in SYSTEMS:
        raise UserError(f"no system {name!r}; there is {', '.join(SYSTEMS)}")


def build(name: str, base: Pipeline, seed: int = 0) -> Pipeline:
    check_name(name)
    return SYSTEMS[name](base, seed)


def warm_up(system: Pipeline) -> None:
    """Load every network now, so that no question's latency contains it."""
    system.answer(Image.new("RGB", (64, 64)), "Where does this come from?", fast_path=False)


def _num_tokens(config: Config) -> int:
    return (config.encode.scales[-1] // CELL) ** 2


def _with_budget(
    base: Pipeline, tokens: int | None = None, passages: int | None = None
) -> Pipeline:
    fixed = {"tokens": tokens, "passages": passages}
    system = _changed(base, budget={key: n for key, n in fixed.items() if n is not None})
    if (controller := base.components.budget) is None:
        return system
    return _with_components(system, budget=FixedShare(controller, tokens, passages))


def _with_components(base: Pipeline, **modules: torch.nn.Module) -> Pipeline:
    components: Components = dataclasses.replace(base.components, **modules)  # type: ignore[arg-type]
    return Pipeline(base.backbone, base.index, base.config, components)


def _changed(base: Pipeline, **changes: dict[str, Any]) -> Pipeline:
    return Pipeline(base.backbone, base.index, override(base.config, changes), base.components)
