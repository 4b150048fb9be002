"""Your own benchmark: a JSON Lines file of questions and a folder of photos, asked of two systems.

python examples/own_benchmark.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

import skipqa
from skipqa.evaluation import harness, systems
from skipqa.tasks.jsonl import JSONL, read
from skipqa.tasks.photos import Photos

QUESTIONS = [
    ("japan", "What is the capital of this country?", {"tokyo": 1.0}),
    ("japan", "What money do people use in this country?", {"yen": 1.0, "japanese yen": 1.0}),
    ("germany", "What is the capital of this country?", {"berlin": 1.0}),
]


def draw_flags(folder: Path) -> None:
    japan = Image.new("RGB", (640, 480), "white")
    ImageDraw.Draw(japan).ellipse((200, 120, 440, 360), "#bc002d")
    japan.save(folder / "japan.png")
    germany = Image.new("RGB", (640, 480), "black")
    ImageDraw.Draw(germany).rectangle((0, 160, 640, 320), "red")
    ImageDraw.Draw(germany).rectangle((0, 320, 640, 480), "#ffce00")
    germany.save(folder / "germany.png")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_flags(folder)
        rows = [
            {"question_id": i, "image": f"{photo}.png", "question": question, "answers": answers}
            for i, (photo, question, answers) in enumerate(QUESTIONS)
        ]
        (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))

        examples, bad = read(folder / "questions.jsonl", photos := Photos(folder))
        base = skipqa.load()
        built = {name: systems.build(name, base) for name in ("skip", "no-retrieval")}
        entrants = [
            harness.Entrant(pipeline, folder / name, {"system": name})
            for name, pipeline in built.items()
        ]
        summaries = harness.evaluate(entrants, harness.EvalSet(examples, photos, JSONL, bad))
        for name, summary in zip(built, summaries, strict=True):
            accuracy, flops = summary["accuracy"]["mean"], summary["flops_mean"]
            print(f"{name:14} accuracy {accuracy:.2f}  {flops / 1e9:.1f} GFLOPs per question")


if __name__ == "__main__":
    main()
