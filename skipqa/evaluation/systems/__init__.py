"""SKIP, its ablations, baselines, other retrievers and pruners, on the same networks and index.

Enters: a pipeline and a `Variant`: the name of a system and, if another than its own chooses the
tokens, of a pruner, with the fraction of tokens that stay. Leaves: another pipeline. To add a
system, write a function from a pipeline to a pipeline and a line in `ABLATIONS`, `BASELINES`
or `RETRIEVERS`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image

from skipqa.config import Config
from skipqa.errors import UserError, choices
from skipqa.evaluation.systems.ablations import ABLATIONS, HIGH_RES, WITH_SOURCES
from skipqa.evaluation.systems.baselines import BASELINES
from skipqa.evaluation.systems.budgets import with_budget
from skipqa.evaluation.systems.pruners import PRUNERS
from skipqa.evaluation.systems.retrievers import RETRIEVERS
from skipqa.pipeline import Pipeline

SYSTEMS: dict[str, Callable[[Pipeline, int], Pipeline]] = {
    **ABLATIONS,
    **BASELINES,
    **RETRIEVERS,
}
ROUNDING = 1e-9  # 0.1 of 10 tokens is one, whatever floats say


@dataclass(frozen=True, slots=True)
class Variant:
    """`skip`, `skip@0.25` (its own choice of a quarter of the tokens), `skip+tome@0.25`."""

    system: str
    pruner: str | None = None
    # V' / V at high resolution; None: as the preset or its controller has it. `no-retrieval` stays
    # at low resolution, where the same V' may be all tokens.
    retention: float | None = None

    def __post_init__(self) -> None:
        check_name(self.system)
        if self.pruner is not None and self.pruner not in PRUNERS:
            raise UserError(f"no pruner {self.pruner!r}; there is {choices(self.pruner, PRUNERS)}")
        if self.retention is not None and not 0 < self.retention <= 1:
            raise UserError(f"a retention lies above 0 and up to 1, not at {self.retention}")

    @property
    def name(self) -> str:
        pruner = "" if self.pruner is None else f"+{self.pruner}"
        retention = "" if self.retention is None else f"@{self.retention:g}"
        return f"{self.system}{pruner}{retention}"

    def fraction_kept(self, config: Config) -> float | None:
        """The V' / V that it fixes, if it does: a pruner without a retention has the preset's."""
        if self.retention is None and self.pruner is not None:
            whole = config.encode.num_tokens
            return config.budget.kept_tokens(whole) / whole
        return self.retention


def variants(
    systems: Sequence[str], pruners: Sequence[str] = (), retentions: Sequence[float] = ()
) -> list[Variant]:
    """Every system with every pruner at every retention, each once."""
    combined = itertools.product(systems, pruners or (None,), retentions or (None,))
    return list(dict.fromkeys(Variant(*parts) for parts in combined))


def check_name(name: str) -> None:
    if name not in SYSTEMS:
        raise UserError(f"no system {name!r}; there is {choices(name, SYSTEMS)}")


def build(variant: Variant | str, base: Pipeline, seed: int = 0) -> Pipeline:
    if isinstance(variant, str):
        variant = Variant(variant)
    if base.sources and variant.system != WITH_SOURCES:  # all others answer from the library alone
        base = base.with_sources()
    system = SYSTEMS[variant.system](base, seed)
    if (fraction := variant.fraction_kept(base.config)) is not None:
        tokens = math.ceil(fraction * base.config.encode.num_tokens - ROUNDING)
        system = with_budget(system.with_config(budget=HIGH_RES), tokens=tokens)
    return system if variant.pruner is None else PRUNERS[variant.pruner](system, seed)


def warm_up(system: Pipeline) -> None:
    """Load every network now, so that no question's latency contains it."""
    system.answer(Image.new("RGB", (64, 64)), "Where does this come from?", fast_path=False)
