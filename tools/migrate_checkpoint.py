"""Rename what a folder of components of version 0.1 calls otherwise, once and in place.

    python tools/migrate_checkpoint.py runs/stage1

Weights stay as they are, bit for bit; only names in the headers and in settings.toml change.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path

from skipqa.files import atomic

FILES = {"expectation.safetensors": "concept_prior.safetensors"}
COMPONENTS = {"Expectation": "ConceptPriorHead"}
TENSORS = {"of_share.": "of_prob."}
SETTINGS = {
    r"^least_share\b": "min_prob",
    r"^nats\b": "min_information",
    r"^passages_beside_fused\b": "passages_with_fused",
    r'^edges = "share"': 'edges = "fraction"',
}


def migrate(folder: Path) -> list[str]:
    """What was changed, in words."""
    done = []
    for old, new in FILES.items():
        if (folder / old).exists():
            (folder / old).rename(folder / new)
            done.append(f"{old} is {new}")
    done += [f"header of {path.name}" for path in folder.glob("*.safetensors") if _rename(path)]
    path = folder / "settings.toml"
    if path.exists():
        text = before = path.read_text(encoding="utf-8")
        for old, new in SETTINGS.items():
            text = re.sub(old, new, text, flags=re.MULTILINE)
        if text != before:
            path.write_text(text, encoding="utf-8")
            done.append(path.name)
    return done


def _rename(path: Path) -> bool:
    """A safetensors file is the header's length, the header as JSON, then the data."""
    contents = path.read_bytes()
    (length,) = struct.unpack("<Q", contents[:8])
    header = json.loads(contents[8 : 8 + length])
    about = header["__metadata__"]
    about["component"] = COMPONENTS.get(about["component"], about["component"])
    renamed = {_named(name): value for name, value in header.items()}
    text = json.dumps(renamed, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if json.loads(text) == json.loads(contents[8 : 8 + length]):
        return False
    with atomic(path) as partial:
        partial.write_bytes(struct.pack("<Q", len(text)) + text + contents[8 + length :])
    return True


def _named(name: str) -> str:
    for old, new in TENSORS.items():
        name = name.replace(old, new)
    return name


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(f"{argument}: {', '.join(migrate(Path(argument))) or 'nothing to change'}")
