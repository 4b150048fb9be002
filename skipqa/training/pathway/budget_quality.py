"""How good adaptive budgets are: against fixed ones at equal FLOPs, and gate by gate.

Enters: what every budget is worth to each question (`budget_grid.py`), and what controllers decide
for it. Leaves: the gain over the best fixed budget, or mixture of two, that costs as much, with its
interval; the curve over thresholds of the gate, and the threshold that is chosen from it. Nothing
is trained here.

Shape letters: n questions, P budgets of the grid, S samples, T thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from skipqa.nn import budget as network
from skipqa.nn.budget import BudgetController, DiscreteBudget
from skipqa.training.pathway.answering import GIGA, Answered
from skipqa.training.pathway.budget_grid import PASSAGES, TOKENS, BudgetGrid
from skipqa.training.stage import Metrics

SAMPLES = 1_000
THRESHOLDS = 41  # of the gate, that are tried
ALL = "all"
JUDGED_BY_COST = "okvqa"  # whose answers are seldom in a passage


@dataclass(frozen=True, slots=True)
class Decided:
    """For each question, [n]."""

    tokens: Tensor
    passages: Tensor  # that are retrieved and verified
    gain: Tensor  # that the gate expects; 0 where nothing predicts it
    flops: int = 0  # of a decision

    def where(self, rows: Sequence[int]) -> Decided:
        some = list(rows)
        return replace(
            self, tokens=self.tokens[some], passages=self.passages[some], gain=self.gain[some]
        )

    def with_gate(self, threshold_n: Tensor) -> Decided:
        """With retrieval closed where less is expected, for what was decided with an open gate."""
        return replace(self, passages=self.passages * (self.gain >= threshold_n))

    def score(self, grid: BudgetGrid) -> tuple[Tensor, Tensor]:
        """The score and the FLOPs, in units of 1e9, of each question."""
        value, giga = grid.at(self.tokens, self.passages)
        return value, giga + self.flops / GIGA


@torch.inference_mode()
def decide(
    controllers: Sequence[BudgetController], fold_n: Tensor, grid: BudgetGrid, num_tokens: int
) -> Decided:
    """Each question by the controller of its fold, with every gate open."""
    budgets = []
    for i, fold in enumerate(fold_n.tolist()):
        controller = controllers[fold]
        known = grid.signals[i, : controller.config.signals]
        allocation = controller(grid.visual[i], grid.question[i], num_tokens, PASSAGES[-1], known)
        if isinstance(controller, DiscreteBudget) and controller.gate is not None:
            counts = controller.relaxed(controller.opened(allocation), 0.0)
            budgets.append((int(counts.tokens), int(counts.passages), float(allocation.gain)))
        else:
            one = controller.decide(
                grid.visual[i], grid.question[i], num_tokens, PASSAGES[-1], known
            )
            # What is retrieved; a fraction of it (variant B) is more than the decoder reads
            budgets.append((one.tokens, one.passages, 0.0))
    tokens, passages, gain = torch.tensor(budgets, dtype=torch.float64).float().unbind(1)
    return Decided(tokens, passages, gain, network.flops(controllers[0].config))


class Outcome(NamedTuple):
    """For each question, [n]."""

    looked_up: Tensor  # 1 where it was
    value: Tensor
    giga: Tensor


@dataclass(frozen=True, slots=True)
class Curve:
    """What each value of a setting leads to, by data set and for all of them."""

    setting: str
    values: list[float]
    looked_up: list[dict[str, float]]
    score: list[dict[str, float]]
    giga: list[dict[str, float]]
    affordable: list[bool]

    def best(self) -> float:
        """The affordable value of the highest score; of equal ones the highest."""
        found = [n for n, affordable in enumerate(self.affordable) if affordable]
        return self.values[max(found, key=lambda n: (self.score[n][ALL], self.values[n]))]

    def metrics(self) -> list[Metrics]:
        names = ("values", "looked_up", "score", "giga", "affordable")
        said = (self.setting, "looked_up", "score", "giga_flops", "affordable")
        rows = zip(*(getattr(self, name) for name in names), strict=True)
        return [dict(zip(said, row, strict=True)) for row in rows]


def curve(
    setting: str,
    values: Sequence[float],
    outcome: Callable[[float], Outcome],
    grid: Answered,
    affordable: Callable[[dict[str, float]], bool],
) -> Curve:
    """`affordable` is told the mean FLOPs, in units of 1e9."""
    found = [[_means(one, grid) for one in outcome(value)] for value in values]
    looked_up, score, giga = (list(column) for column in zip(*found, strict=True))
    return Curve(setting, list(values), looked_up, score, giga, list(map(affordable, giga)))


def gate_curve(opened: Decided, grid: BudgetGrid, most_flops: float) -> Curve:
    """From everything looked up to nothing. A threshold is affordable if OK-VQA's questions cost at
    most `most_flops` times what they cost without retrieval."""
    gain = opened.gain
    levels = torch.linspace(0, 1, THRESHOLDS)
    thresholds = [*gain.quantile(levels).unique().tolist(), float(gain.max()) + 1.0]

    def outcome(threshold: float) -> Outcome:
        decided = opened.with_gate(torch.tensor(threshold))
        return Outcome((decided.passages > 0).float(), *decided.score(grid))

    nothing = _means(outcome(thresholds[-1]).giga, grid)

    def affordable(giga: dict[str, float]) -> bool:
        cost = {name: spent / nothing[name] for name, spent in giga.items()}
        return cost.get(JUDGED_BY_COST, 0.0) <= most_flops

    return curve("threshold", thresholds, outcome, grid, affordable)


def _means(values_n: Tensor, grid: Answered) -> dict[str, float]:
    return {name: float(values_n[rows].mean()) for name, rows in groups(grid).items()}


def groups(grid: Answered) -> dict[str, list[int]]:
    """Rows by data set, and all of them."""
    found: dict[str, list[int]] = {ALL: list(range(len(grid)))}
    for i, source in enumerate(grid.sources):
        found.setdefault(source, []).append(i)
    return found


@dataclass(frozen=True, slots=True)
class Gain:
    """Of adaptive over fixed budgets, with the 95 % interval over resampled questions."""

    mean: float
    low: float
    high: float


def compare_budgets(decided: Decided, grid: BudgetGrid, known: BudgetGrid) -> Metrics:
    """All questions together, and each data set alone among `by_source`. The best fixed budget is
    that with hindsight, and that of the `known` questions."""
    of_sources = {
        source: _compare(decided.where(rows), grid.only(rows), known.of(source))
        for source, rows in groups(grid).items()
        if source != ALL
    }
    return {**_compare(decided, grid, known), "by_source": of_sources}


@torch.inference_mode()
def _compare(decided: Decided, unseen: BudgetGrid, known: BudgetGrid) -> Metrics:
    score, spent = decided.score(unseen)
    value, giga = unseen.value.flatten(1), unseen.giga.flatten(1)
    found: Metrics = {
        **over_fixed(score, spent, value, giga),
        "fixed": [
            {"tokens": t, "passages": p, "score": float(v), "giga_flops": float(c)}
            for (t, p), v, c in zip(
                ((t, p) for t in TOKENS for p in PASSAGES), value.mean(0), giga.mean(0), strict=True
            )
        ],
        "no_retrieval": float((decided.passages == 0).float().mean()),
        "mean_tokens": float(decided.tokens.mean()),
        "mean_passages": float(decided.passages.mean()),
    }
    if len(known):
        known_value_1P = known.value.flatten(1).mean(0, keepdim=True)
        known_giga_1P = known.giga.flatten(1).mean(0, keepdim=True)
        drawn_P = best_fixed(known_value_1P, known_giga_1P, spent.mean()[None])[1][0]
        weight_Sn = resampled(len(unseen))
        from_train_S = weight_Sn @ (value @ drawn_P)
        found["fixed_from_train"] = {
            "score": float(from_train_S[0]),
            "giga_flops": float((giga @ drawn_P).mean()),
        }
        found["gain_over_fixed_from_train"] = asdict(gain_of(weight_Sn @ score - from_train_S))
    return found


def over_fixed(score_n: Tensor, giga_n: Tensor, value_nP: Tensor, giga_nP: Tensor) -> Metrics:
    """The mean score and FLOPs of adaptive budgets, and what the best of P fixed budgets, or a
    random mixture of two, scores at as many FLOPs, with hindsight."""
    weight_Sn = resampled(len(score_n))
    adaptive_S, flops_S = weight_Sn @ score_n, weight_Sn @ giga_n
    hindsight_S, _ = best_fixed(weight_Sn @ value_nP, weight_Sn @ giga_nP, flops_S)
    return {
        "questions": len(score_n),
        "adaptive": {"score": float(adaptive_S[0]), "giga_flops": float(flops_S[0])},
        "fixed_at_equal_flops": float(hindsight_S[0]),
        "gain": asdict(gain_of(adaptive_S - hindsight_S)),
    }


def resampled(count: int) -> Tensor:
    """[S, n], how much every question counts in each sample; first all questions as they are."""
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randint(count, (SAMPLES, count), generator=generator)
    weight_Sn = torch.stack([torch.bincount(rows, minlength=count) for rows in drawn])
    return torch.cat((torch.ones(1, count), weight_Sn)) / count


def gain_of(samples_S: Tensor) -> Gain:
    """The first is of the questions as they are."""
    low, high = samples_S[1:].quantile(torch.tensor([0.025, 0.975])).tolist()
    return Gain(float(samples_S[0]), low, high)


def best_fixed(value_SP: Tensor, giga_SP: Tensor, flops_S: Tensor) -> tuple[Tensor, Tensor]:
    """The best score of a fixed budget, or of a mixture of two, at no more than `flops_S`, [S]; and
    how often each is drawn, [S, P]. Where even the cheapest costs more, the cheapest."""
    flops_S = flops_S.maximum(giga_SP.amin(-1)) + 1e-6
    affordable = giga_SP <= flops_S[:, None]
    step_SPP = (giga_SP[:, None, :] - giga_SP[:, :, None]).clamp(min=1e-9)
    left_SP = flops_S[:, None] - giga_SP
    fraction_SPP = (left_SP[:, :, None] / step_SPP).clamp(0, 1)  # of the dearer of the two
    fraction_SPP = fraction_SPP.masked_fill(affordable[:, None, :], 0.0)
    mixed_SPP = value_SP[:, :, None].lerp(value_SP[:, None, :], fraction_SPP)
    mixed_SPP = mixed_SPP.masked_fill(~affordable[:, :, None], -torch.inf)
    best_S, place_S = mixed_SPP.flatten(1).max(1)
    below_S1, above_S1 = (
        (place_S // value_SP.shape[1])[:, None],
        (place_S % value_SP.shape[1])[:, None],
    )
    fraction_S1 = fraction_SPP.flatten(1).gather(1, place_S[:, None])
    drawn_SP = torch.zeros_like(value_SP).scatter_add_(1, below_S1, 1 - fraction_S1)
    return best_S, drawn_SP.scatter_add_(1, above_S1, fraction_S1)
