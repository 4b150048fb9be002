"""What is held out of training: the one place that decides it, by name alone.

Enters: the name of a photo, a row of Pocket-KB, the id of a passage or an entity. Leaves: whether
it is held out. A tenth of each is, chosen by the checksum of its name, so that the choice is the
same in every process and does not depend on what else is read. Pocket-KB also names the photos
that its `val` is made of, and the unseen entities, a fifth of each kind: nothing may be trained on
these.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from skipqa.files import Fields, check_object, check_rows, read_json

Split = Literal["train", "held-out", "val"]
HELD_OUT_OF = 10  # one name in so many
UNSEEN_OF = 5  # one entity of a kind in so many


def is_held_out(photo_name: str) -> bool:
    """A photo of a training set; its folder and its format do not matter."""
    return _checksum(photo_name) % HELD_OUT_OF == 0


def is_fresh(photo_name: str) -> bool:
    """Half of the held-out photos, which later stages train on.

    Stage I knows its own photos too well: what later stages learn from those alone is to trust it
    too far.
    """
    return bool(_checksum(photo_name) // HELD_OUT_OF % 2)


def is_id_held_out(id: str) -> bool:
    """A passage or an entity, of which no training question is asked."""
    return zlib.crc32(id.encode()) % HELD_OUT_OF == 0


def choose_unseen(entities: Iterable[str]) -> frozenset[str]:
    """A fifth of each kind of entity, the kind being what stands before the colon of a key."""
    kinds: dict[str, list[str]] = {}
    for key in set(entities):
        kinds.setdefault(key.partition(":")[0], []).append(key)
    return frozenset(
        key
        for keys in kinds.values()
        for key in sorted(keys, key=_digest)[: round(len(keys) / UNSEEN_OF)]
    )


def unseen_entities(pocket_kb: Path | None) -> dict[str, frozenset[str]]:
    """Entities that nothing may be trained on, each with its names in lower case."""
    if pocket_kb is None:
        return {}
    rows = read_unseen(pocket_kb, {"entity": str, "names": list})
    return {row["entity"]: frozenset(name.lower() for name in row["names"]) for row in rows}


def read_unseen(pocket_kb: Path, fields: Fields) -> list[dict[str, Any]]:
    """What Pocket-KB says of each unseen entity; every row has these fields."""
    path = pocket_kb / "unseen.json"
    return check_rows(str(path), read_json(path), fields)


def pocket_kb_split(row: Mapping[str, Any]) -> Split:
    """Of a row of Pocket-KB's `train`, by the photo of its thing: no photo is on both sides. A flag
    has one picture, which has to be learned: there it is the photo that it was pasted into. A
    crowded picture is made of photos of one side."""
    photo = row.get("photo") or row["image"]
    ground = row.get("background") if photo.startswith("flags/") else None
    return "held-out" if is_held_out(ground or photo) else "train"


def photos_of_val(pocket_kb: Path | None) -> dict[str, frozenset[str]]:
    """Names of the photos in Pocket-KB's `val`, and of all photos of unseen entities, by the
    collection they come from."""
    if pocket_kb is None:
        return {"coco": frozenset(), "entities": frozenset()}
    path = pocket_kb / "held_out.json"
    found = check_object(str(path), read_json(path), {"coco": list, "entities": list})
    return {kind: frozenset(names) for kind, names in found.items()}


def _checksum(photo_name: str) -> int:
    return zlib.crc32(Path(photo_name).stem.encode())


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
