"""Converts downloaded networks once into safetensors files that load quickly.

Enters: a downloaded asset, and the file of a delta that training added. Leaves: a folder under the
cache. Each function makes its folder the first time; an interrupted conversion is never taken for
a finished one. Only this module and `gguf_decoder.py` know the published formats.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from skipqa import assets
from skipqa.assets import Report
from skipqa.backbones.networks import bert, efficientnet_lite, int8, mobile_sam
from skipqa.backbones.weights import gguf_decoder, loading
from skipqa.backbones.weights.gguf_decoder import PublishedDecoder
from skipqa.config import Weights

# Part of every converted folder's name: raise it when what a converter writes changes.
FORMAT = 1


def converted(
    asset: assets.Asset | assets.SplitAsset,
    report: Report,
    write: Callable[[Path, Path], None],
    *,
    delta: Path | None = None,
    kind: str = "",
) -> Path:
    """The folder made from an asset: `write(source, target)` fills it the first time.

    With a trained `delta`, a hash of that file is part of the folder's name, as is the `kind` of
    what is written where there are several.
    """
    marks = ["" if delta is None else assets.sha256_of(delta)[:8], kind]
    name = "-".join([asset.key, *filter(None, marks), str(FORMAT)])
    target = assets.home() / "converted" / name
    if not target.is_dir():
        source = assets.fetch(asset, report)
        report(f"converting {asset.name}" + (" with its trained delta" if delta else ""))
        with assets.building(target) as partial:
            write(source, partial)
    return target


def decoder(
    report: Report = lambda _: None,
    delta: Path | None = None,
    *,
    published: PublishedDecoder = gguf_decoder.SMOLLM2,
    weights: Weights = "float32",
) -> Path:
    """A decoder's weights, plus a trained delta, in the precision asked for; and its tokenizer."""

    def write(source: Path, target: Path) -> None:
        reader = gguf_decoder.open_file(next(source.glob("*.gguf")))
        named = gguf_decoder.weights(reader, published)
        if delta is not None:
            named = loading.tuned_one_by_one(named, delta)
        path = target / "weights.safetensors"
        save_file(dict(int8.stored_as(weights, named)), path)
        if weights == "int8":
            _align(path)
        gguf_decoder.tokenizer(reader).save(str(target / "tokenizer.json"))

    kind = "" if weights == "float32" else weights
    return converted(published.asset, report, write, delta=delta, kind=kind)


def _align(path: Path) -> None:
    """Lets the tensors start at a multiple of `int8.ALIGNMENT`, so that they can be used where they
    are mapped. The format allows spaces after its header, and tensors have whole blocks."""
    padded = path.with_suffix(".padded")
    with path.open("rb") as source, padded.open("wb") as target:
        length = int.from_bytes(source.read(8), "little")
        spaces = -(8 + length) % int8.ALIGNMENT
        target.write((length + spaces).to_bytes(8, "little"))
        target.write(source.read(length) + b" " * spaces)
        shutil.copyfileobj(source, target)
    padded.replace(path)


def text(report: Report = lambda _: None) -> Path:
    """MiniLM's weights; its tokenizer is read from the asset itself."""

    def write(source: Path, target: Path) -> None:
        state = load_file(source / "model.safetensors")
        save_file(bert.from_hub_names(state, bert.MINILM_L6), target / "weights.safetensors")

    return converted(assets.MINILM, report, write)


def vision(report: Report = lambda _: None, delta: Path | None = None) -> Path:
    """EfficientNet-Lite2 with its batch norms folded in, plus a trained delta."""

    def write(source: Path, target: Path) -> None:
        state = torch.load(next(source.glob("*.pth")), map_location="cpu", weights_only=True)
        weights = efficientnet_lite.fold(state)
        if delta is not None:
            weights = loading.tuned(weights, delta)
        save_file(weights, target / "weights.safetensors")

    return converted(assets.EFFICIENTNET_LITE2, report, write, delta=delta)


def segmenter(report: Report = lambda _: None) -> Path:
    """MobileSAM with its batch norms folded in."""

    def write(source: Path, target: Path) -> None:
        state = torch.load(source / "mobile_sam.pt", map_location="cpu", weights_only=True)
        save_file(mobile_sam.from_published_names(state), target / "weights.safetensors")

    return converted(assets.MOBILE_SAM, report, write)


def imagenet_synsets() -> list[str]:
    """WordNet ids (`n07920663`) of the thousand ImageNet classes, in the classifier's order."""
    return files("skipqa.backbones.weights").joinpath("imagenet_synsets.tsv").read_text().split()
