"""A few questions of each benchmark in its official layout, about plain drawn photos."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

COLOURS = ("red", "blue", "yellow")


def draw(path: Path, colour: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (96, 64), "white")
    ImageDraw.Draw(image).ellipse((20, 10, 70, 55), fill=colour)
    image.save(path)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_okvqa(folder: Path) -> None:
    header = {"info": {}, "data_type": "mscoco", "data_subtype": "val2014", "license": {}}
    questions, annotations = [], []
    for number, colour in enumerate(COLOURS):
        draw(folder / "images" / "val2014" / f"COCO_val2014_{number:012d}.jpg", colour)
        asked = {"image_id": number, "question_id": 10 + number}
        questions.append(asked | {"question": f"What color is ball {number}?"})
        given = [colour] * 7 + ["purple"] * 2 + ["a ball"]
        answers = [{"answer_id": n, "answer": text} for n, text in enumerate(given, 1)]
        kind = {"question_type": "eight", "answer_type": "other"}
        annotations.append(asked | kind | {"answers": answers})
    (folder / "OpenEnded_mscoco_val2014_questions.json").write_text(
        json.dumps(header | {"task_type": "Open-Ended", "questions": questions})
    )
    (folder / "mscoco_val2014_annotations.json").write_text(
        json.dumps(header | {"annotations": annotations})
    )


def write_aokvqa(folder: Path) -> None:
    rows = []
    for number, colour in enumerate(COLOURS):
        draw(folder / "images" / "val2017" / f"{number:012d}.jpg", colour)
        rows.append(
            {
                "split": "val",
                "image_id": number,
                "question_id": f"question-{number}",
                "question": f"What is ball {number} painted with?",
                "choices": ["a pencil", colour, "chalk", "ink"],
                "correct_choice_idx": 1,
                "direct_answers": [colour] * 8 + ["paint"] * 2,
                "difficult_direct_answer": number == 2,  # counts in multiple choice alone
            }
        )
    (folder / "aokvqa_v1p0_val.json").write_text(json.dumps(rows))


def write_infoseek(folder: Path) -> None:
    rows: list[dict[str, Any]] = []
    for number, colour in enumerate(COLOURS):
        draw(folder / "images" / f"oven_{number:08d}.jpg", colour)
        split = "val_unseen_question" if number < 2 else "val_unseen_entity"
        rows.append(
            {
                "data_id": f"infoseek_val_{number:08d}",
                "image_id": f"oven_{number:08d}",
                "question": f"What is ball {number}?",
                "answer": [colour],
                "answer_eval": [colour, "the ball"],
                "data_split": split,
            }
        )
    rows[1] |= {"answer": ["10"], "answer_eval": [{"wikidata": 10.0, "range": [9.0, 11.0]}]}
    kinds = ("String", "Numerical", "String")
    write_lines(folder / "infoseek_val.jsonl", rows)
    write_lines(
        folder / "infoseek_val_qtype.jsonl",
        [
            {"data_id": row["data_id"], "question_type": kind}
            for row, kind in zip(rows, kinds, strict=True)
        ],
    )


def write_evqa(folder: Path) -> None:
    header = ["question", "answer", "question_type", "dataset_image_ids", "dataset_name"]
    rows = [
        ["What color is it?", "red|scarlet", "templated", "0abc", "landmarks"],
        ["Which colors?", "blue&&white", "multi_answer", "1abc|2abc", "landmarks"],
        ["What is it?", "a yellow ball", "automatic", "77", "inaturalist"],
    ]
    with (folder / "val.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    draw(folder / "images" / "landmarks" / "0" / "a" / "b" / "0abc.jpg", COLOURS[0])
    draw(folder / "images" / "landmarks" / "1" / "a" / "b" / "1abc.jpg", COLOURS[1])
    draw(folder / "images" / "inaturalist" / "77.jpg", COLOURS[2])


def write_viquae(folder: Path) -> None:
    rows = []
    for number, colour in enumerate(COLOURS):
        draw(folder / "images" / f"ball-{number}.png", colour)
        rows.append(
            {
                "id": str(number) * 32,
                "image": f"ball-{number}.png",
                "input": f"what is ball {number}?",
                "output": {"answer": [f"the {colour} ball", colour]},
            }
        )
    write_lines(folder / "validation.jsonl", rows)


WRITERS: dict[str, Callable[[Path], None]] = {
    "okvqa": write_okvqa,
    "aokvqa": write_aokvqa,
    "infoseek": write_infoseek,
    "evqa": write_evqa,
    "viquae": write_viquae,
}


def write_all(data: Path) -> None:
    """As `SKIPQA_DATA` names it: a folder for each benchmark."""
    for name, write in WRITERS.items():
        (data / name).mkdir(parents=True)
        write(data / name)
