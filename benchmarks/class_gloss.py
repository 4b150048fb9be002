"""Does the photo's own entry come first? Retrieval of an ImageNet class's WordNet gloss.

100 photos of animals, food and tools, drawn with a seed from a folder that holds
`photos.jsonl` (rows {"image", "domain": "imagenet", "label": "n07920052_espresso"}) and
`photos.zip`. Each is asked a knowledge question through the pipeline without the fast path;
counted is whether the gloss of the photo's class is among the first four passages. Some of these
photos are in Pocket-KB's `train`, where the vision encoder is trained on them without their labels,
so those that Pocket-KB holds out are also reported on their own.

    python benchmarks/class_gloss.py --entities FOLDER --pocket-kb FOLDER
"""

from __future__ import annotations

import argparse
import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.files import read_json
from skipqa.image import open_image
from skipqa.pipeline import load

# A kind that WordNet puts above the class, and what is asked of it
QUESTIONS = {
    "animal": "What kind of animal is this, and where does it live?",
    "food": "What is this food, and what is it made of?",
    "tool": "What is this, and what is it used for?",
}
KINDS = {
    "animal": {"animal"},
    "food": {"food", "foodstuff", "produce", "beverage"},
    "tool": {"tool", "implement", "instrument"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entities", type=Path, required=True, help="photos.jsonl, photos.zip")
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--photos", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    pipeline = load()
    kind_of = {}
    for concept in pipeline.backbone.concepts.entries:
        above = {name for names in concept.kinds for name in names}
        kind_of[concept.synset] = next((k for k, names in KINDS.items() if names & above), None)
    rows = map(json.loads, (options.entities / "photos.jsonl").open())
    rows = [row for row in rows if kind_of.get(_synset(row))]
    random.Random(options.seed).shuffle(rows)
    held_out = set(read_json(options.pocket_kb / "held_out.json")["entities"])
    never_shown = [row for row in rows if row["image"] in held_out]
    drawn = {"all": rows[: options.photos], "held-out": never_shown[: options.photos]}

    first: dict[str, list[str]] = {}
    to_ask = {row["image"]: row for some in drawn.values() for row in some}
    with zipfile.ZipFile(options.entities / "photos.zip") as photos:
        for name, row in track(to_ask.items(), "asking", console=err):
            image = open_image(io.BytesIO(photos.read(name)))
            question = QUESTIONS[kind_of[_synset(row)]]
            answer = pipeline.answer(image, question, fast_path=False)
            first[name] = [evidence.id for evidence in answer.evidence[:4]]

    def found(row: dict[str, str]) -> bool:
        return f"wordnet:{_synset(row)}" in first[row["image"]]

    table = Table("photos", "kind", "", "gloss in first 4")
    results: dict[str, Any] = {"seed": options.seed}
    for name, some in drawn.items():
        by_kind = {
            kind: [found(row) for row in some if kind_of[_synset(row)] == kind] for kind in KINDS
        }
        for kind, right in by_kind.items():
            table.add_row(name, kind, str(len(right)), _percent(right))
        table.add_row(name, "all", str(len(some)), _percent([found(row) for row in some]))
        table.add_section()
        results[name] = {
            "photos": len(some),
            "gloss_in_first_4": sum(map(found, some)) / len(some),
            "by_kind": {kind: [sum(right), len(right)] for kind, right in by_kind.items()},
        }
    results["missed"] = [
        {"class": row["label"], "kind": kind_of[_synset(row)], "first": first[row["image"]]}
        for row in to_ask.values()
        if not found(row)
    ]
    out.print(table)
    err.print(f"written to {write_results(results, 'class_gloss', options.out)}")


def _synset(row: dict[str, str]) -> str:
    return row["label"].partition("_")[0]


def _percent(right: list[bool]) -> str:
    return f"{100 * sum(right) / max(1, len(right)):.1f} %"


if __name__ == "__main__":
    main()
