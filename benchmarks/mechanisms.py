"""Does an answer come from what was read? Questions of Pocket-KB, with one link cut at a time.

Each question goes through the pipeline up to verification once; then its passages are read in
several ways. The decoder answers by itself: the drafter's candidates are left out.

- `as set`: as `--passages` says: two passages as text, fused tokens, or these and the best passage;
- `best as text`, `nothing`: without fusion, as is `two as text` where that is not as set;
- `edited fact`: every passage that states the answer states another one, which counts as right;
  `edited fact, right before`: of the questions that were answered rightly as set;
- `wrong passages`: those of another question;
- `wrong photo`: another question's image, looked at and looked up anew;

and with a fusion reader

- `fused`: fused tokens alone;
- `fusion zeroed`: fused tokens are zeros;
- `features off`, `names off`: fusion knows nothing of what tokens look like, or of their names;
- `random edges`: as many as the layer chose, drawn by the seed, all of them open: behind its own
  gates those that it would not have chosen would hardly be read.

The FLOPs of fusing and of decoding are those of each way, with the check whether an answer rests on
what was read.

    python benchmarks/mechanisms.py --pocket-kb FOLDER --questions 200
    python benchmarks/mechanisms.py --pocket-kb FOLDER --components FOLDER --passages fused+best

`--untrained-reader` puts in a fusion reader with random weights, to try the script; it needs
`--passages` that are fused.
"""

from __future__ import annotations

import argparse
import random
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from rich.table import Table

from skipqa.backbones.presets.pocket import Pocket
from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.errors import UserError
from skipqa.evaluation.statistics import mean_interval
from skipqa.nn.fusion_reader import FusionReader, FusionReaderConfig
from skipqa.pipeline import Pipeline, load
from skipqa.stages.fuse import build_fuser, way_as_set
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.pocket_kb import POCKET_KB
from skipqa.trace import Trace
from skipqa.training.example import RIGHT
from skipqa.training.stage1 import edits
from skipqa.types import Verified

EDITED = "edited fact"
EDITED_RIGHT = "edited fact, right before"
TEXT = "text"
SPENDING = ("fuse", "decode")  # stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--pocket-kb", type=Path, required=True, help="made by `skipqa data`, with its index/"
    )
    parser.add_argument("--components", type=Path, help="default: those bundled with the preset")
    parser.add_argument("--index", action="append", help="default: Pocket-KB's own")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--subset", help="questions of this one alone, such as crowded or unseen")
    parser.add_argument("--passages", choices=(TEXT, "fused", "fused+best"), default=TEXT)
    parser.add_argument("--untrained-reader", action="store_true")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.untrained_reader and options.passages == TEXT:
        parser.error("--untrained-reader reads no text: give --passages fused or fused+best")

    prepare_process()
    folder: Path = options.pocket_kb
    base = load(
        index=options.index or [folder / "index"],
        components=options.components,
        overrides={"decode": {"passages": TEXT}},
    )
    if options.untrained_reader:
        base = base.with_components(fusion_reader=untrained_reader(base, options.seed))
    if base.components.fusion_reader is None and options.passages != TEXT:
        raise UserError("no fusion_reader.safetensors among the components")
    examples = [one for one in POCKET_KB.load(folder, "val") if one.gold and one.answers]
    if options.subset:
        examples = [one for one in examples if options.subset in one.subsets]
    random.Random(options.seed).shuffle(examples)
    asked = examples[: options.questions]
    with zipfile.ZipFile(folder / "photos.zip") as photos:
        measured = Mechanisms(base, options.passages, examples, photos.read, options.seed)
        found = [measured(n) for n in track(range(len(asked)), "reading", console=err)]
    names = dict.fromkeys(name for one in found for name in one)
    scores = {name: [one[name] for one in found if name in one] for name in names}
    table = Table("way of reading", "questions", "accuracy", "fuse, GFLOPs", "decode, GFLOPs")
    giga = measured.giga_flops()
    for name, values in scores.items():
        accuracy = f"{100 * sum(values) / max(1, len(values)):.1f}"
        spent = (f"{giga[name][stage]:.1f}" if name in giga else "" for stage in SPENDING)
        table.add_row(name, str(len(values)), accuracy, *spent)
    out.print(table)
    results = {
        "questions": len(asked),
        "subset": options.subset,
        "seed": options.seed,
        "passages": options.passages,
        "untrained_reader": options.untrained_reader,
        "accuracy": {
            name: asdict(mean_interval(values)) | {"questions": len(values)}
            for name, values in scores.items()
            if values
        },
        "giga_flops": giga,
    }
    name = "_".join(filter(None, ("mechanisms", options.subset)))
    err.print(f"written to {write_results(results, name, options.out)}")


class Mechanisms:
    def __init__(
        self,
        base: Pipeline,
        passages: str,
        examples: Sequence[Example],
        photo: Callable[[str], bytes],
        seed: int,
    ) -> None:
        """`base` reads text; a photo is read by its name."""
        self.base, self.examples, self.photo, self.seed = base, examples, photo, seed
        self.as_set, self.fuses = base.with_config(decode={"passages": passages}), passages != TEXT
        decode: dict[str, dict[str, Any]] = {
            "best as text": {"passages": TEXT, "max_passages": 1},
            "nothing": {"passages": "none"},
        }
        if self.fuses:
            decode["two as text"] = {"passages": TEXT, "max_passages": 2}
            decode["fused"] = {"passages": "fused"}
        others = {name: base.with_config(decode=own) for name, own in decode.items()}
        self.systems = {"as set": self.as_set, **others}
        self._verified: dict[int, State] = {}
        self._traces: dict[str, list[Trace]] = {}

    def __call__(self, number: int) -> dict[str, float]:
        """The score of each way; without edited facts where no passage states the answer."""
        example, state = self.examples[number], self.verified(number)
        other = self.verified((number + 1) % len(self.examples))
        found = {name: self._read(name, system, state) for name, system in self.systems.items()}
        wrong = state.add(verified=other.verified)
        found["wrong passages"] = self.as_set.run(wrong, start="fuse")
        elsewhere = self.examples[(number + 1) % len(self.examples)].image
        found["wrong photo"] = self.as_set.run(self._up_to_verify(elsewhere, example), start="fuse")
        if self.fuses:
            found["fusion zeroed"] = self._zeroed(state)
            found |= {name: self.as_set.run(one, start="fuse") for name, one in unaware(state)}
            found["random edges"] = self._by_chance(state, number)
        scores = {name: score(one, example.answers) for name, one in found.items()}
        edit = edited(state.verified, example.answers, other_answer(example, self.examples))
        if edit is not None:
            changed, target = edit
            changed = self._encoded(changed)
            answered = self.as_set.run(state.add(verified=changed), start="fuse")
            scores[EDITED] = score(answered, {target: 1.0})
            if scores["as set"] >= RIGHT:
                scores[EDITED_RIGHT] = scores[EDITED]
        return scores

    def giga_flops(self) -> dict[str, dict[str, float]]:
        """Means of each way, by stage."""
        return {
            name: {
                stage: sum(one[stage].flops for one in traces) / len(traces) / 1e9
                for stage in SPENDING
            }
            for name, traces in self._traces.items()
        }

    def _read(self, name: str, system: Pipeline, state: State) -> State:
        trace = Trace()
        self._traces.setdefault(name, []).append(trace)
        return system.run(state, start="fuse", trace=trace)

    def verified(self, number: int) -> State:
        if number not in self._verified:
            example = self.examples[number]
            self._verified[number] = self._up_to_verify(example.image, example)
        return self._verified[number]

    def _up_to_verify(self, image: str, example: Example) -> State:
        state = State(BytesIO(self.photo(image)), example.question)
        state = self.base.run(state, stop="verify")
        return state.add(draft=replace(state.draft, candidates=()))

    def _zeroed(self, state: State) -> State:
        state = self.as_set.run(state, start="fuse", stop="fuse")
        assert state.fused.for_decoder is not None
        nothing = torch.zeros_like(state.fused.for_decoder)
        zeroed = state.add(fused=replace(state.fused, for_decoder=nothing))
        return self.as_set.run(zeroed, start="decode")

    @torch.inference_mode()
    def _by_chance(self, state: State, number: int) -> State:
        fuser = build_fuser(self.as_set.parts, way_as_set(self.as_set.parts))
        own, _ = fuser(state.kept, state.question, state.verified)
        generator = torch.Generator().manual_seed(self.seed + number)
        order = torch.randperm(own.edges.numel(), generator=generator)
        edges = own.edges.flatten()[order].view_as(own.edges).float()
        fused, _ = fuser(state.kept, state.question, state.verified, edges)
        return self.as_set.run(state.add(fused=fused), start="decode")

    def _encoded(self, verified: Verified) -> Verified:
        """With embeddings and states of what the passages say now."""
        encoded = self.base.backbone.encode_texts([one.text for one in verified.passages])
        return replace(
            verified,
            embeddings=encoded.embeddings,
            token_states=encoded.states,
            characters=encoded.characters,
        )


def unaware(state: State) -> Iterator[tuple[str, State]]:
    """The question with one side of its tokens blanked. What the decoder is told stays."""
    tokens = state.kept.tokens
    for name, sides in (
        ("features off", ("features",)),
        ("names off", ("concept_probs", "meaning")),
    ):
        blank: dict[str, Any] = {side: torch.zeros_like(getattr(tokens, side)) for side in sides}
        kept = replace(state.kept, tokens=replace(tokens, **blank))
        yield name, state.add(kept=kept)


def score(state: State, answers: Mapping[str, float]) -> float:
    return float(answers.get(normalise(state.answer.text), 0.0))


def other_answer(example: Example, asked: Sequence[Example]) -> str:
    """The first that is right for another question of its kind and wrong for this one."""

    def kind(one: Example) -> tuple[str | None, str | None]:
        return one.category, one.record.get("relation")

    others = (text for one in asked if kind(one) == kind(example) for text in one.answers)
    return next((text for text in others if text not in example.answers), "something else")


def edited(
    verified: Verified, answers: Mapping[str, float], target: str
) -> tuple[Verified, str] | None:
    """Every right answer that stands in a passage gives way to `target`."""
    texts = edits.edited([one.text for one in verified.passages], answers, target)
    if texts is None:
        return None
    passages = tuple(
        replace(one, passage=replace(one.passage, text=text), excerpt="")
        for one, text in zip(verified.passages, texts, strict=True)
    )
    return replace(verified, passages=passages), target


def untrained_reader(pipeline: Pipeline, seed: int) -> FusionReader:
    backbone = pipeline.backbone
    assert isinstance(backbone, Pocket)
    widths, concepts = backbone.widths, backbone.concepts
    weight: Any = backbone.decoder.embedding.weight
    torch.manual_seed(seed)
    config = FusionReaderConfig(
        widths.vision,
        len(concepts) - concepts.from_photos,
        widths.text,
        widths.decoder,
        backbone.decoder.config.heads,
        float(weight.detach().float().square().mean().sqrt()),
    )
    return FusionReader(config).eval().requires_grad_(False)


if __name__ == "__main__":
    main()
