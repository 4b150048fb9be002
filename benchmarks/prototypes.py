"""One labelled photo: how often a thing that was never trained on is known by sight.

Every entity of Pocket-KB has one photo in the gallery. Photos of `val`, cut to the thing they show,
are compared with the gallery's prototypes (`skipqa/nn/prototypes.py`): is the right entity the
nearest of all, among the nearest four, and the nearest of those that were not trained on? The curve
that makes a cosine a probability is fitted on held-out photos of trained things, next to photos of
COCO that show none.

    python benchmarks/prototypes.py --data FOLDER --pocket-kb FOLDER [--components FOLDER]
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import opened
from PIL import Image
from rich.progress import track
from rich.table import Table
from torch import Tensor

from skipqa.cli.console import err, out, prepare_process
from skipqa.cli.labelled import labelled_photos
from skipqa.config import ZoomConfig
from skipqa.costs.environment import write_results
from skipqa.files import read_jsonl
from skipqa.knowledge import photos
from skipqa.nn.prototypes import MIDPOINT, SLOPE
from skipqa.nn.tagger import Tagger
from skipqa.pipeline import load
from skipqa.stages.zoom import crop
from skipqa.tasks.pocket_kb import POCKET_KB
from skipqa.training.confidence import fit_curve
from skipqa.training.stage1 import mixture
from skipqa.training.stage1.pocket_kb import KINDS
from skipqa.types import Box

NEAREST = 4
PHOTOS = 300  # of each kind
Named = tuple[str, str]  # kind and name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pocket-kb", type=Path, required=True)
    parser.add_argument("--components", type=Path, help="default: the bundled ones")
    parser.add_argument("--photos", type=int, default=PHOTOS, help="of each kind")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    pipeline = load(components=options.components)
    vision, tagger = pipeline.backbone.vision, pipeline.components.tagger  # type: ignore[attr-defined]
    assert isinstance(tagger, Tagger)
    folder: Path = options.pocket_kb
    gallery = folder / "gallery.jsonl"
    known = photos.describe(
        labelled_photos(gallery, folder / "photos.zip", lambda *_: None), vision
    )
    names = list(zip(known.kinds, known.names, strict=True))
    rows = read_jsonl(gallery)
    unseen = {
        (photos.SHOWN_AS.get(row["kind"], row["kind"]), row["name"].lower())
        for row in rows
        if row["unseen"]
    }
    prototypes_NH = _hidden(tagger, known.pooled_NE)

    def cosines(images: list[Image.Image]) -> Tensor:
        pooled = [vision.pooled(image) for image in track(images, "looking", console=err)]
        return _hidden(tagger, torch.stack(pooled)) @ prototypes_NH.T

    shown = _of_val(folder, set(names), options.photos, unseen)
    right_P = torch.tensor([names.index(name) for name, _ in shown])
    is_unseen_N = torch.tensor([name in unseen for name in names])
    near_PN = cosines([image for _, image in shown])
    found = {
        "unseen": _accuracy(near_PN, right_P, is_unseen_N[right_P], is_unseen_N),
        "seen": _accuracy(near_PN, right_P, ~is_unseen_N[right_P], ~is_unseen_N),
        "photos": {"unseen": int(is_unseen_N[right_P].sum()), "names": len(names)},
        "used": {"slope": SLOPE, "midpoint": MIDPOINT},
        "fitted": _fitted(options, names, unseen, cosines),
    }
    _show(found)
    err.print(f"written to {write_results(found, 'prototypes', options.out)}")


@torch.inference_mode()
def _hidden(tagger: Tagger, pooled: Tensor) -> Tensor:
    return F.normalize(tagger.hidden(pooled.float()), dim=-1)


def _of_val(
    folder: Path, named: set[Named], count: int, unseen: set[Named]
) -> list[tuple[Named, Image.Image]]:
    """Photos of one thing each, cut to it: so many of unseen things and of others."""
    examples = POCKET_KB.load(folder, "val")
    random.Random(0).shuffle(examples)
    found: dict[str, tuple[Named, Image.Image]] = {}
    left = {True: count, False: count}
    with opened(POCKET_KB.images(folder, "val")) as images:
        for example in examples:
            row = example.record
            kind = KINDS.get(row["entity"].partition(":")[0], "")
            name = (kind, row["name"].lower())
            several = len(row.get("things") or ()) > 1
            if several or name not in named or example.image in found or not left[name in unseen]:
                continue
            left[name in unseen] -= 1
            found[example.image] = (name, _cut(images[example.image](), example.box))
    return list(found.values())


def _cut(image: Image.Image, box: Box | None) -> Image.Image:
    return image if box is None else crop(image, box, ZoomConfig())


def _accuracy(near_PN: Tensor, right_P: Tensor, rows_P: Tensor, alike_N: Tensor) -> dict[str, Any]:
    """Of some photos: among all names, and among those that are alike."""
    near, right = near_PN[rows_P], right_P[rows_P]
    nearest = near.topk(NEAREST, dim=1).indices == right[:, None]
    among = near.masked_fill(~alike_N, -1).argmax(1) == right
    return {
        "first": float(nearest[:, 0].float().mean()),
        f"first {NEAREST}": float(nearest.any(1).float().mean()),
        "first among these": float(among.float().mean()),
    }


def _fitted(
    options: argparse.Namespace, names: list[Named], unseen: set[Named], cosines: Any
) -> dict[str, float]:
    """By logistic regression over all pairs of a photo and a trained name."""
    mixed = mixture.read(options.data, options.pocket_kb)
    place = {row: where for where, row in mixed.photos.items()}
    shown = [
        (photo, names.index((things[0].kind, things[0].name)), things[0].box)
        for photo, things in mixed.checks["held-out"].items()
        if len(things) == 1 and (things[0].kind, things[0].name) in names
    ]
    plain = sorted(
        {e.photo for e in mixed.examples if e.source == "okvqa" and e.split == "held-out"}
    )
    random.Random(0).shuffle(shown)
    random.Random(0).shuffle(plain)
    shown = shown[: options.photos] + [(photo, -1, None) for photo in plain[: options.photos]]
    archives = sorted({place[photo][0] for photo, _, _ in shown})
    with opened(*archives) as images:
        near_PN = cosines([_cut(images[place[photo][1]](), box) for photo, _, box in shown])
    target_PN = torch.zeros_like(near_PN)
    for row, (_, name, _) in enumerate(shown):
        if name >= 0:
            target_PN[row, name] = 1
    trained_N = torch.tensor([name not in unseen for name in names])
    x, y = near_PN[:, trained_N], target_PN[:, trained_N]
    bias, slope = fit_curve([(cosine,) for cosine in x.flatten().tolist()], y.flatten().tolist(), 0)
    return {"slope": slope, "midpoint": -bias / slope}


def _show(found: dict[str, Any]) -> None:
    table = Table("photos of", "nearest of all, %", f"among {NEAREST}, %", "of these alone, %")
    for name in ("unseen", "seen"):
        table.add_row(name, *(f"{100 * value:.1f}" for value in found[name].values()))
    out.print(table)
    out.print(f"fitted {found['fitted']}, used {found['used']}")


if __name__ == "__main__":
    main()
