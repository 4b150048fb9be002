"""A tiny world to train on: drawn photos, a few questions, networks with random weights.

Laid out as the real data folder and as Pocket-KB are. A photo's colour decides its answers, so
that there is something to learn.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from skipqa.backbones.concepts import Concept, Concepts
from skipqa.backbones.networks.bert import Bert, BertConfig
from skipqa.backbones.networks.efficientnet_lite import EfficientNetLite, EfficientNetLiteConfig
from skipqa.backbones.networks.llama import Llama, LlamaConfig
from skipqa.backbones.presets.pocket import END
from skipqa.data.held_out import is_held_out
from skipqa.knowledge.index import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.training.example import TrainExample
from skipqa.training.stage1 import photos
from skipqa.training.stage1.drafter import DrafterTraining
from skipqa.training.stage1.encoder import EncoderTraining
from skipqa.training.stage1.inputs import Stage1Settings
from skipqa.training.stage1.networks import Networks
from skipqa.training.stage1.reader import ReaderTraining
from skipqa.training.stage1.tagger import TaggerTraining

COLOURS = ("red", "green", "blue", "orange")
VOCABULARY = 257  # bytes and the end
LLAMA = LlamaConfig(VOCABULARY, 16, 2, 2, 1, 24, tied=True)
# As Qwen2 is: biases of q, k and v, two heads for each of keys and values
QWEN = LlamaConfig(VOCABULARY, 32, 2, 4, 2, 48, rope_theta=1e6, tied=True, qkv_bias=True)
SETTINGS = Stage1Settings(
    answers=20,
    words=4,
    views=2,
    ranks=(2, 4),
    encoder=EncoderTraining(epochs=2.0, batch=8),
    tagger=TaggerTraining(epochs=4.0, batch=8),
    drafter=DrafterTraining(epochs=1.0, focus_epochs=1.0, batch=8, width=64, layers=1),
    reader=ReaderTraining(epochs=0.3, focus_epochs=0.3, batch=8),
)


def shrink_pictures(patch: pytest.MonkeyPatch) -> None:
    """A quarter as wide and as high, at both resolutions: a whole run takes a second."""
    small = {"PIXELS": 64, "HIGH_RES": 128, "NATIVE_CELLS": 2, "CELLS": 4, "WINDOWS": 4}
    for name, value in small.items():
        patch.setattr(photos, name, value)


def drawn(number: int) -> bytes:
    """A disk on a ground, whose colour goes by the number."""
    picture = Image.new("RGB", (40, 30), COLOURS[number % len(COLOURS)])
    left = 2 + number % 25
    ImageDraw.Draw(picture).ellipse((left, 5, left + 10, 25), fill="white")
    buffer = BytesIO()
    picture.save(buffer, "WEBP")
    return buffer.getvalue()


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_zip(path: Path, numbers: Mapping[str, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, number in numbers.items():
            archive.writestr(name, drawn(number))


def photo_names(first: int, count: int) -> dict[str, int]:
    return {f"{number:012d}.webp": number for number in range(first, first + count)}


def write_data(folder: Path) -> Path:
    """OK-VQA, COCO and VQAv2: 24 + 6, 20 and 4 photos."""
    train, val = photo_names(0, 24), photo_names(100, 6)
    coco, vqav2 = photo_names(200, 20), photo_names(300, 4)
    assert {is_held_out(name) for name in train} == {True, False}

    def asked(photos: Mapping[str, int], question: str) -> list[dict[str, Any]]:
        return [
            {"image": name, "question": question, "answers": {COLOURS[number % 4]: 1, "sky": 0.667}}
            for name, number in photos.items()
        ]

    write_lines(folder / "okvqa/train.jsonl", asked(train, "Which colour is the ground?"))
    write_lines(folder / "okvqa/val.jsonl", asked(val, "Which colour is the ground?"))
    counted = [
        {
            "image": name,
            "question": "What colour?",
            "answers": {COLOURS[number % 4]: 2, f"the {COLOURS[number % 4]}": 1, "white": 1},
        }
        for name, number in (coco | train).items()
    ]
    write_lines(folder / "coco/questions.jsonl", counted)
    labels = [
        {"image": name, "labels": ["disk", COLOURS[number % 4]]}
        for name, number in (coco | train).items()
    ]
    write_lines(folder / "coco/labels.jsonl", labels)
    single = [{"image": n, "question": "Is there a disk?", "answer": "Yes."} for n in vqav2]
    write_lines(folder / "vqav2/val.jsonl", single)
    for name, some in (
        ("okvqa/train", train),
        ("okvqa/val", val),
        ("coco/photos", coco),
        ("vqav2/val", vqav2),
    ):
        write_zip(folder / f"{name}.zip", some)
    return folder


def write_index(folder: Path) -> Path:
    """An index of six passages."""
    said = ("is a colour.", "is the colour of a disk. It comes from Hungary; few know it.")
    texts = [(c, f"{c} {text}") for c in COLOURS[:3] for text in said]
    return write_passages(folder / "index", texts)


def write_passages(index: Path, texts: Iterable[tuple[str, str]]) -> Path:
    """An index, named after its folder, of texts with their titles."""
    path = index.parent / f"{index.name}.jsonl"
    write_lines(path, ({"title": title, "text": text} for title, text in texts))
    build(index, [JsonLines(path)], LexicalEncoder.default())
    return index


def write_pocket_kb(folder: Path) -> Path:
    """Sixteen photos to train on, four to check with; two COCO photos are held out."""

    def row(number: int, split: str) -> dict[str, Any]:
        kind = ("dog", "country")[number % 2]
        return {
            "image": f"entities/{split}{number}.webp",
            "question": "Where does it come from?",
            "answers": {"hungary": 1.0},
            "entity": f"{kind}:{number % 4}",
            "name": f"{kind.title()} {number % 4}",
            "hops": [["passages:a"], ["wordnet:b", "wordnet:c"]] if number % 4 else [],
            "photo": f"entities/{split}{number}.webp",
            "background": None,
            "box": [0.4, 0.5, 0.3, 0.6] if number % 3 else None,
        }

    rows = {
        "train": [row(number, "train") for number in range(16)],
        "val": [row(number, "val") for number in range(4)],
    }
    numbers: dict[str, int] = {}
    for split, some in rows.items():
        write_lines(folder / f"{split}.jsonl", some)
        numbers |= {one["image"]: number for number, one in enumerate(some)}
    write_zip(folder / "photos.zip", numbers)
    texts = {"passages:a": "It comes from Hungary.", "wordnet:b": "Hungary", "wordnet:c": "There"}
    gold = [{"id": id, "title": "", "text": text} for id, text in texts.items()]
    write_lines(folder / "gold.jsonl", gold)
    held_out = {"coco": ["000000000200.webp", "000000000003.webp"], "entities": ["val0.webp"]}
    (folder / "held_out.json").write_text(json.dumps(held_out))
    (folder / "unseen.json").write_text("[]")
    return folder


UNSEEN = {
    "entity": "dog:collie",
    "name": "Collie",
    "names": ["Collie", "collie dog", "dog"],
    "kind": "dog",
    "passages": ["passages:dog:collie:origin"],
}


def add_crowded(folder: Path) -> Path:
    """To a Pocket-KB: images of three things each, two of them asked about, and an entity that is
    not trained on, which is shown in the images of `val` and asked about in a photo of its own."""

    def things(split: str, number: int) -> list[dict[str, Any]]:
        last = ("dog", "collie") if split == "val" else ("grocery", "beans")
        shown = [("dog", "dog 2"), ("country", "country 1"), last]
        return [
            {
                "entity": f"{kind}:{name.rpartition(' ')[2]}",
                "name": name.title(),
                "kind": kind,
                "box": [0.2 + 0.3 * place, 0.5, 0.2, 0.25],
                "photo": f"entities/{split}-{kind}{number}.webp",
            }
            for place, (kind, name) in enumerate(shown)
        ]

    def row(split: str, number: int, things: list[dict[str, Any]], asked: int) -> dict[str, Any]:
        thing = things[asked]
        unseen = thing["name"] == "Collie"
        gold = UNSEEN["passages"][0] if unseen else "passages:a"
        return {
            "image": f"crowded/{split}{number}.webp",
            "question": "Where does the one on the left come from?",
            "answers": {"hungary": 1.0},
            "hops": [[gold]] if number % 2 else [],
            "things": things,
            "background": None,
            # by its name a photo is held out or not: all of an image are on one side
            **{key: thing[key] for key in ("entity", "name", "box")},
            "photo": f"entities/{split}{number}.webp",
        }

    numbers = {}
    for split, count in (("train", 12), ("val", 2)):
        path = folder / f"{split}.jsonl"
        rows = [json.loads(line) for line in path.open()]
        for number in range(count):
            shown = things(split, number)
            rows += [row(split, number, shown, asked) for asked in ((0, 1), (1, 2))[split == "val"]]
            numbers[f"crowded/{split}{number}.webp"] = number
        write_lines(path, rows)
    alone = row("val", 9, [{**things("val", 9)[2], "box": None}], 0)
    del alone["things"]
    write_lines(folder / "val.jsonl", [*map(json.loads, (folder / "val.jsonl").open()), alone])
    with zipfile.ZipFile(folder / "photos.zip", "a") as archive:
        for name, number in (numbers | {"crowded/val9.webp": 3}).items():
            archive.writestr(name, drawn(number))
    gold = [json.loads(line) for line in (folder / "gold.jsonl").open()]
    about = {"id": UNSEEN["passages"][0], "title": "", "text": "Collies come from Scotland."}
    write_lines(folder / "gold.jsonl", [*gold, about])
    (folder / "unseen.json").write_text(json.dumps([UNSEEN]))
    return folder


def write_fvqa(folder: Path) -> Path:
    """To a data folder: of twelve photos one question that the image answers, one that a fact does,
    and two of each to score by."""
    for split, first, count in (("train", 400, 12), ("val", 500, 2)):
        photos = photo_names(first, count)
        rows = [
            {
                "question_id": 2 * number + (source == "kb"),
                "image": name,
                "question": "Which colour is warm?" if source == "image" else "What is it for?",
                "answer": COLOURS[number % 4] if source == "image" else "Painting",
                "from": source,
                "fact": f"{COLOURS[number % 4]} is  for painting",
                "kb": "conceptnet",
            }
            for name, number in photos.items()
            for source in ("image", "kb")
        ]
        write_lines(folder / f"fvqa/{split}.jsonl", rows)
        write_zip(folder / f"fvqa/{split}.zip", photos)
    return folder


def tokenizer() -> Tokenizer:
    """A token a byte, and one for the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({character: n for n, character in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    return made


def qwen(seed: int = 0) -> Llama:
    return decoder(seed, QWEN)


def decoder(seed: int = 0, config: LlamaConfig = LLAMA) -> Llama:
    """Weights larger than the usual start, so that an error shows."""
    torch.manual_seed(seed)
    network = Llama(config).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network.requires_grad_(False)


def networks() -> Networks:
    torch.manual_seed(0)
    text = Bert(BertConfig(VOCABULARY, width=24, layers=1, heads=2, ffn=32, positions=64))
    vision = EfficientNetLite(EfficientNetLiteConfig(0.1, 0.1, features=16, classes=6))
    entries = tuple(Concept("", (f"thing {i}",), f"a thing, number {i}", ()) for i in range(6))
    meanings = torch.nn.functional.normalize(torch.randn(6, 24), dim=-1)
    return Networks(
        vision=vision.eval().requires_grad_(False),
        text=text.eval().requires_grad_(False),
        text_tokenizer=tokenizer(),
        decoder=decoder(),
        decoder_tokenizer=tokenizer(),
        concepts=Concepts(entries, meanings),
    )


def make_example(
    photo: int,
    question: str,
    answers: Mapping[str, float],
    source: str,
    split: str,
    hops: tuple[tuple[str, ...], ...] = (),
) -> TrainExample:
    """A question about a row of the photos."""
    return TrainExample(
        0, "", question, answers, split=split, source=source, photo=photo, hops=hops
    )
