"""How much accuracy hangs on each setting: the sweeps of the paper's appendix.

Questions of Pocket-KB's `val`, a third of them crowded, with one setting changed at a time: the
fraction of tokens kept (rho), passages per region (k'), the fraction of edges (beta), regions (R),
the drafter's threshold (tau_SKV) and the verifier's (tau_nu). A question is encoded once, and runs
again from the stage that the setting belongs to; where the decoder would read the same, it is not
asked again. The weights lambda_1 and lambda_2 are of training losses: a checkpoint has one value of
each, so they are not swept here.

Scores are kept in `--work`, one line per question; a stopped run goes on there.

    python benchmarks/sensitivity.py --pocket-kb FOLDER --work FILE.jsonl
"""

from __future__ import annotations

import argparse
import io
import json
import random
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import track
from rich.table import Table

from skipqa.backbones.caching import CachedBackbone
from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.evaluation.records import read_back
from skipqa.evaluation.statistics import mean_interval, paired_bootstrap
from skipqa.figures import Labels, Mark, Series, line_chart, save
from skipqa.image import open_image
from skipqa.pipeline import NAMES, Pipeline, load
from skipqa.stages.decode import Decode, facts, read_order
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.tasks.pocket_kb import POCKET_KB

DEFAULT = "default"


class Swept(NamedTuple):
    """A setting, by its stage and its name there, and the values it takes besides its own."""

    stage: str  # whose config it is in
    setting: str
    values: tuple[float, ...]
    start: str  # the first stage that runs otherwise


SETTINGS: Mapping[str, Swept] = {
    "rho": Swept("budget", "rho_v", (0.05, 0.2, 0.4), "budget"),
    "k'": Swept("retrieve", "per_region", (1, 2, 8), "retrieve"),
    "beta": Swept("fuse", "beta", (0.05, 0.2, 0.5), "fuse"),
    "R": Swept("regions", "max_regions", (1, 2, 4), "regions"),
    "tau_SKV": Swept("draft", "threshold", (0.2, 0.5, 0.8), "draft"),
    "tau_nu": Swept("verify", "threshold", (0.1, 0.3, 0.7), "verify"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--work", type=Path, required=True, help="scores, one line per question")
    parser.add_argument("--questions", type=int, default=150)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    folder: Path = options.pocket_kb
    base = load(index=("default", folder / "index"))
    base = base.with_backbone(CachedBackbone(base.backbone))
    examples = POCKET_KB.load(folder, "val")
    random.Random(options.seed).shuffle(examples)
    drawn = examples[: options.questions]
    scores = read_back(options.work)
    systems = {name: with_values(base, swept) for name, swept in SETTINGS.items()}
    left = [example for example in drawn if example.id not in scores]
    with zipfile.ZipFile(folder / "photos.zip") as photos, options.work.open("a") as work:
        for example in track(left, "asking", console=err):
            image = open_image(io.BytesIO(photos.read(example.image)))
            found = ask(base, systems, State(image, example.question), example)
            scores[example.id] = {"question_id": example.id, **found}
            work.write(json.dumps(scores[example.id]) + "\n")
            work.flush()
    results = summary(base, [scores[example.id] for example in drawn])
    show(results)
    path = write_results(results, "sensitivity", options.out, base.components.checksums())
    save(draw(results), path.with_suffix(".svg"))
    err.print(f"written to {path}")


def with_values(base: Pipeline, swept: Swept) -> dict[float, Pipeline]:
    return {
        value: base.with_config(**{swept.stage: {swept.setting: value}}) for value in swept.values
    }


def ask(
    base: Pipeline,
    systems: Mapping[str, Mapping[float, Pipeline]],
    asked: State,
    example: Example,
) -> dict[str, float]:
    """The score with each value of each setting; the fast path answers where it may."""
    before: dict[str, State] = {}  # the state that a stage enters with
    state = asked
    for stage in NAMES[:-1]:
        before[stage] = state
        state = base.run(state, start=stage, stop=stage)
    answers: dict[Any, str] = {}
    full = decoded(base, state, answers)
    draft = state.draft

    def score(text: str) -> float:
        return POCKET_KB.score(example, text)

    found = {DEFAULT: score(draft.answer if draft.accepted else full)}
    for name, swept in SETTINGS.items():
        for value, system in systems[name].items():
            if name == "tau_SKV":
                again = system.run(before["draft"], start="draft", stop="draft").draft
                text = again.answer if again.accepted else full
            elif draft.accepted:
                text = draft.answer
            else:
                fused = system.run(before[swept.start], start=swept.start, stop="fuse")
                text = decoded(system, fused, answers)
            found[key(name, value)] = score(text)
    return found


def decoded(system: Pipeline, fused: State, answers: dict[Any, str]) -> str:
    """The answer, asked for once for everything that the decoder would read."""
    decode = system.stages["decode"]
    assert isinstance(decode, Decode)
    used = read_order(fused.verified, fused.fused)[: decode.reader.max_passages]
    words = fused.kept.tokens.words
    seen = () if words is None else (words.names, tuple(words.probs.tolist()))
    read = (*facts(fused.verified, used), seen)
    if read not in answers:
        answers[read] = system.run(fused, start="decode").answer.text
    return answers[read]


def key(name: str, value: float) -> str:
    return f"{name}={value:g}"


def summary(base: Pipeline, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """By setting and value: accuracy, and the difference to the default."""
    own = [one[DEFAULT] for one in scores]
    rows: dict[str, Any] = {}
    for name, swept in SETTINGS.items():
        default = getattr(getattr(base.config, swept.stage), swept.setting)
        points = {value: [one[key(name, value)] for one in scores] for value in swept.values} | {
            default: own
        }
        rows[name] = {
            "default": default,
            "values": [
                {
                    "value": value,
                    "accuracy": asdict(mean_interval(points[value])),
                    "less_default": asdict(paired_bootstrap(points[value], own)),
                }
                for value in sorted(points)
            ],
        }
    return {"questions": len(scores), "settings": rows}


def show(results: dict[str, Any]) -> None:
    table = Table("setting", "value", "accuracy", "minus the default")
    for name, row in results["settings"].items():
        for point in row["values"]:
            mean, less = point["accuracy"], point["less_default"]
            table.add_row(
                name,
                f"{point['value']:g}" + (" (ships)" if point["value"] == row["default"] else ""),
                f"{100 * mean['mean']:.1f}",
                f"{100 * less['difference']:+.1f} ({100 * less['low']:+.1f} to "
                f"{100 * less['high']:+.1f})",
            )
    out.print(table)


def draw(results: dict[str, Any]) -> Any:
    """Each setting relative to its default, on one logarithmic axis."""
    series = [
        Series(
            name,
            [
                Mark(
                    point["value"] / row["default"],
                    *(100 * point["less_default"][k] for k in ("difference", "low", "high")),
                )
                for point in row["values"]
            ],
        )
        for name, row in results["settings"].items()
    ]
    labels = Labels(
        "Sensitivity to each setting",
        f"{results['questions']} questions of Pocket-KB val, 95 % intervals",
        "value over the one that ships",
        "accuracy minus the default's, points",
    )
    return line_chart(series, labels, log_x=True)


if __name__ == "__main__":
    main()
