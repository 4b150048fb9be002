"""Is text in a photo read where it matters, and only there? Gated OCR against none and all of it.

Questions of the rendered-text set's `val` are answered in four ways: without OCR ("none"); by the
gate, which reads kept tokens that look like text where the question asks for it ("gated"); with the
whole photo read for every question ("whole"); and by a gate that knows the kind of the question and
the box of its text ("perfect"). The words are used in the same way by all. Reading costs FLOPs of
the engine and of the gate's heads; milliseconds are of the engine alone, in the same run. Then
OK-VQA's questions that people say need text, and others, with the gate and without.

    python benchmarks/rendered_text.py --rendered FOLDER --okvqa FOLDER

What was answered is kept in `--records`, so a stopped run goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.progress import track
from rich.table import Table

from skipqa.backbones import text_reader
from skipqa.backbones.text_reader import LinesRead, TextReader
from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.errors import MissingExtra
from skipqa.evaluation.statistics import mean_interval, paired_bootstrap
from skipqa.files import read_jsonl
from skipqa.image import open_image
from skipqa.pipeline import Pipeline, load
from skipqa.stages import text_gate
from skipqa.stages.read_text import ReadTextInImage, crops_around, whole
from skipqa.stages.stage import Parts
from skipqa.stages.written import texts_read
from skipqa.state import State
from skipqa.tasks import jsonl
from skipqa.tasks.example import Example
from skipqa.tasks.photos import Photos
from skipqa.tasks.pocket_kb import box_from_centre
from skipqa.tasks.question_types import read_types
from skipqa.trace import StageRecord, Trace
from skipqa.types import Box, VisualTokens

WAYS = ("none", "gated", "whole", "perfect")
KINDS = ("written", "knowledge", "plain")
OCR = "ocr"
PERFECT_GRID = 16  # cells per side around a known box


class Measured:
    """An engine that adds up what it spends; what it read of a photo it does not read again."""

    def __init__(self, reader: TextReader) -> None:
        self.reader, self.flops, self.ms, self.calls = reader, 0, 0.0, 0
        self.known: dict[tuple[int, tuple[int, int]], tuple[LinesRead, float]] = {}

    def __call__(self, image: Image.Image) -> LinesRead:
        key = hash(image.tobytes()), image.size
        if key not in self.known:
            start = time.perf_counter()
            found = self.reader(image)
            self.known[key] = found, (time.perf_counter() - start) * 1_000
        found, ms = self.known[key]
        self.flops, self.ms, self.calls = self.flops + found.flops, self.ms + ms, self.calls + 1
        return found


class WholePicture(ReadTextInImage):
    """Reads all of the photo; the words are used where the question asks for text."""

    def __call__(self, state: State, record: StageRecord) -> State:
        if state.kept.text_likeness is None:
            return super().__call__(state, record)
        return self.read(state, [whole(state.image)], record)


class KnownBox(ReadTextInImage):
    """Reads around the box that it is told."""

    box: Box = (0.0, 0.0, 1.0, 1.0)

    def __call__(self, state: State, record: StageRecord) -> State:
        if state.kept.text_likeness is None:
            return super().__call__(state, record)
        left, top, right, bottom = (PERFECT_GRID * side for side in self.box)
        cells = [
            row * PERFECT_GRID + column
            for row in range(max(0, int(top)), min(PERFECT_GRID, int(bottom) + 1))
            for column in range(max(0, int(left)), min(PERFECT_GRID, int(right) + 1))
        ]
        return self.read(state, crops_around(cells, PERFECT_GRID, state.image.size, 0.25), record)


class Systems:
    def __init__(self, base: Pipeline) -> None:
        shared = text_reader.shared()
        if shared is None:
            raise MissingExtra("reading text in images", text_reader.EXTRA)
        shared(Image.effect_noise((64, 64), 9.0))  # loaded before anything is timed
        self.engine = Measured(shared)
        self._last: Image.Image | None = None
        config = base.config.read_text

        def reading(kind: type[ReadTextInImage]) -> ReadTextInImage:
            return kind(config, self.engine)

        self.known_box = KnownBox(config, self.engine)

        def as_known(parts: Parts) -> KnownBox:
            return self.known_box

        always = base.with_config(read_text={"min_likeness": 0.0})
        self.by_way = {
            "none": base.with_config(read_text={"enabled": False}),
            "gated": base.with_stages(read_text=lambda parts: reading(ReadTextInImage)),
            "whole": always.with_stages(read_text=lambda parts: reading(WholePicture)),
            "perfect": always.with_stages(read_text=as_known),
        }

    def ask(self, way: str, photo: Image.Image, example: Example) -> dict[str, Any]:
        pipeline, trace = self.by_way[way], Trace()
        self.engine.flops, self.engine.ms, self.engine.calls = 0, 0.0, 0
        low_res, flops = self._low_res(photo)
        entering = State(photo, example.question).add(image=photo, low_res=low_res)
        state = pipeline.run(entering, stop="encode", trace=trace)
        if way == "perfect":
            (kind,) = example.subsets
            assert example.box is not None
            self.known_box.box = example.box
            question = replace(
                state.question,
                asks_for_text=kind != "plain",
                asks_what_is_written=kind == "written",
            )
            state = state.add(question=question)
        state = pipeline.run(state, start="draft", stop="draft", trace=trace)
        answer = pipeline.route(state, trace)
        return {
            "answer": answer.text,
            "score": jsonl.JSONL.score(example, answer.text),
            "asks": state.question.asks_for_text,
            "read": texts_read(answer.state),
            "crops": self.engine.calls,
            "flops": self.engine.flops,
            "ms": self.engine.ms,
            "all_flops": answer.trace.flops + flops,
            "route": answer.route,
        }

    def _low_res(self, photo: Image.Image) -> tuple[VisualTokens, int]:
        """The same for all ways: a photo is encoded once."""
        if photo is not self._last:
            base = self.by_way["none"]
            self._last = photo
            self._encoded = base.backbone.encode_low_res(photo, base.config.encode.scales)
        return self._encoded

    def gate_flops(self) -> int:
        """Of a question and of the tokens of both resolutions, whether asked or not."""
        pipeline, image = self.by_way["gated"], Image.new("RGB", (8, 8))
        gate, config = text_gate.build(pipeline.parts), pipeline.config.encode
        assert gate is not None
        grids = [scale // config.cell for scale in config.scales]
        asked = gate.asks("", torch.zeros(pipeline.backbone.widths.text)).flops
        return asked + sum(gate.likeness(image, grid)[1] for grid in grids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rendered", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--okvqa", type=Path, required=True, help="val.jsonl, its types and photos")
    parser.add_argument("--components", type=Path, help="else those bundled with the preset")
    parser.add_argument("--split", default="val", help="of the rendered-text set")
    parser.add_argument("--limit", type=int, default=400, help="questions about rendered text")
    parser.add_argument("--needing", type=int, default=10**6, help="of OK-VQA that need text")
    parser.add_argument("--others", type=int, default=200, help="of OK-VQA that need no text")
    parser.add_argument("--records", type=Path, default=Path("rendered_text.jsonl"))
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    whole = load(components=options.components)
    systems = Systems(whole)
    done = read_back(options.records)
    with options.records.open("a", encoding="utf-8") as file:

        def keep(record: dict[str, Any]) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()
            done[record["id"]] = record

        rendered = rendered_rows(options.rendered, options.split)[: options.limit]
        photos = Photos(options.rendered / "photos.zip")
        for one in track(rendered, "rendered text", console=err):
            if str(one.id) not in done:
                keep(ask_rendered(systems, photos, one))
        okvqa = okvqa_rows(options.okvqa, options.needing, options.others, options.seed)
        photos = Photos(options.okvqa / "val.zip")
        for one in track(okvqa, "OK-VQA", console=err):
            if str(one.id) not in done:
                keep(ask_okvqa(systems, photos, one))
    results = {
        "split": options.split,
        "rendered": summarise([done[str(one.id)] for one in rendered], systems.gate_flops()),
        "okvqa": compare([done[str(one.id)] for one in okvqa]),
    }
    show(results)
    path = write_results(results, "rendered_text", options.out, whole.components.checksums())
    err.print(f"written to {path}")


def read_back(path: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in read_jsonl(path)} if path.is_file() else {}


def rendered_rows(folder: Path, split: str) -> list[Example]:
    return [
        replace(jsonl.example_of(row, f"row {n}"), box=box_from_centre(row["box"]))
        for n, row in enumerate(read_jsonl(folder / f"{split}.jsonl"))
    ]


def okvqa_rows(folder: Path, needing: int, others: int, seed: int) -> list[Example]:
    """So many that need text, and so many of the others."""
    types = read_types(folder / "val_types.jsonl")
    rows = read_jsonl(folder / "val.jsonl")
    examples = [
        replace(jsonl.example_of(row, f"row {n}"), type=types.get(str(row["question_id"])))
        for n, row in enumerate(rows)
    ]
    random.Random(seed).shuffle(examples)
    need = [one for one in examples if one.type == OCR]
    return need[:needing] + [one for one in examples if one.type != OCR][:others]


def ask_rendered(systems: Systems, photos: Photos, example: Example) -> dict[str, Any]:
    photo = open_image(photos.open(example.image))
    gated = systems.ask("gated", photo, example)
    # A question that asks for no text takes the same path without a gate
    none = systems.ask("none", photo, example) if gated["asks"] else gated
    systems.engine.flops, systems.engine.ms = 0, 0.0
    systems.engine(photo)
    paid = {"flops": systems.engine.flops, "ms": systems.engine.ms}
    everything = systems.ask("whole", photo, example) if gated["asks"] else none
    (kind,) = example.subsets
    perfect = none if kind == "plain" else systems.ask("perfect", photo, example)
    return {
        "id": str(example.id),
        "kind": kind,
        "text": example.record["text"],
        "none": none,
        "gated": gated,
        "whole": everything | paid,
        "perfect": perfect,
    }


def ask_okvqa(systems: Systems, photos: Photos, example: Example) -> dict[str, Any]:
    photo = open_image(photos.open(example.image))
    gated = systems.ask("gated", photo, example)
    none = systems.ask("none", photo, example) if gated["asks"] else gated
    return {"id": str(example.id), "type": example.type, "none": none, "gated": gated}


def summarise(records: Sequence[dict[str, Any]], gate_flops: int) -> dict[str, Any]:
    groups = {"all": records, **{k: [r for r in records if r["kind"] == k] for k in KINDS}}
    needs = [r for r in records if r["kind"] != "plain"]
    plain = [r for r in records if r["kind"] == "plain"]
    flops = {way: _mean([r[way]["flops"] for r in records]) for way in WAYS}
    flops["gated"] += gate_flops
    ms = {way: _mean([r[way]["ms"] for r in records]) for way in WAYS}
    scores = {way: [r[way]["score"] for r in records] for way in WAYS}
    return {
        "questions": {name: len(some) for name, some in groups.items()},
        "accuracy": {
            name: {way: asdict(mean_interval([r[way]["score"] for r in some])) for way in WAYS}
            for name, some in groups.items()
            if some
        },
        "gated_less": {
            way: asdict(paired_bootstrap(scores["gated"], scores[way]))
            for way in WAYS
            if way != "gated"
        },
        "of_whole": {
            "accuracy": _mean(scores["gated"]) / max(1e-9, _mean(scores["whole"])),
            "flops": flops["gated"] / max(1, flops["whole"]),
            "ms": ms["gated"] / max(1e-9, ms["whole"]),
        },
        "gflops": {way: value / 1e9 for way, value in flops.items()},
        "gate_gflops": gate_flops / 1e9,
        "ms": ms,
        "all_gflops": {way: _mean([r[way]["all_flops"] for r in records]) / 1e9 for way in WAYS},
        "opens": {
            "where text is needed": _mean([r["gated"]["crops"] > 0 for r in needs]),
            "where it is not": _mean([r["gated"]["crops"] > 0 for r in plain]),
        },
        "characters": {way: _mean([_read(r, way) for r in needs]) for way in WAYS[1:]},
    }


def compare(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """OK-VQA with the gate and without, by what a question needs."""
    found: dict[str, Any] = {}
    for name in (OCR, "others"):
        some = [r for r in records if (r["type"] == OCR) == (name == OCR)]
        scores = {way: [r[way]["score"] for r in some] for way in ("none", "gated")}
        found[name] = {
            "questions": len(some),
            "accuracy": {way: asdict(mean_interval(values)) for way, values in scores.items()},
            "gated_less_none": asdict(paired_bootstrap(scores["gated"], scores["none"])),
            "asks": _mean([r["gated"]["asks"] for r in some]),
            "reads": _mean([bool(r["gated"]["read"]) for r in some]),
        }
    return found


def _read(record: dict[str, Any], way: str) -> float:
    """How many of the characters of the text are right in the best of what was read."""
    target = _letters(record["text"])
    ratios = (SequenceMatcher(None, target, _letters(text)).ratio() for text in record[way]["read"])
    return max(ratios, default=0.0)


@cache
def _letters(text: str) -> str:
    return "".join(text.lower().split())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def show(results: dict[str, Any]) -> None:
    found = results["rendered"]
    table = Table("accuracy", *WAYS)
    for name, by_way in found["accuracy"].items():
        cells = (
            f"{100 * by_way[w]['mean']:.1f} ({100 * by_way[w]['low']:.0f} to "
            f"{100 * by_way[w]['high']:.0f})"
            for w in WAYS
        )
        table.add_row(f"{name} ({found['questions'][name]})", *cells)
    for name in ("gflops", "ms", "all_gflops"):
        table.add_row(name, *(f"{found[name][way]:.2f}" for way in WAYS))
    out.print(table)
    of_whole = found["of_whole"]
    out.print(
        f"gated: {of_whole['accuracy']:.1%} of the whole picture's accuracy for "
        f"{of_whole['flops']:.1%} of its FLOPs and {of_whole['ms']:.1%} of its time"
    )
    out.print(f"opens {found['opens']}; characters right {found['characters']}")
    for name, one in results["okvqa"].items():
        difference, accuracy = one["gated_less_none"], one["accuracy"]
        out.print(
            f"OK-VQA {name} ({one['questions']}): none {100 * accuracy['none']['mean']:.1f}, "
            f"gated {100 * accuracy['gated']['mean']:.1f} "
            f"({100 * difference['difference']:+.1f}, {100 * difference['low']:+.1f} to "
            f"{100 * difference['high']:+.1f}), asks {one['asks']:.0%}, reads {one['reads']:.0%}"
        )


if __name__ == "__main__":
    main()
