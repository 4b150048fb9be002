"""Which gate knows best when a draft will do? The drafter's confidence against rivals.

For each question the drafter drafts and the decoder, given the image's words and no passage, writes
a short draft of its own. Gates rank questions by how little they need retrieval:

- `confidence`: of the drafter, which is SKIP's gate; `no abstaining`: of the drafter that the
  answer needs no retrieval, which is SKIP-NR's;
- `margin`, `entropy`: of the decoder's draft, the mean gap between its two highest logits, or the
  negative mean entropy of its tokens (TARG, Wang et al., 2025);
- `probe`: logistic regression on the decoder's last hidden state of the prompt, for whether the
  drafter is right. It is trained on OK-VQA's training questions about held-out photos, its ridge
  chosen on these by cross-validation.

Measured on validation questions of OK-VQA and VQAv2: how well a gate tells right drafts from wrong
ones and drafts that lose nothing against looking up from those that do (AUROC), the accuracy with
the first 40 % drafted and the rest looked up, and what the gate costs. The drafter has also learned
from perceptual questions about other photos, the probe has not: on VQAv2 they are not on a par.

    python benchmarks/gates.py --data DATA
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from rich.table import Table
from torch import Tensor

from skipqa.backbones.networks import llama
from skipqa.backbones.presets.pocket import Pocket
from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.data.held_out import is_held_out
from skipqa.evaluation.reports.markdown import ABSENT, percent, points
from skipqa.evaluation.statistics import Comparison, mean_interval, paired_bootstrap
from skipqa.image import open_image
from skipqa.pipeline import Pipeline, load
from skipqa.stages.readers import prompt_of, words_shown
from skipqa.state import State
from skipqa.tasks import jsonl
from skipqa.tasks.example import Example
from skipqa.tasks.photos import Photos
from skipqa.trace import Trace
from skipqa.training.confidence import fit_curve

DRAFT_TOKENS = 8  # of the decoder, at most; answers of the trained reader are shorter
DRAFTED = 0.4
RIDGES = (0.01, 0.1, 1.0, 10.0)
FOLDS = 5
RESAMPLES = 2_000
FEWEST = 10  # of either kind of question, for an AUROC
UNIT_INTERVAL = (0.0, 1.0)
COLUMNS = ("auroc_right", "auroc_enough", "accuracy")
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Gated:
    """What each gate knows of a question, and how well it is answered."""

    gates: dict[str, float]  # the higher, the less retrieval is needed
    gflops: dict[str, float]
    hidden: list[float]
    draft: float  # the score of the drafter's answer
    full: float  # of the answer that was looked up; not a number where it was not


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="with okvqa/ and vqav2/")
    parser.add_argument("--train", type=int, default=400, help="questions for the probe")
    parser.add_argument("--val", type=int, default=200, help="questions of each benchmark")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    pipeline, data = load(), options.data
    held_out = ask(pipeline, data / "okvqa", "train", options.train, options.seed, look_up=False)
    asked = {
        name: ask(pipeline, data / name, "val", options.val, options.seed, look_up=True)
        for name in ("okvqa", "vqav2")
    }
    probe, chosen = fit_probe(held_out)
    measured = {name: measure(some, probe) for name, some in asked.items()}
    measured["all"] = measure([one for some in asked.values() for one in some], probe)
    results = {
        "seed": options.seed,
        "trained_on": len(held_out),
        "ridge": chosen,
        "drafted": DRAFTED,
        "gflops": costs([one for some in asked.values() for one in some]),
        **measured,
    }
    show(results)
    err.print(f"written to {write_results(results, 'gates', options.out)}")


def ask(
    pipeline: Pipeline, folder: Path, split: str, count: int, seed: int, *, look_up: bool
) -> list[Gated]:
    photos = Photos(folder / f"{split}.zip")
    examples, _ = jsonl.read(folder / f"{split}.jsonl", photos)
    if split == "train":
        examples = [one for one in examples if is_held_out(one.image)]
    random.Random(seed).shuffle(examples)
    title = f"{folder.name} {split}"
    return [
        gated(pipeline, example, photos, look_up)
        for example in track(examples[:count], title, console=err)
    ]


@torch.inference_mode()
def gated(pipeline: Pipeline, example: Example, photos: Photos, look_up: bool) -> Gated:
    trace, image = Trace(), open_image(photos.open(example.image))
    state = pipeline.run(State(image, example.question), stop="draft", trace=trace)
    backbone, draft = pipeline.backbone, state.draft
    assert isinstance(backbone, Pocket)
    config = pipeline.config.decode
    words = words_shown(state.low_res.words, config)
    prompt_1TD = backbone.embed_prompt(prompt_of(config)([], words, example.question))
    drafted = backbone.decoder.generate(prompt_1TD, DRAFT_TOKENS, backbone.stop_tokens)
    hidden_ND, logits_NW = draft_states(backbone.decoder, prompt_1TD, drafted.tokens)
    best_N2, log_probs_NW = logits_NW.topk(2).values, logits_NW.log_softmax(-1)
    entropy = -(log_probs_NW.exp() * log_probs_NW).sum(-1).mean()
    prompt_flops = llama.flops(backbone.decoder.config, *[prompt_1TD.shape[1]] * 2, logits=0)
    own, decoder = trace["draft"].flops, drafted.flops
    flops = {"confidence": own, "no abstaining": own, "margin": decoder, "entropy": decoder}
    full = float("nan")
    if look_up:
        answer = pipeline.run(state, start="budget").answer.text
        full = jsonl.JSONL.score(example, jsonl.JSONL.prediction(example, answer))
    return Gated(
        {
            "confidence": draft.confidence,
            "no abstaining": -draft.abstain_prob,
            "margin": float((best_N2[:, 0] - best_N2[:, 1]).mean()),
            "entropy": -float(entropy),
        },
        {name: spent / 1e9 for name, spent in (flops | {"probe": prompt_flops}).items()},
        hidden_ND[0].tolist(),
        jsonl.JSONL.score(example, jsonl.JSONL.prediction(example, draft.answer)),
        full,
    )


def draft_states(
    decoder: llama.Llama, prompt_1TD: Tensor, tokens: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Hidden states and logits where each token of the draft was chosen, and its end."""
    text_1ND = torch.cat(
        [prompt_1TD, decoder.embedding(torch.tensor([tokens], dtype=torch.long))], 1
    )
    first = prompt_1TD.shape[1] - 1
    hidden_ND = decoder.states(text_1ND)[0, first : first + DRAFT_TOKENS]
    return hidden_ND, decoder.logits(hidden_ND)


def fit_probe(asked: Sequence[Gated]) -> tuple[Callable[[Gated], float], float]:
    """The probe as a gate, and the ridge with the least held-out loss."""
    hidden_ND = np.array([one.hidden for one in asked])
    middle_D, scale_D = hidden_ND.mean(0), hidden_ND.std(0) + 1e-6
    inputs_ND = (hidden_ND - middle_D) / scale_D / np.sqrt(hidden_ND.shape[1])
    scores_N = np.array([one.draft for one in asked])
    fold_N = np.arange(len(asked)) % FOLDS

    def fit(rows: NDArray[np.bool_], ridge: float) -> Values:
        curve = fit_curve([tuple(x) for x in inputs_ND[rows]], scores_N[rows].tolist(), ridge)
        return np.array(curve)

    def loss(ridge: float) -> float:
        lost = []
        for fold in range(FOLDS):
            bias, *weights = fit(fold_N != fold, ridge)
            logits = inputs_ND[fold_N == fold] @ weights + bias
            target = scores_N[fold_N == fold]
            lost += list(np.logaddexp(0, logits) - target * logits)
        return float(np.mean(lost))

    chosen = min(RIDGES, key=loss)
    bias, *weights = fit(np.ones(len(asked), bool), chosen)

    def probe(one: Gated) -> float:
        inputs_D = (np.array(one.hidden) - middle_D) / scale_D / np.sqrt(len(middle_D))
        return float(inputs_D @ weights + bias)

    return probe, chosen


def measure(asked: Sequence[Gated], probe: Callable[[Gated], float]) -> dict[str, Any]:
    ranks = {name: np.array([one.gates[name] for one in asked]) for name in asked[0].gates}
    ranks["probe"] = np.array([probe(one) for one in asked])
    draft, full = (np.array([getattr(one, name) for one in asked]) for name in ("draft", "full"))
    kinds = {"right": draft > 0.5, "enough": draft >= full}
    targets = {
        name: wanted
        for name, wanted in kinds.items()
        if min(wanted.sum(), (~wanted).sum()) >= FEWEST
    }
    routed = {name: with_drafts(rank, draft, full) for name, rank in ranks.items()}
    gates: dict[str, Any] = {}
    for name, rank in ranks.items():
        gates[name] = {"accuracy": asdict(mean_interval(routed[name], bounds=UNIT_INTERVAL))}
        for target, wanted in targets.items():
            gates[name][f"auroc_{target}"] = resampled(wanted, rank)
        if name != "confidence":
            gates[name]["accuracy_less_confidence"] = asdict(
                paired_bootstrap(routed[name], routed["confidence"])
            )
            for target, wanted in targets.items():
                less = resampled(wanted, rank, ranks["confidence"])
                gates[name][f"auroc_{target}_less_confidence"] = less
    return {
        "questions": len(asked),
        "draft": asdict(mean_interval(draft, bounds=UNIT_INTERVAL)),
        "looked_up": asdict(mean_interval(full, bounds=UNIT_INTERVAL)),
        "gates": gates,
    }


def with_drafts(rank: Values, draft: Values, full: Values) -> Values:
    """The scores with the first questions by `rank` drafted and the others looked up."""
    chosen = np.argsort(-rank, kind="stable")[: round(DRAFTED * len(rank))]
    scores = full.copy()
    scores[chosen] = draft[chosen]
    return scores


def auroc(wanted: NDArray[np.bool_], rank: Values) -> float:
    """The probability that a wanted one ranks above one that is not; ties count half."""
    _, place, counts = np.unique(rank, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of equals, from 1
    num_wanted, num_others = int(wanted.sum()), int((~wanted).sum())
    above = middle[place][wanted].sum() - num_wanted * (num_wanted + 1) / 2
    return float(above / (num_wanted * num_others))


def resampled(
    wanted: NDArray[np.bool_], rank: Values, other: Values | None = None
) -> dict[str, float]:
    """The AUROC, or what it has above that of the other, with a bootstrap interval over resamples
    that have both kinds of questions."""

    def value(rows: NDArray[np.int64]) -> float:
        own = auroc(wanted[rows], rank[rows])
        return own if other is None else own - auroc(wanted[rows], other[rows])

    count, generator = len(rank), np.random.default_rng(0)
    drawn = (generator.integers(count, size=count) for _ in range(RESAMPLES))
    both = [value(rows) for rows in drawn if 0 < wanted[rows].sum() < count]
    low, high = np.quantile(both, [0.025, 0.975])
    middle = "mean" if other is None else "difference"
    return {middle: value(np.arange(count)), "low": float(low), "high": float(high), "count": count}


def costs(asked: Sequence[Gated]) -> dict[str, float]:
    return {name: float(np.mean([one.gflops[name] for one in asked])) for name in asked[0].gflops}


def show(results: dict[str, Any]) -> None:
    for name in ("okvqa", "vqav2", "all"):
        found = results[name]
        of_both = f"draft {percent(found['draft'])}, looked up {percent(found['looked_up'])}"
        title = f"{name}, {found['questions']} questions: {of_both}"
        table = Table(
            "gate", "AUROC right", "AUROC enough", "accuracy", "less confidence", "GFLOPs"
        )
        table.title = title
        for gate, row in found["gates"].items():
            less = row.get("accuracy_less_confidence")
            table.add_row(
                gate,
                *(percent(row[key]) if key in row else ABSENT for key in COLUMNS),
                "" if less is None else points(Comparison(**less)),
                f"{results['gflops'][gate]:.2f}",
            )
        out.print(table)


if __name__ == "__main__":
    main()
