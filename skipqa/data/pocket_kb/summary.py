"""What was built, in numbers and in a README.

Enters: the rows of a build, or its manifest. Leaves: counts by category, subset and way of asking,
and the text of the folder's README.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def counts(
    rows: Sequence[Mapping[str, Any]], gallery: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    def by(names: Callable[[Mapping[str, Any]], Sequence[str]]) -> dict[str, dict[str, int]]:
        found: dict[str, Counter[str]] = {}
        for row in rows:
            for name in names(row):
                found.setdefault(name, Counter())[row["split"]] += 1
        return {name: dict(sorted(found[name].items())) for name in sorted(found)}

    return {
        "rows": dict(sorted(Counter(row["split"] for row in rows).items())),
        "pictures": len({row["image"] for row in rows}),
        "gallery": len(gallery),
        "unseen_entities": dict(Counter(row["kind"] for row in gallery if row["unseen"])),
        "category": by(lambda row: [row["category"]]),
        "subset": by(lambda row: row["subset"] or ["ordinary"]),
        "relation": by(lambda row: [row["relation"]]),
        "asked_by": by(lambda row: [row["asked_by"]] if "asked_by" in row else []),
    }


def readme(manifest: Mapping[str, Any]) -> str:
    def table(what: str) -> Iterator[str]:
        yield f"| {what} | train | val |"
        yield "|---|---|---|"
        for name, split in manifest["counts"][what].items():
            yield f"| {name} | {split.get('train', 0)} | {split.get('val', 0)} |"
        yield ""

    lines = [
        "# Pocket-KB",
        "",
        "Questions whose answers need what a photo shows and a passage that tells more about it.",
        f"Made by `{manifest['command']}`.",
        "",
        *table("category"),
        *table("subset"),
        *table("asked_by"),
        "An index of the default corpus and the passages here:",
        "",
        "    skipqa index build DIR/index wordnet factbook DIR/passages.jsonl",
        "",
        "Photos in held_out.json are those of `val` and of unseen entities: leave them out of any",
        "training. unseen.json has those entities: leave their names and passages out, too.",
        "gallery.jsonl has a labelled picture of each entity, which no question is about.",
        "",
        "Terms:",
        "",
        *(f"- {what}: {terms}" for what, terms in manifest["terms"].items()),
        "",
        "sha256:",
        "",
        *(f"- {name}: {digest}" for name, digest in manifest["sha256"].items()),
        f"- all: {manifest['checksum']}",
        "",
    ]
    return "\n".join(lines)
