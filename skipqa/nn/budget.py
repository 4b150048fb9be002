"""DBC: how many tokens and passages a question deserves.

Enters: the mean visual token [..., D_v], the pooled question [..., D_q] and, where the controller
was trained with them, a few signals [..., S] that are known before the budget. Leaves: an
`Allocation`, real-valued and differentiable, which becomes a hard `Budget` at inference and a
relaxed or straight-through count in training. It does not select what fills the budget; the heads
that say whether and where to look are in `lookup.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skipqa.errors import UserError
from skipqa.nn import lookup
from skipqa.nn.lookup import LookupGate, SourceHead
from skipqa.nn.relaxation import soft_round, straight_through, widened
from skipqa.types import Budget, Level

Range = tuple[float, float]
NO_SIGNALS = torch.zeros(0)  # of a controller that was trained without
EASY = 0.15  # difficulty below which nothing is retrieved (SKIP-NR), Table D.1
ROUNDING = 1e-4  # 0.9 * 10 must not become 10 tokens because float32 says 9.000001


@dataclass(frozen=True, slots=True)
class DiscreteBudgetConfig:
    """Variant A. The main text observes K' in [2, 16] and also K' = 0; the range allows 0."""

    visual_width: int
    question_width: int
    hidden: int = 256
    tokens: tuple[int, int] = (32, 128)
    passages: tuple[int, int] = (0, 16)
    signals: int = 0  # how many it reads besides
    gate: bool = False  # whether it predicts what looking up gains; K' = 0 where that is too little
    index_width: int = 0  # of the embedding that describes an index; 0: all indexes are searched


@dataclass(frozen=True, slots=True)
class DifficultyBudgetConfig:
    """Variant B, Table D.1."""

    visual_width: int
    question_width: int
    gflops: Range = (143.8, 384.6)  # B_min, B_max
    rho_v: Range = (0.25, 0.90)
    rho_r: Range = (0.30, 0.90)
    grid: int = 20  # points of Phi_B
    easy: float = EASY
    hard: float = 0.70
    signals: int = 0


class Allocation(NamedTuple):
    """Real-valued counts, one per question; `difficulty` and the expected `gain` in score of
    looking up where the controller estimates them."""

    tokens: Tensor
    passages: Tensor
    difficulty: Tensor | None = None
    gain: Tensor | None = None


class BudgetController(nn.Module):
    """What both variants share: from a real-valued allocation to counts."""

    config: DiscreteBudgetConfig | DifficultyBudgetConfig

    @property
    def chooses_indexes(self) -> bool:
        """Whether `useful` depends on the question."""
        return False

    def useful(
        self, visual: Tensor, question: Tensor, signals: Tensor, indexes_ID: Tensor
    ) -> Tensor:
        """[I] bool: which of the indexes, each described by an embedding, are worth searching."""
        return torch.ones(len(indexes_ID), dtype=torch.bool)

    def relaxed(self, allocation: Allocation, temperature: float) -> Allocation:
        """Counts on a staircase that tends to the hard counts; at temperature 0 they are hard."""
        raise NotImplementedError

    @torch.no_grad()
    def decide(
        self,
        visual: Tensor,
        question: Tensor,
        num_tokens: int,
        num_passages: int,
        signals: Tensor = NO_SIGNALS,
        *,
        may_close: bool = True,
    ) -> Budget:
        """The hard form, for one question; nothing exceeds what there is. Retrieval stays open
        unless it `may_close`."""
        allocation = self(visual, question, num_tokens, num_passages, signals)
        counts = self.relaxed(allocation if may_close else self.opened(allocation), 0.0)
        difficulty = None if allocation.difficulty is None else float(allocation.difficulty)
        gain = None if allocation.gain is None else float(allocation.gain)
        return Budget(
            int(counts.tokens),
            int(counts.passages),
            difficulty,
            self.level(difficulty),
            expected_gain=gain,
        )

    def opened(self, allocation: Allocation) -> Allocation:
        """One that closes retrieval for no question."""
        return allocation

    def level(self, difficulty: float | None) -> Level:
        """Which prompt the decoder gets (prompt E.4); the middle one where nothing is known."""
        return "MEDIUM"

    def straight_through(self, allocation: Allocation) -> Allocation:
        """Hard counts forward, the real-valued allocation backward."""
        return _straight_through(self.relaxed(allocation, 0.0), allocation)


class DiscreteBudget(BudgetController):
    """Variant A: a three-layer MLP reads ([v ; q ; signals]) and places V' and K' in their ranges.

    With a gate, K' is how many to retrieve if anything is looked up at all.
    """

    config: DiscreteBudgetConfig

    def __init__(self, config: DiscreteBudgetConfig) -> None:
        super().__init__()
        self.config = config
        width = _width(config)
        self.mlp = nn.Sequential(
            nn.Linear(width, config.hidden),
            nn.GELU(),
            nn.Linear(config.hidden, config.hidden),
            nn.GELU(),
            nn.Linear(config.hidden, 2),
        )
        self.gate = LookupGate(width, config.hidden) if config.gate else None
        self.sources = (
            SourceHead(width, config.index_width, config.hidden) if config.index_width else None
        )

    def forward(
        self,
        visual: Tensor,
        question: Tensor,
        num_tokens: int,
        num_passages: int,
        signals: Tensor = NO_SIGNALS,
    ) -> Allocation:
        """`num_tokens` and `num_passages` are what there is: no budget exceeds them."""
        known = joined(visual, question, signals)
        probs = widened(self.mlp(known)).sigmoid()
        # Narrower ranges, not clipped counts: a clipped count would get no gradient.
        tokens = tuple(min(limit, num_tokens) for limit in self.config.tokens)
        passages = tuple(min(limit, num_passages) for limit in self.config.passages)
        return Allocation(
            _between(probs[..., 0], tokens),
            _between(probs[..., 1], passages),
            gain=None if self.gate is None else self.gate(known),
        )

    def relaxed(self, allocation: Allocation, temperature: float) -> Allocation:
        tokens, passages, _, gain = allocation
        counts = _staircase(passages, temperature)
        if self.gate is not None:
            assert gain is not None
            counts = counts * _opened(gain - self.gate.threshold, temperature)
        return Allocation(_staircase(tokens, temperature), counts, gain=gain)

    def opened(self, allocation: Allocation) -> Allocation:
        if self.gate is None:
            return allocation
        assert allocation.gain is not None
        return allocation._replace(gain=torch.full_like(allocation.gain, torch.inf))

    @property
    def chooses_indexes(self) -> bool:
        return self.sources is not None and float(self.sources.threshold) > 0

    @torch.no_grad()
    def useful(
        self, visual: Tensor, question: Tensor, signals: Tensor, indexes_ID: Tensor
    ) -> Tensor:
        if self.sources is None:
            return super().useful(visual, question, signals, indexes_ID)
        return self.sources.chosen(joined(visual, question, signals), indexes_ID)


class DifficultyBudget(BudgetController):
    """Variant B: d = sigmoid(W_d [q ; pool(V)]), B(d) linear (eq. B.8), Phi_B piecewise linear.

    Phi_B is data, not weights: stage V fits its values at the grid points and stores them.
    """

    config: DifficultyBudgetConfig
    grid_rho_v: Tensor
    grid_rho_r: Tensor

    def __init__(self, config: DifficultyBudgetConfig) -> None:
        super().__init__()
        self.config = config
        self.difficulty = nn.Linear(_width(config), 1)
        self.register_buffer("grid_rho_v", torch.linspace(*config.rho_v, config.grid))
        self.register_buffer("grid_rho_r", torch.linspace(*config.rho_r, config.grid))

    def store_phi(self, rho_v: Sequence[float], rho_r: Sequence[float]) -> None:
        """Replaces Phi_B's values; a larger budget never keeps less."""
        for name, values, limits in (
            ("rho_v", rho_v, self.config.rho_v),
            ("rho_r", rho_r, self.config.rho_r),
        ):
            if len(values) != self.config.grid:
                raise UserError(f"Phi_B needs {self.config.grid} {name}, not {len(values)}")
            if any(after < before for before, after in pairwise(values)):
                raise UserError(f"Phi_B must not decrease: {name} does")
            if values[0] < limits[0] or values[-1] > limits[1]:
                raise UserError(f"Phi_B leaves the range {limits} of {name}")
        self.grid_rho_v.copy_(torch.as_tensor(rho_v, dtype=self.grid_rho_v.dtype))
        self.grid_rho_r.copy_(torch.as_tensor(rho_r, dtype=self.grid_rho_r.dtype))

    def phi(self, gflops: Tensor) -> tuple[Tensor, Tensor]:
        """(rho_v, rho_r) of a budget, linear between grid points, differentiable in it."""
        least, most = self.config.gflops
        place = ((gflops - least) / (most - least)).clamp(0, 1) * (self.config.grid - 1)
        left = place.detach().floor().clamp(max=self.config.grid - 2).long()
        prob = place - left
        rho_v, rho_r = (
            torch.lerp(values.take(left), values.take(left + 1), prob)
            for values in (self.grid_rho_v.to(prob), self.grid_rho_r.to(prob))
        )
        return rho_v, rho_r

    def forward(
        self,
        visual: Tensor,
        question: Tensor,
        num_tokens: int,
        num_passages: int,
        signals: Tensor = NO_SIGNALS,
    ) -> Allocation:
        """`num_tokens` is L, `num_passages` what retrieval returns at most."""
        return self.allocate(self.estimate(visual, question, signals), num_tokens, num_passages)

    def estimate(self, visual: Tensor, question: Tensor, signals: Tensor = NO_SIGNALS) -> Tensor:
        """d in [0, 1], eq. B.7."""
        return widened(self.difficulty(joined(question, visual, signals)))[..., 0].sigmoid()

    def allocate(self, difficulty: Tensor, num_tokens: int, num_passages: int) -> Allocation:
        rho_v, rho_r = self.phi(_between(difficulty, self.config.gflops))
        return Allocation(rho_v * num_tokens, rho_r * num_passages, difficulty)

    def relaxed(self, allocation: Allocation, temperature: float) -> Allocation:
        """ceil(rho_v L) tokens, ceil(rho_r K) passages; EASY closes retrieval (SKIP-NR)."""
        tokens, passages, difficulty, _ = allocation
        assert difficulty is not None
        opened = _opened(difficulty - self.config.easy, temperature)
        return Allocation(
            _staircase(tokens + 0.5 - ROUNDING, temperature),  # rounding half up, so: ceil
            _staircase(passages + 0.5 - ROUNDING, temperature) * opened,
            difficulty,
        )

    def opened(self, allocation: Allocation) -> Allocation:
        assert allocation.difficulty is not None
        return allocation._replace(difficulty=allocation.difficulty.clamp(min=self.config.easy))

    def decide(
        self,
        visual: Tensor,
        question: Tensor,
        num_tokens: int,
        num_passages: int,
        signals: Tensor = NO_SIGNALS,
        *,
        may_close: bool = True,
    ) -> Budget:
        """As always, but verification applies rho_r: only there is the retrieved K known."""
        budget = super().decide(
            visual, question, num_tokens, num_passages, signals, may_close=may_close
        )
        assert budget.difficulty is not None
        if budget.passages == 0:  # SKIP-NR, or there is nothing to retrieve
            return budget
        _, rho_r = self.phi(_between(torch.tensor(budget.difficulty), self.config.gflops))
        return replace(budget, passages=num_passages, rho_r=float(rho_r))

    def level(self, difficulty: float | None) -> Level:
        assert difficulty is not None
        if difficulty < self.config.easy:
            return "EASY"
        return "HARD" if difficulty > self.config.hard else "MEDIUM"


def build_budget(config: DiscreteBudgetConfig | DifficultyBudgetConfig) -> BudgetController:
    return (
        DiscreteBudget(config)
        if isinstance(config, DiscreteBudgetConfig)
        else DifficultyBudget(config)
    )


class AveragedRouting:
    """Routing by an exponential moving average of the controller while it trains.

    The straight-through choice is noisy (the paper's limitation 2): forward, the averaged
    controller decides; backward, the gradient goes to the live one. Save `averaged` at the end.
    """

    def __init__(self, live: BudgetController, decay: float = 0.99) -> None:
        self.live = live
        self.averaged = copy.deepcopy(live).requires_grad_(False)
        self.decay = decay

    def __call__(
        self,
        visual: Tensor,
        question: Tensor,
        num_tokens: int,
        num_passages: int,
        signals: Tensor = NO_SIGNALS,
    ) -> Allocation:
        soft = self.live(visual, question, num_tokens, num_passages, signals)
        with torch.no_grad():
            steady = self.averaged(visual, question, num_tokens, num_passages, signals)
            hard = self.averaged.relaxed(steady, 0.0)
        return _straight_through(hard, soft)

    @torch.no_grad()
    def update(self) -> None:
        """Call after each optimiser step."""
        for slow, fast in zip(self.averaged.parameters(), self.live.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.decay)


def cost_loss(
    allocation: Allocation, token_cost: float, passage_cost: float, weight: float = 0.1
) -> Tensor:
    """The second term of eq. 9, lambda_2 = 0.1: what the counts cost, in any one unit."""
    spent = token_cost * allocation.tokens + passage_cost * allocation.passages
    return weight * spent.mean()


def flops(config: DiscreteBudgetConfig | DifficultyBudgetConfig, num_indexes: int = 0) -> int:
    """FLOPs of one decision, a multiply and an add counted as two; `num_indexes` are described
    where the controller chooses among them."""
    width = _width(config)
    if isinstance(config, DifficultyBudgetConfig):
        return 2 * width
    spent = 2 * config.hidden * (width + config.hidden + 2)
    if config.gate:
        spent += lookup.gate_flops(width, config.hidden)
    if num_indexes:
        spent += lookup.source_flops(width, config.index_width, config.hidden, num_indexes)
    return spent


def joined(first: Tensor, second: Tensor, signals: Tensor) -> Tensor:
    """What a controller reads, [..., W]."""
    return torch.cat((first, second, signals.to(first)), dim=-1)


def _width(config: DiscreteBudgetConfig | DifficultyBudgetConfig) -> int:
    return config.visual_width + config.question_width + config.signals


def _opened(margin: Tensor, temperature: float) -> Tensor:
    """1 where retrieval is open, and 0 below the margin."""
    return (margin / temperature).sigmoid() if temperature else (margin >= 0).to(margin)


def _between(prob: Tensor, limits: Sequence[float]) -> Tensor:
    least, most = limits
    return least + (most - least) * prob


def _staircase(counts: Tensor, temperature: float) -> Tensor:
    return soft_round(counts, temperature) if temperature else (counts + 0.5).floor()


def _straight_through(hard: Allocation, soft: Allocation) -> Allocation:
    return Allocation(
        straight_through(hard.tokens, soft.tokens),
        straight_through(hard.passages, soft.passages),
        soft.difficulty,
        soft.gain,
    )
