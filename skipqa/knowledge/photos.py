"""Labelled photos in an index: what the things look like that its passages are about.

Enters: photos with the name of what each shows, and the vision encoder. Leaves in the index's
folder `photos.safetensors`: of each name what the encoder sees of its photos (3 kB) and the name's
embedding, but no photo. A pipeline over the index then knows these things by sight, and asks the
index for them by name. Features of one encoder mean nothing to another, so the file says whose they
are.

Shapes: N names, E features of a view, d text width.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageOps
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from skipqa.backbones.presets.pocket_vision import PocketVision
from skipqa.errors import UserError
from skipqa.files import atomic
from skipqa.types import Prototypes

FILE = "photos.safetensors"
# What a picture of such a thing shows, in the words of questions
SHOWN_AS = {"country": "flag", "grocery": "food"}
CENTRE = 0.8  # of a photo's sides: a view without its border


@dataclass(frozen=True, slots=True)
class LabelledPhoto:
    name: str
    image: Image.Image
    kind: str = ""  # "dog" of a breed; empty where the name says it


def describe(photos: Iterable[LabelledPhoto], vision: PocketVision) -> Prototypes:
    """Several photos of one name are one prototype, their mean."""
    views: dict[tuple[str, str], list[Tensor]] = {}
    for photo in photos:
        name, kind = " ".join(photo.name.split()), SHOWN_AS.get(photo.kind, photo.kind)
        if not name:
            raise UserError("a labelled photo needs a name")
        views.setdefault((name.lower(), kind), []).append(_seen(photo.image, kind, vision))
    if not views:
        raise UserError("no photo to learn from")
    names, kinds = zip(*views, strict=True)
    return Prototypes(
        names,
        kinds,
        torch.stack([torch.stack(some).mean(0) for some in views.values()]),
        vision.meanings(names, kinds),
        vision.folder.name,
    )


def _seen(image: Image.Image, kind: str, vision: PocketVision) -> Tensor:
    """[E] of the photo, mirrored unless that is another flag, and without its border."""
    width, height = image.size
    border = (1 - CENTRE) / 2
    inner = (border * width, border * height, (1 - border) * width, (1 - border) * height)
    shown = [image, image.crop(tuple(map(round, inner)))]  # type: ignore[arg-type]
    if kind != "flag":
        shown.append(ImageOps.mirror(image))
    return torch.stack([vision.pooled(one) for one in shown]).mean(0)


def write(folder: Path, found: Prototypes) -> Path:
    """In place of what the index knew before; whole or not at all."""
    path = folder / FILE
    about = {"names": json.dumps(found.names), "kinds": json.dumps(found.kinds)}
    scale_N1 = found.pooled_NE.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    tensors = {
        "pooled": (found.pooled_NE / scale_N1).round().to(torch.int8),
        "scale": scale_N1.float(),
        "meanings": found.meanings_Nd.half(),
    }
    about |= {"encoder": found.encoder}
    with atomic(path) as partial:
        save_file(tensors, partial, metadata=about | {"sha256": _sha256(tensors, about)})
    return path


def verify(folder: Path) -> list[str]:
    """A message if the file is damaged. One of an earlier release has no checksum, so that only
    what cannot be read is found in it."""
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        read(folder)
    except UserError as error:
        return [str(error)]
    with safe_open(path, framework="pt") as file:
        about = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    expected = about.pop("sha256", None)
    if expected is not None and expected != _sha256(tensors, about):
        return [f"{FILE} fails its sha256 check"]
    return []


def _sha256(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """Of everything in the file, however it is laid out there."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def read(folder: Path) -> Prototypes | None:
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
            names, kinds = (tuple(json.loads(about[key])) for key in ("names", "kinds"))
            packed, scale_N1, meanings = (
                file.get_tensor(key).float() for key in ("pooled", "scale", "meanings")
            )
            encoder = about["encoder"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not len(names) == len(kinds) == len(packed) == len(scale_N1) == len(meanings):
        raise UserError(f"{path} is damaged: {len(names)} names, {len(packed)} prototypes")
    return Prototypes(names, kinds, packed * scale_N1, meanings, encoder)


def of_all(folders: Sequence[Path], encoder: Callable[[], str]) -> Prototypes | None:
    """What several indexes know by sight; a name of two counts as the first has it. Which encoder
    is in use is only asked if there are photos."""
    described = [(folder, found) for folder in folders if (found := read(folder)) is not None]
    if not described:
        return None
    own, known = encoder(), dict[str, tuple[str, Tensor, Tensor]]()
    for folder, found in described:
        if found.encoder != own:
            raise UserError(
                f"the photos in {folder} were described by another vision encoder: "
                f"`skipqa index photos {folder} PHOTOS` describes them again"
            )
        for row in zip(found.names, found.kinds, found.pooled_NE, found.meanings_Nd, strict=True):
            known.setdefault(row[0], row[1:])
    kinds, pooled, meanings = zip(*known.values(), strict=True)
    return Prototypes(tuple(known), kinds, torch.stack(pooled), torch.stack(meanings), own)
