"""Pocket-KB from the data folder and the default corpus: rows, pictures, passages, checksums.

Enters: a data folder (`entities/`, `coco/`), WordNet and the World Factbook, flags, a seed.
Leaves one folder: train.jsonl, val.jsonl, photos.zip, passages.jsonl (its own), gold.jsonl (those
that its questions name), held_out.json, manifest.json and README.md, put in place by one rename.
The same seed gives the same bytes.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipqa import assets
from skipqa.data import flags as flag_files
from skipqa.data.pocket_kb.classes import Nouns, class_entity, synsets_of
from skipqa.data.pocket_kb.corpus import Corpus, Cut, index_cut
from skipqa.data.pocket_kb.countries import Country, read_countries
from skipqa.data.pocket_kb.entities import SOURCE, describe, link
from skipqa.data.pocket_kb.facts import Entity
from skipqa.data.pocket_kb.pictures import Archive, distinct_flags
from skipqa.data.pocket_kb.sample import Draft, Photo, plan
from skipqa.data.pocket_kb.text import says
from skipqa.errors import UserError
from skipqa.files import check_rows, read_jsonl, write_json, write_jsonl
from skipqa.knowledge.sources import BadRow, Document
from skipqa.wordnet import PARTS_OF_SPEECH, Synset, read_synsets

Progress = Callable[[str, int, int | None], None]
FILES = ("train.jsonl", "val.jsonl", "photos.zip", "passages.jsonl", "gold.jsonl", "held_out.json")
INPUTS = ("entities/photos.jsonl", "entities/photos.zip", "coco/labels.jsonl", "coco/photos.zip")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the zip format's first moment: a date would change the bytes
TERMS = {
    "questions and own passages": "this project's own words, under its licence",
    "photos of pets": "CC BY-SA 4.0",
    "photos and descriptions of groceries": "MIT",
    "photos of dogs, flowers and ImageNet classes": "research use",
    "COCO photos": "their Flickr terms; COCO labels CC BY 4.0",
    "flags": "public domain (svg-country-flags)",
    "WordNet": "WordNet licence",
    "CIA World Factbook": "public domain",
}


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The default corpus, read once."""

    synsets: Sequence[Synset]
    wordnet: Sequence[Document]
    factbook: Sequence[Document]
    flags: Path
    cut: Cut = index_cut

    @staticmethod
    def default(report: assets.Report = lambda _: None) -> Knowledge:
        from skipqa.knowledge.sources.factbook import Factbook
        from skipqa.knowledge.sources.wordnet import WordNet

        folder = assets.fetch(assets.WORDNET, report)
        assets.fetch(assets.FACTBOOK, report)
        assets.fetch(assets.MINILM, report)  # its vocabulary cuts passages
        return Knowledge(
            [synset for part in PARTS_OF_SPEECH for synset in read_synsets(folder, part)],
            [one for one in WordNet().read() if not isinstance(one, BadRow)],
            [one for one in Factbook().read() if not isinstance(one, BadRow)],
            flag_files.fetch(report),
        )


def build(
    data: Path,
    out: Path,
    seed: int,
    knowledge: Knowledge,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Write the benchmark into `out`, which must not exist, and return its manifest."""
    check_places(data, out)
    photos = read_photos(data)
    labels = read_labels(data)
    progress("reading the corpus", 0, 3)
    corpus = Corpus(knowledge.cut)
    corpus.add(knowledge.wordnet)
    corpus.add(knowledge.factbook)
    progress("reading the corpus", 1, 3)
    entities, countries, documents, naming = _entities(data, seed, knowledge, corpus, photos)
    progress("reading the corpus", 2, 3)
    popularity = corpus.count_naming(naming, but=f"{SOURCE}:")
    progress("reading the corpus", 3, 3)

    drafts = plan(photos, labels, entities, countries, popularity, seed)
    with assets.building(out) as folder:
        rows = _write_pictures(folder / "photos.zip", drafts, data, knowledge.flags, seed, progress)
        check(rows, corpus)
        for split in ("train", "val"):
            write_jsonl(folder / f"{split}.jsonl", [r for r in rows if r["split"] == split])
        write_jsonl(folder / "passages.jsonl", [_passage(document) for document in documents])
        write_jsonl(folder / "gold.jsonl", gold(rows, corpus))
        write_json(folder / "held_out.json", held_out(rows), indent=1)
        manifest: dict[str, Any] = {
            "name": "Pocket-KB",
            "seed": seed,
            "command": f"skipqa data pocket-kb --data DATA --out DIR --seed {seed}",
            "counts": counts(rows, len(documents), len(corpus.texts)),
            "sha256": {name: assets.sha256_of(folder / name) for name in FILES},
            "terms": TERMS,
        }
        manifest["checksum"] = hashlib.sha256(
            "".join(manifest["sha256"][name] for name in FILES).encode()
        ).hexdigest()
        write_json(folder / "manifest.json", manifest, indent=1)
        (folder / "README.md").write_text(readme(manifest), encoding="utf-8")
    return manifest


def check_places(data: Path, out: Path) -> None:
    """Before anything is read: there is a data folder, and none of this name to write."""
    if out.exists():
        raise UserError(f"{out} exists: delete it or choose another folder")
    for name in INPUTS:
        if not (data / name).is_file():
            raise UserError(f"{data / name} does not exist")


def read_photos(data: Path) -> list[Photo]:
    path = data / "entities" / "photos.jsonl"
    fields = dict.fromkeys(("image", "domain", "label", "split"), str)
    rows = check_rows(str(path), read_jsonl(path), fields)
    return [Photo(row["image"], row["domain"], row["label"], row["split"]) for row in rows]


def read_labels(data: Path) -> dict[str, frozenset[str]]:
    """The COCO classes in each photo of coco/photos.zip."""
    path = data / "coco" / "labels.jsonl"
    rows = check_rows(str(path), read_jsonl(path), {"image": str, "labels": list})
    with Archive(data / "coco" / "photos.zip") as archive:
        return {r["image"]: frozenset(r["labels"]) for r in rows if r["image"] in archive}


def _entities(
    data: Path, seed: int, knowledge: Knowledge, corpus: Corpus, photos: Sequence[Photo]
) -> tuple[dict[str, Entity], list[Country], list[Document], dict[str, list[str]]]:
    """Entities by the domain/label of their photos; countries; own documents; names to count."""
    nouns = Nouns(knowledge.synsets)
    by_lemma: dict[str, list[Document]] = {}
    for document in knowledge.wordnet:
        for lemma in document.title.split(", "):
            by_lemma.setdefault(lemma.lower(), []).append(document)
    countries = read_countries(corpus, knowledge.factbook, by_lemma)
    described = describe(data / "entities", seed)
    synsets = synsets_of(described, nouns)
    documents = [document for one in described for document in one.documents]
    naming: dict[str, list[str]] = {}
    corpus.add(documents)
    linked = link(
        described,
        corpus,
        {key: [f"wordnet:{id}" for id in ids] for key, ids in synsets.items()},
        {country.entity.names[0]: country for country in countries},
    )
    entities: dict[str, Entity] = {}
    of_synset: dict[str, Entity] = {}
    for one, entity in zip(described, linked, strict=True):
        entities |= dict.fromkeys(one.labels, entity)
        of_synset |= dict.fromkeys(synsets[one.key] if one.labels else (), entity)
    for label in sorted({photo.label for photo in photos if photo.domain == "imagenet"}):
        synset = label.partition("_")[0]
        found = of_synset.get(synset) or class_entity(synset, nouns, corpus)
        if found is not None:
            entities[f"imagenet/{label}"] = found
    countries = distinct_flags(countries, knowledge.flags)
    for entity in (*entities.values(), *(country.entity for country in countries)):
        naming[entity.key] = [entity.names[0]]
    return entities, countries, documents, naming


def _passage(document: Document) -> dict[str, str]:
    """As the index reads it back: it puts the file's name before the id."""
    id = document.id.removeprefix(f"{SOURCE}:")
    return {"id": id, "title": document.title, "text": document.text}


def _write_pictures(
    path: Path, drafts: Sequence[Draft], data: Path, flags: Path, seed: int, progress: Progress
) -> list[dict[str, Any]]:
    rows = []
    written: set[str] = set()
    with (
        Archive(data / "entities" / "photos.zip") as subjects,
        Archive(data / "coco" / "photos.zip") as backgrounds,
        zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as target,
    ):
        for done, draft in enumerate(drafts):
            progress("composing pictures", done, len(drafts))
            row, content = draft.render(subjects, backgrounds, flags, seed)
            if row["image"] not in written:
                written.add(row["image"])
                target.writestr(zipfile.ZipInfo(row["image"], EPOCH), content())
            rows.append(row)
    progress("composing pictures", len(drafts), len(drafts))
    return rows


def check(rows: Sequence[Mapping[str, Any]], corpus: Corpus) -> None:
    """What must hold of every row; a break is a bug of the builder, not of the data."""
    photos: dict[str, str] = {}
    for row in rows:
        for source in (row["photo"], row["background"]):
            if source is not None and not source.startswith("flags/"):
                assert photos.setdefault(source, row["split"]) == row["split"], source
        *before, last = row["hops"] or [[]]
        assert all(says(corpus.texts[id], row["answers"]) for id in last), row
        assert all(says(corpus.texts[id], [row["bridge"]]) for hop in before for id in hop), row
        assert ("perceptual" in row["subset"]) == (not row["gold"]), row
        assert "small" not in row["subset"] or row["box"][2] * row["box"][3] < 0.1, row


def gold(rows: Sequence[Mapping[str, Any]], corpus: Corpus) -> list[dict[str, str]]:
    """Every passage that a question needs, as the index holds it: to train a reader without one."""
    ids = sorted({id for row in rows for id in row["gold"]})
    return [{"id": id, "title": corpus.title(id), "text": corpus.texts[id]} for id in ids]


def held_out(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Photos of the data folder that must not be trained on if `val` is to mean anything."""
    used = {s for r in rows if r["split"] == "val" for s in (r["photo"], r["background"]) if s}
    return {
        kind: sorted(name.partition("/")[2] for name in used if name.startswith(f"{kind}/"))
        for kind in ("entities", "coco")
    }


def counts(rows: Sequence[Mapping[str, Any]], passages: int, corpus: int) -> dict[str, Any]:
    def by(names: Callable[[Mapping[str, Any]], Sequence[str]]) -> dict[str, dict[str, int]]:
        found: dict[str, Counter[str]] = {}
        for row in rows:
            for name in names(row):
                found.setdefault(name, Counter())[row["split"]] += 1
        return {name: dict(sorted(found[name].items())) for name in sorted(found)}

    return {
        "rows": dict(sorted(Counter(row["split"] for row in rows).items())),
        "pictures": len({row["image"] for row in rows}),
        "passages_of_its_own": passages,
        "passages_in_all": corpus,
        "category": by(lambda row: [row["category"]]),
        "subset": by(lambda row: row["subset"] or ["ordinary"]),
        "relation": by(lambda row: [row["relation"]]),
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
        "An index of the default corpus and the passages here:",
        "",
        "    skipqa index build DIR/index wordnet factbook DIR/passages.jsonl",
        "",
        "Photos in held_out.json are those of `val`: leave them out of any training.",
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
