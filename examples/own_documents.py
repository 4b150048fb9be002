"""Your own documents: an index from a folder of text files, and a question about a photo.

python examples/own_documents.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

import skipqa
from skipqa.knowledge import index
from skipqa.knowledge.sources import open_source
from skipqa.knowledge.sparse_encoder import LexicalEncoder

NOTES = {
    "japan": "Our office in Japan opened in 2019. The office in Japan is led by Aiko Tanaka.",
    "france": "Our office in France opened in 2012. The office in France is led by Jean Petit.",
    "italy": "Our office in Italy opened in 2016. The office in Italy is led by Carla Rossi.",
}


def draw_flag(path: Path) -> None:
    """The flag of Japan before a blue sky."""
    image = Image.new("RGB", (640, 480), (140, 180, 230))
    draw = ImageDraw.Draw(image)
    draw.rectangle((80, 70, 560, 390), "white")
    draw.ellipse((224, 134, 416, 326), (188, 0, 45))
    image.save(path)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "notes").mkdir()
        for title, text in NOTES.items():
            (folder / "notes" / f"{title}.txt").write_text(text)
        draw_flag(folder / "photo.png")

        sources = [open_source(str(folder / "notes"))]
        built = index.build(folder / "index", sources, LexicalEncoder.default())
        print(f"{built.passages} passages from {len(NOTES)} files")

        pipeline = skipqa.load(index=folder / "index")
        question = "Who leads the office in this country?"
        answer = pipeline.answer(folder / "photo.png", question)
        print(f"{question} {answer.text} ({answer.route})")
        for passage in answer.evidence:
            print(f"  {passage.score:.2f}  {passage.title}: {passage.text}")


if __name__ == "__main__":
    main()
