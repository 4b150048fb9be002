"""Blocks of the analysis: what goes wrong, the theorems' quantities, sensitivity to settings.

Enters: a results file, or the folders of runs and of results. Leaves: the Markdown of a block.
"""

from __future__ import annotations

from pathlib import Path

from skipqa.claims import registry
from skipqa.claims.quantities import NOTES, TradeOff, bound_constant, trade_off
from skipqa.claims.verdict import Evidence
from skipqa.evaluation.reports.markdown import ABSENT, bounds, percent, table
from skipqa.evaluation.results import Results
from tools.documents.source import source

EPSILON = 0.05


def failures(results: Results) -> str:
    runs = results["results"]
    meanings = [row["meaning"] for row in runs[0]["buckets"]]
    rows = [
        [
            row["bucket"],
            meanings[place],
            *(
                f"{cell['wrong']} ({100 * cell['of_wrong']:.0f} %)" if cell["wrong"] else ABSENT
                for cell in (run["buckets"][place] for run in runs)
            ),
        ]
        for place, row in enumerate(runs[0]["buckets"])
        if any(run["buckets"][place]["wrong"] for run in runs)
    ]
    titles = [
        f"{run['run']}, {run['on'].rpartition(', ')[2]}: {run['wrong']} wrong of {run['asked']}"
        for run in runs
    ]
    return table(["what went wrong", "by which rule", *titles], rows) + "\n" + source(results)


def theory(runs: Path, results: Path) -> str:
    """Of the runs that were made with what ships."""
    evidence, _ = registry.gather(sorted(runs.iterdir()), results)
    found = [one for each in evidence.sets if (one := trade_off(each)) is not None]
    if not found:
        return "Not measured with what ships: runs of `skip` and `dense` over the same questions."
    rows = {
        "questions": [f"{one.questions:,}" for one in found],
        "epsilon_v: of the thing's box, dropped": [_percent(one.epsilon_v) for one in found],
        "delta_r: gold passage not retrieved": [_percent(one.delta_r) for one in found],
        "gold passages that the verifier keeps": [_percent(one.verifier_recall) for one in found],
        "accuracy that may be lost against dense": [_percent(one.allowed) for one in found],
        "accuracy that is lost": [_percent(one.lost) for one in found],
        "mean degree": [f"{one.degree:.2f}" for one in found],
        "FLOPs, times fewer": [f"{one.times_fewer_flops:.2f}" for one in found],
        "L: of accuracy over retention": [_slope(one) for one in found],
    }
    shown = table(["", *(one.title for one in found)], [[name, *row] for name, row in rows.items()])
    parts = [shown, *_constant(evidence, found), "\n".join(f"- {note}" for note in NOTES)]
    return "\n\n".join(parts)


def _constant(evidence: Evidence, found: list[TradeOff]) -> list[str]:
    """A paragraph on C, where saliency's fidelity was measured and a retention swept."""
    fidelity = evidence.benchmark("fidelity")
    slope = next((one.lipschitz for one in found if one.lipschitz), None)
    if fidelity is None or slope is None or not fidelity["results"]["score_gap"]:
        return []
    told = fidelity["results"]
    one = bound_constant(
        slope, told["eta_calibrated"], told["score_gap"], told["available"], EPSILON
    )
    asks = "everything: it is vacuous" if one.vacuous else f"{one.tokens} of {one.available} tokens"
    return [
        f"Saliency's fidelity by the {told['proxy']} on {told['num_questions']} questions: eta "
        f"{told['eta']:.3f}, calibrated {told['eta_calibrated']:.4f}, Spearman "
        f"{told['spearman']:.2f}; {100 * told['worth_something']:.1f} % of the tokens are worth "
        f"anything. With L = {one.lipschitz:.2f}, eta = {one.eta:.4f} and a score gap of "
        f"{one.gap:.4f}, C = {one.C:.1f}, and for epsilon = {EPSILON} the bound asks for {asks}."
        f"\n{source(fidelity)}"
    ]


def sensitivity(results: Results) -> str:
    found = results["results"]
    rows = []
    for name, row in found["settings"].items():
        for point in row["values"]:
            value, less = f"{point['value']:g}", point["less_default"]
            rows.append(
                [
                    name,
                    f"**{value}**" if point["value"] == row["default"] else value,
                    percent(point["accuracy"]),
                    f"{100 * less['difference']:+.1f} ({bounds(less, 100, '+.1f')})",
                ]
            )
    header = ["setting", "value", "accuracy, %", "minus what ships, points"]
    note = f"\n\n{found['questions']} questions of Pocket-KB val; in bold what ships.\n"
    return table(header, rows) + note + source(results)


def _percent(value: float | None) -> str:
    return ABSENT if value is None else f"{100 * value:.1f} %"


def _slope(one: TradeOff) -> str:
    return ABSENT if one.lipschitz is None else f"{one.lipschitz:.2f}"
