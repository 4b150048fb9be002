"""Does the photo's own entry come first? Retrieval of an ImageNet class's WordNet gloss.

100 photos of animals, food and tools, drawn with a seed from a folder that holds
`photos.jsonl` (rows {"image", "domain": "imagenet", "label": "n07920052_espresso"}) and
`photos.zip`. Each is asked a knowledge question through the pipeline without the fast path;
counted is whether the gloss of the photo's class is among the first four passages.

    python benchmarks/class_gloss.py --entities FOLDER
"""

from __future__ import annotations

import argparse
import io
import json
import random
import zipfile
from collections import Counter
from pathlib import Path

from rich.progress import track
from rich.table import Table

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
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
    rows = [row for row in rows if kind_of.get(row["label"].partition("_")[0])]
    random.Random(options.seed).shuffle(rows)

    found: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    missed = []
    with zipfile.ZipFile(options.entities / "photos.zip") as photos:
        for row in track(rows[: options.photos], "asking", console=err):
            synset, _, name = row["label"].partition("_")
            kind = kind_of[synset]
            image = open_image(io.BytesIO(photos.read(row["image"])))
            answer = pipeline.answer(image, QUESTIONS[kind], fast_path=False)
            first = [evidence.id for evidence in answer.evidence[:4]]
            asked[kind] += 1
            if f"wordnet:{synset}" in first:
                found[kind] += 1
            else:
                missed.append({"class": name, "kind": kind, "first": first})

    total, hits = sum(asked.values()), sum(found.values())
    table = Table("kind", "photos", "gloss in first 4")
    for kind in KINDS:
        table.add_row(kind, str(asked[kind]), f"{100 * found[kind] / max(asked[kind], 1):.1f} %")
    table.add_section()
    table.add_row("all", str(total), f"{100 * hits / total:.1f} %")
    out.print(table)
    results = {
        "photos": total,
        "seed": options.seed,
        "gloss_in_first_4": hits / total,
        "by_kind": {kind: [found[kind], asked[kind]] for kind in KINDS},
        "missed": missed,
    }
    err.print(f"written to {write_results(results, 'class_gloss', options.out)}")


if __name__ == "__main__":
    main()
