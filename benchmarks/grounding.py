"""Which of two? Where saliency points in crowded images, and what it needs for that.

For every crowded question of Pocket-KB's `val`, the saliency of all tokens at high resolution by
the training-free rule, by the grounding, and by the grounding with one of its inputs taken away:
features, evidence, places, or its question, which is replaced by one about another image. Scores
are those of `skipqa/training/grounding/quality.py`, by how the question refers to its thing.

    python benchmarks/grounding.py --pocket-kb FOLDER [--components FOLDER]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from common import opened
from rich.progress import track
from rich.table import Table
from torch import Tensor

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.errors import UserError
from skipqa.evaluation.statistics import mean_interval, paired_bootstrap
from skipqa.nn.grounding import Grounding, Scene
from skipqa.pipeline import Pipeline, load
from skipqa.stages.prune import ConceptScorer, rule_logits
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.tasks.pocket_kb import POCKET_KB, things_shown
from skipqa.training.grounding.examples import GroundedExample
from skipqa.training.grounding.quality import Pointed, pointed
from skipqa.types import Question

RULE, WHOLE = "rule", "grounding"
MEASURES = ("points", "kept", "which")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pocket-kb", type=Path, required=True)
    parser.add_argument("--components", type=Path, help="default: the bundled ones")
    parser.add_argument("--limit", type=int, help="questions")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    pipeline = load(components=options.components)
    if pipeline.components.grounding is None:
        raise UserError("these components have no grounding: give --components")
    examples = [e for e in POCKET_KB.load(options.pocket_kb, "val") if e.record.get("things")]
    examples = examples[: options.limit]
    others = [e.question for e in examples]
    random.Random(0).shuffle(others)

    found: dict[str, dict[str, list[Pointed]]] = {}
    with opened(POCKET_KB.images(options.pocket_kb, "val")) as images:
        for example, other in track(
            list(zip(examples, others, strict=True)), "looking", console=err
        ):
            state = State(images[example.image](), example.question)
            state = pipeline.run(state, stop="encode")
            tokens, _ = pipeline.backbone.encode_high_res(state.image, state.low_res)
            scores = saliency(pipeline, state.add(tokens=tokens), other)
            target = grounded(example)
            for group in ("all", example.record["asked_by"]):
                for name, logits_V in scores.items():
                    of_group = found.setdefault(group, {})
                    of_group.setdefault(name, []).append(pointed(target, logits_V))
    results = {group: summary(of_group) for group, of_group in found.items()}
    show(results)
    err.print(f"written to {write_results(results, 'grounding', options.out)}")


def grounded(example: Example) -> GroundedExample:
    things = things_shown(example.record)
    asked = next(t for t in things if t.entity == example.record["entity"] and t.box == example.box)
    rivals = tuple(t.box for t in things if t.kind == asked.kind and t is not asked)
    return GroundedExample(example.question, -1, "val", "crowded", (asked.box,), rivals)


@torch.inference_mode()
def saliency(pipeline: Pipeline, state: State, other: str) -> dict[str, Tensor]:
    """Logits of all tokens, [V], by what scored them."""
    model, tokens = pipeline.components.grounding, state.tokens
    assert isinstance(model, Grounding)
    rule = ConceptScorer(pipeline.config.prune, pipeline.backbone)
    rule_V = rule_logits(rule(tokens, state.question)[0])
    scene = Scene(tokens.features[None], tokens.concept_probs[None], rule_V[None])
    asked_instead, _ = pipeline.stages["encode"].question(other)  # type: ignore[attr-defined]

    def score(scene: Scene, question: Question, network: Callable[..., Tensor] = model) -> Tensor:
        states_1Td = question.states[None]
        return network(scene, states_1Td, torch.ones(states_1Td.shape[:2], dtype=torch.bool))[0]

    nowhere = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
    moved = Scene(
        *(part[:, nowhere] for part in (scene.features_BVF, scene.evidence_BVC, scene.rule_BV))
    )
    anywhere_V = torch.empty_like(rule_V)
    anywhere_V[nowhere] = score(moved, state.question)
    features, evidence = torch.zeros_like(scene.features_BVF), torch.zeros_like(scene.evidence_BVC)
    return {
        RULE: rule_V,
        WHOLE: score(scene, state.question),
        "without features": score(replace(scene, features_BVF=features), state.question),
        "without evidence": score(replace(scene, evidence_BVC=evidence), state.question),
        "places shuffled": anywhere_V,
        "another question": score(scene, asked_instead),
    }


def summary(found: dict[str, list[Pointed]]) -> dict[str, Any]:
    """By scorer, each measure with its interval, and the difference to the rule."""
    rows: dict[str, Any] = {}
    for name, scored in found.items():
        rows[name] = {"questions": len(scored)}
        for measure in MEASURES:
            values, rule = (
                [v for one in some if (v := getattr(one, measure)) is not None]
                for some in (scored, found[RULE])
            )
            if values:
                rows[name][measure] = asdict(mean_interval(values))
                rows[name][f"{measure} - rule"] = asdict(paired_bootstrap(values, rule))
    return rows


def show(results: dict[str, Any]) -> None:
    table = Table("asked by", "saliency", "questions", *MEASURES)
    for group, rows in results.items():
        for name, row in rows.items():
            cells = [f"{100 * row[m]['mean']:.1f}" if m in row else "" for m in MEASURES]
            table.add_row(group, name, str(row["questions"]), *cells)
    out.print(table)


if __name__ == "__main__":
    main()
