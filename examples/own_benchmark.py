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

QUESTIONS: dict[str, dict[str, float]] = {  # answers with their scores
    "What is the capital of this country?": {"tokyo": 1.0},
    "What is the highest point of this country?": {"fuji": 1.0, "mount fuji": 1.0},
    "What is the national symbol of this country?": {"red sun disc": 1.0, "chrysanthemum": 1.0},
}


def draw_flag(path: Path) -> None:
    """The flag of Japan before a blue sky."""
    image = Image.new("RGB", (640, 480), "#8cb4e6")
    draw = ImageDraw.Draw(image)
    draw.rectangle((80, 70, 560, 390), "white")
    draw.ellipse((224, 134, 416, 326), "#bc002d")
    image.save(path)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_flag(folder / "japan.png")
        rows = [
            {"question_id": i, "image": "japan.png", "question": question, "answers": answers}
            for i, (question, answers) in enumerate(QUESTIONS.items())
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
