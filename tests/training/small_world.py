"""A small Pocket-KB over the real backbone: one real photo cut in pieces, passages about it.

Questions ask about the espresso that the photo shows, in crops that all differ; a passage for each
relation holds the answer, and passages about other drinks do not.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import tiny_training
from PIL import Image

from skipqa.knowledge import Library
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.pipeline import Pipeline
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.gather import Gathered
from skipqa.training.pathway.records import collect
from skipqa.training.pipelines import PipelineWorkers, Source, open_workers
from skipqa.training.run import Run

FACTS = {
    "origin": ("Where does this drink come from?", "italy", "Espresso is a coffee from Italy."),
    "brewing": ("How is this drink brewed?", "pressure", "Espresso is brewed under pressure."),
    "cup": ("Which cup holds this drink?", "demitasse", "A demitasse cup holds espresso."),
}
# Longer than what is read of a passage
COFFEE = (
    "Coffee is a drink made from roasted beans. The plant grows in the mountains of many warm "
    "lands, where its red cherries are picked by hand and dried in the sun. Traders carried it "
    "over the sea in sacks. In the kitchen it is brewed in a pot or a cup. Most drink it hot."
)
OTHERS = {
    "coffee": COFFEE,
    "tea": "Tea is a drink from China, brewed with leaves in a pot.",
    "milk": "Milk is a drink that comes from cows.",
    "cup": "A cup is a small container that holds drinks.",
    "coffee mug": "A mug holds more coffee than a cup.",
}
TRAIN, HELD_OUT, VAL = 12, 6, 3


def write(folder: Path, photo: Path) -> Path:
    """train.jsonl, val.jsonl, photos.zip and an index, as `skipqa data pocket-kb` lays them out."""
    folder.mkdir(parents=True)
    picture, rows = Image.open(photo).convert("RGB"), []
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for number in range(TRAIN + HELD_OUT + VAL):
            name = f"scenes/{number}.webp"
            left, top = 3 * number, 2 * number
            buffer = BytesIO()
            picture.crop((left, top, left + 380, top + 300)).save(buffer, "WEBP")
            archive.writestr(name, buffer.getvalue())
            rows.append(_row(number, name))
    tiny_training.write_lines(folder / "train.jsonl", rows[: TRAIN + HELD_OUT])
    tiny_training.write_lines(folder / "val.jsonl", rows[TRAIN + HELD_OUT :])
    (folder / "held_out.json").write_text(json.dumps({"coco": [], "entities": []}))
    (folder / "unseen.json").write_text("[]")
    texts = {f"espresso:{name}": ("espresso", text) for name, (_, _, text) in FACTS.items()}
    texts |= {f"other:{name}": (name, text) for name, text in OTHERS.items()}
    passages = [{"id": id, "title": title, "text": text} for id, (title, text) in texts.items()]
    tiny_training.write_lines(folder / "passages.jsonl", passages)
    build(folder / "index", [JsonLines(folder / "passages.jsonl")], LexicalEncoder.default())
    return folder


def _row(number: int, image: str) -> dict[str, Any]:
    relation = list(FACTS)[number % len(FACTS)]
    question, answer, _ = FACTS[relation]
    return {
        "question_id": f"row-{number}",
        "image": image,
        "question": question,
        "answers": {answer: 1.0},
        "category": relation,
        "gold": [f"passages:espresso:{relation}"],
        "subset": ["small"],
        "entity": "drink:espresso",
        "photo": image,
        "box": [0.3, 0.3, 0.4, 0.4] if number % 2 else None,
    }


class Shared(Source):
    """A source that has its pipeline already."""

    pipeline: Pipeline

    def load(self) -> Pipeline:
        return type(self).pipeline


def workers() -> PipelineWorkers:
    """This process, with the shared pipeline."""
    return open_workers(Shared(), 1)


def context(folder: Path, pipeline: Pipeline, rows: list[Gathered]) -> TrainingContext:
    """With every question gathered; its run writes into `folder/run`."""
    library = Library.open([folder / "index"])
    Shared.pipeline = Pipeline(replace(pipeline.parts, library=library))
    here = workers()
    records = collect(rows, {"of": "tests"}, library, here, Run(folder / "records"))
    return TrainingContext(
        records,
        Shared.pipeline,
        Shared.pipeline.components,
        Run(folder / "run"),
        here,
        folder / "records",
    )


def again(context: TrainingContext, folder: Path, **changes: Any) -> TrainingContext:
    """The same study in another folder."""
    return replace(context, run=replace(context.run, folder=folder, **changes), computed={})
