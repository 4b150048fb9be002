"""Pocket-KB from the data folder and the default corpus: rows, pictures, passages, checksums.

Enters: a data folder (`entities/`, `coco/`), WordNet and the World Factbook, flags, a seed.
Leaves one folder: train.jsonl, val.jsonl, photos.zip, passages.jsonl (its own), gold.jsonl (those
that its questions name), gallery.jsonl, held_out.json, unseen.json, manifest.json and README.md,
put in place by one rename. The same seed gives the same bytes.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from skipqa import assets
from skipqa.data import flags as flag_files
from skipqa.data.held_out import choose_unseen
from skipqa.data.pocket_kb.checks import check, photos_of
from skipqa.data.pocket_kb.classes import Nouns, class_entity, synsets_of
from skipqa.data.pocket_kb.corpus import Corpus, Cut, index_cut
from skipqa.data.pocket_kb.countries import Country, read_countries
from skipqa.data.pocket_kb.crowded import PICTURES, Casting, plan_crowded
from skipqa.data.pocket_kb.draft import Photo, Renderable
from skipqa.data.pocket_kb.entities import SOURCE, describe, link
from skipqa.data.pocket_kb.facts import Entity
from skipqa.data.pocket_kb.gallery import gallery_rows
from skipqa.data.pocket_kb.material import IMAGENET, Backgrounds, Material
from skipqa.data.pocket_kb.pictures import Archive, Sources, distinct_flags
from skipqa.data.pocket_kb.sample import plan
from skipqa.data.pocket_kb.summary import counts, readme
from skipqa.errors import UserError
from skipqa.files import check_rows, read_jsonl, write_json, write_jsonl
from skipqa.knowledge.sources import BadRow, Document
from skipqa.wordnet import PARTS_OF_SPEECH, Synset, read_synsets

Progress = Callable[[str, int, int | None], None]
FILES = (
    *("train.jsonl", "val.jsonl", "photos.zip", "passages.jsonl", "gold.jsonl"),
    *("held_out.json", "unseen.json", "gallery.jsonl"),
)
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
    crowded: Mapping[str, int] = PICTURES,
) -> dict[str, Any]:
    """Write the benchmark into `out`, which must not exist, and return its manifest. `crowded` is
    how many pictures of several things each split has."""
    check_places(data, out)
    photos = read_photos(data)
    labels = read_labels(data)
    progress("reading the corpus", 0, 3)
    corpus = Corpus(knowledge.cut)
    corpus.add(knowledge.wordnet)
    corpus.add(knowledge.factbook)
    progress("reading the corpus", 1, 3)
    entities, countries, documents = _entities(data, seed, knowledge, corpus, photos)
    every = {one.key: one for one in (*entities.values(), *(c.entity for c in countries))}
    progress("reading the corpus", 2, 3)
    naming = {key: [entity.names[0]] for key, entity in every.items()}
    popularity = corpus.count_naming(naming, but=f"{SOURCE}:")
    progress("reading the corpus", 3, 3)
    unseen = choose_unseen(keys_with_pictures(photos, entities, countries))
    material = Material(photos, labels, entities, countries, popularity, corpus, unseen, seed)

    with (
        assets.building(out) as folder,
        Archive(data / "entities" / "photos.zip") as subjects,
        Archive(data / "coco" / "photos.zip") as backgrounds,
    ):
        sources = Sources(subjects, backgrounds, knowledge.flags)
        drafts, gallery = _plan(material, sources, crowded, progress)
        pairs = (draft.render(sources, seed) for draft in drafts)
        labelled = gallery_rows(material, gallery, sources)
        rows: list[dict[str, Any]] = []
        shown: list[dict[str, Any]] = []
        with zipfile.ZipFile(folder / "photos.zip", "w", zipfile.ZIP_STORED) as archive:
            total = len(drafts) + len(gallery) + len(countries)
            written = _write_pictures(archive, chain(pairs, labelled))
            for done, row in enumerate(written):
                progress("composing pictures", done, total)
                (rows if done < len(drafts) else shown).append(row)
        progress("composing pictures", total, total)
        check(rows, corpus, every, unseen, frozenset(gallery.values()))
        for split in ("train", "val"):
            write_jsonl(folder / f"{split}.jsonl", [r for r in rows if r["split"] == split])
        write_jsonl(folder / "gallery.jsonl", shown)
        write_jsonl(folder / "passages.jsonl", [_passage(document) for document in documents])
        write_jsonl(folder / "gold.jsonl", gold(rows, corpus))
        write_json(folder / "held_out.json", held_out(rows, material), indent=1)
        write_json(folder / "unseen.json", [about(every[key]) for key in sorted(unseen)], indent=1)
        manifest: dict[str, Any] = {
            "name": "Pocket-KB",
            "seed": seed,
            "command": f"skipqa data pocket-kb --data DATA --out DIR --seed {seed}",
            "counts": counts(rows, shown)
            | {"passages_of_its_own": len(documents), "passages_in_all": len(corpus.texts)},
            "sha256": {name: assets.sha256_of(folder / name) for name in FILES},
            "terms": TERMS,
        }
        manifest["checksum"] = hashlib.sha256(
            "".join(manifest["sha256"][name] for name in FILES).encode()
        ).hexdigest()
        write_json(folder / "manifest.json", manifest, indent=1)
        (folder / "README.md").write_text(readme(manifest), encoding="utf-8")
    return manifest


def _plan(
    material: Material, sources: Sources, crowded: Mapping[str, int], progress: Progress
) -> tuple[list[Renderable], dict[str, str]]:
    """All questions, and the photo of each entity that is shown in the gallery."""
    grounds = Backgrounds(material.labels, material.seed)
    alone, gallery = plan(material, grounds)
    last = {
        split: max((draft.number for draft in alone if draft.split == split), default=0)
        for split in crowded
    }
    casting = Casting(material, grounds, sources, frozenset(gallery.values()))
    drafts: list[Renderable] = [*alone]
    total = 2 * sum(crowded.values())
    for done, draft in enumerate(plan_crowded(material, casting, crowded, last)):
        progress("drawing crowded pictures", done, total)
        drafts.append(draft)
    progress("drawing crowded pictures", total, total)
    return drafts, gallery


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
) -> tuple[dict[str, Entity], list[Country], list[Document]]:
    """Entities by the domain/label of their photos; countries; own documents."""
    nouns = Nouns(knowledge.synsets)
    by_lemma: dict[str, list[Document]] = {}
    for document in knowledge.wordnet:
        for lemma in document.title.split(", "):
            by_lemma.setdefault(lemma.lower(), []).append(document)
    countries = read_countries(corpus, knowledge.factbook, by_lemma)
    described = describe(data / "entities", seed)
    synsets = synsets_of(described, nouns)
    documents = [document for one in described for document in one.documents]
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
    for label in sorted({photo.label for photo in photos if photo.domain == IMAGENET}):
        synset = label.partition("_")[0]
        found = of_synset.get(synset) or class_entity(synset, nouns, corpus)
        if found is not None:
            entities[f"imagenet/{label}"] = found
    return entities, distinct_flags(countries, knowledge.flags), documents


def _passage(document: Document) -> dict[str, str]:
    """As the index reads it back: it puts the file's name before the id."""
    id = document.id.removeprefix(f"{SOURCE}:")
    return {"id": id, "title": document.title, "text": document.text}


def _write_pictures(
    archive: zipfile.ZipFile,
    pairs: Iterable[tuple[dict[str, Any], Callable[[], bytes]]],
) -> Iterator[dict[str, Any]]:
    """Each row when its picture is in the archive; what two rows are about is written once."""
    written: set[str] = set()
    for row, content in pairs:
        if row["image"] not in written:
            written.add(row["image"])
            archive.writestr(zipfile.ZipInfo(row["image"], EPOCH), content())
        yield row


def gold(rows: Sequence[Mapping[str, Any]], corpus: Corpus) -> list[dict[str, str]]:
    """Every passage that a question needs, as the index holds it: to train a reader without one."""
    ids = sorted({id for row in rows for id in row["gold"]})
    return [{"id": id, "title": corpus.title(id), "text": corpus.texts[id]} for id in ids]


def held_out(rows: Sequence[Mapping[str, Any]], material: Material) -> dict[str, list[str]]:
    """Photos of the data folder that must not be trained on if `val` is to mean anything."""
    used = {name for row in rows if row["split"] == "val" for name in photos_of(row)}
    for photo in material.photos:
        entity = material.entity_of(photo)
        if entity is not None and entity.key in material.unseen:
            used.add(f"entities/{photo.image}")
    return {
        kind: sorted(name.partition("/")[2] for name in used if name.startswith(f"{kind}/"))
        for kind in ("entities", "coco")
    }


def about(entity: Entity) -> dict[str, Any]:
    """An unseen entity: whatever is trained on names or passages leaves these out."""
    passages = sorted({id for fact in entity.facts for id in fact.hops[0]})
    return {
        "entity": entity.key,
        "name": entity.names[0],
        "names": list(entity.names),
        "kind": entity.category,
        "passages": passages,
    }


def keys_with_pictures(
    photos: Iterable[Photo], entities: Mapping[str, Entity], countries: Iterable[Country]
) -> frozenset[str]:
    """Of the kinds that may be unseen; encoders know the ImageNet classes from before."""
    labels = {f"{photo.domain}/{photo.label}" for photo in photos}
    found = {entities[label].key for label in labels & entities.keys()}
    of_classes = {key for key in found if key.startswith("class:")}
    return frozenset(found - of_classes | {country.entity.key for country in countries})
