"""Breeds, flowers and groceries: their facts, and the passages of our own that state them.

Enters: this package's tables, the facts and descriptions in the data folder, WordNet in a corpus.
Leaves: documents to add to the corpus, then entities with facts. The sentences are this project's
own; only grocery descriptions are quoted, and those only into the folder that is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from skipqa.data.pocket_kb.corpus import Corpus
from skipqa.data.pocket_kb.countries import Country, through
from skipqa.data.pocket_kb.facts import Entity, Fact, table, templates
from skipqa.data.pocket_kb.text import accepted
from skipqa.files import check_rows, read_jsonl
from skipqa.knowledge.sources import Document

SOURCE = "passages"  # the index names passages after their file: passages.jsonl
ROOTS = {  # the WordNet synsets below which an entity's own synset lies
    "dog": ("n02083346",),
    "cat": ("n02120997",),
    "flower": ("n00017222",),
    "grocery": ("n00021265", "n07555863", "n13134947", "n07809096"),
}
DESCRIPTION = "description"  # a relation, and the document that states it
PLACED = ("origin", "native", "raised", "brand")  # facts that may name a country
WITH_ARTICLE = ("United", "Netherlands", "Democratic", "Alps", "Mediterranean", "Himalayas")
BRUSHING = {
    "Daily Brushing": "daily",
    "Weekly Brushing": "weekly",
    "2-3 Times a Week Brushing": "2 to 3 times a week",
}
SHEDDING = {
    "Seasonal": "seasonal",
    "Occasional": "occasional",
    "Infrequent": "infrequent",
    "Frequent": "frequent",
    "Regularly": "regular",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """A fact before the passages that state it are known: `passage` is the one written for it."""

    relation: str
    texts: tuple[str, ...]
    passage: str
    in_gloss: tuple[str, ...] = ()  # a definition that holds one of these states the fact
    question: str = ""


@dataclass(frozen=True, slots=True)
class Described:
    """An entity with what is to be stated about it."""

    category: str
    labels: tuple[str, ...]  # "dogs/vizsla": domain and label of its photos
    noun: str
    names: tuple[str, ...]
    in_wordnet: bool
    documents: tuple[Document, ...]
    statements: tuple[Statement, ...]

    @property
    def key(self) -> str:
        return f"{self.category}:{slug(self.names[0])}"


def slug(name: str) -> str:
    return "-".join(accepted([name])[-1].replace("'", "").split())


def describe(data: Path, seed: int) -> list[Described]:
    """Every entity of the tables, and each breed with facts but no photos as a distractor."""
    where = data / "dog-breed-facts.jsonl"
    breeds = {
        row["breed"]: row for row in check_rows(str(where), read_jsonl(where), {"breed": str})
    }
    where = data / "grocery-descriptions.jsonl"
    fields = {"product": str, "description": str}
    texts = {
        row["product"]: row["description"]
        for row in check_rows(str(where), read_jsonl(where), fields)
    }
    rows = table("entities.tsv")
    with_photos = {row["breed"] for row in rows}
    rows += [
        {
            "category": "dog",
            "labels": "",
            "noun": "dog",
            "names": breed,
            "in_wordnet": "no",
            "breed": breed,
            "facts": "",
        }
        for breed in breeds
        if breed not in with_photos
    ]
    asked: dict[str, list[dict[str, str]]] = {}
    for question in table("descriptions.tsv"):
        asked.setdefault(question["label"], []).append(question)
    return [_describe(row, breeds, texts, asked, seed) for row in rows]


def _describe(
    row: Mapping[str, str],
    breeds: Mapping[str, Mapping[str, str]],
    texts: Mapping[str, str],
    asked: Mapping[str, Sequence[Mapping[str, str]]],
    seed: int,
) -> Described:
    names = tuple(row["names"].split("|"))
    entity = f"{row['category']}:{slug(names[0])}"
    random = Random(f"{seed}:{entity}")
    documents: list[Document] = []
    statements: list[Statement] = []

    def sentence(kind: str, **blanks: str) -> str:
        wording: str = random.choice(templates()["passages"][kind])
        name = names[0]
        return wording.format(name=name, Name=name[0].upper() + name[1:], **blanks)

    def write(kind: str, **blanks: str) -> str:
        return document(kind, sentence(kind, **blanks))

    def document(kind: str, text: str) -> str:
        id = f"{SOURCE}:{entity}:{kind}"
        documents.append(Document(id, names[0], text, SOURCE))
        return id

    def state(
        relation: str, texts: Sequence[str], passage: str, in_gloss: Sequence[str] = ()
    ) -> None:
        statements.append(Statement(relation, tuple(texts), passage, tuple(in_gloss)))

    given = dict(fact.split("=", 1) for fact in row["facts"].split(";") if fact)
    for relation, value in given.items():
        values = value.split("|")
        if relation in PLACED:
            places = [f"the {v}" if v.startswith(WITH_ARTICLE) else v for v in values]
            passage = write(relation, noun=row["noun"], place=", ".join(places))
            state(relation, values, passage, in_gloss=values)
        elif relation == "family":
            shown = " or ".join(v if v.endswith("family") else f"family {v}" for v in values)
            short = [v.removesuffix(" family") for v in values]
            state("family", [*values, *short], write("botany", family=shown), in_gloss=values)
        elif relation == "genus":
            passage = write("genus", value=value)
            if value.lower() not in map(str.lower, names):  # else the name gives it away
                state("genus", values, passage, in_gloss=[f"genus {value}"])
        else:
            state(relation, values, write(relation, value=value), in_gloss=values)
    if facts := breeds.get(row["breed"]):
        told = list(_breed(facts, sentence))
        for kind in dict.fromkeys(one.passage for one in told):
            of_kind = [one for one in told if one.passage == kind]
            text = " ".join(dict.fromkeys(one.sentence for one in of_kind))
            passage = document(kind, text)
            for one in of_kind:
                state(one.relation, one.texts, passage)
    labels = tuple(label for label in row["labels"].split(";") if label)
    for label in labels:
        product = label.partition("/")[2]
        if row["category"] == "grocery" and product in texts:
            passage = document(DESCRIPTION, texts[product])
            statements += [
                Statement(DESCRIPTION, tuple(q["answers"].split("|")), passage, (), q["question"])
                for q in asked.get(product, ())
            ]
    return Described(
        row["category"],
        labels,
        row["noun"],
        names,
        row["in_wordnet"] == "yes",
        tuple(documents),
        tuple(statements),
    )


class Told(NamedTuple):
    """A fact about a breed in a sentence of the breed's passage of that kind."""

    relation: str
    texts: tuple[str, ...]
    passage: str
    sentence: str


def _breed(facts: Mapping[str, str], sentence: Callable[..., str]) -> Iterator[Told]:
    """What one row of breed facts says; numbers are rounded, gaps are left out."""

    def number(name: str) -> str:
        return f"{float(facts[name]):.0f}" if facts.get(name) else ""

    ends = [f"{end}_{what}" for end in ("min", "max") for what in ("height", "weight")]
    bounds = {name: number(name) for name in ends}
    if all(bounds.values()):
        text = sentence("size", **bounds)
        tall, heavy = bounds["max_height"], bounds["max_weight"]
        yield Told("height", (tall, f"{tall} cm", f"{tall} centimeters"), "body", text)
        yield Told("weight", (heavy, f"{heavy} kg", f"{heavy} kilograms"), "body", text)
    low, high = number("min_expectancy"), number("max_expectancy")
    if low and high:
        yield Told("life", (high, f"{high} years"), "body", sentence("life", min=low, max=high))
    if group := facts.get("group"):
        forms = (group, group.removesuffix(" Group"))
        yield Told("group", forms, "nature", sentence("group", value=group))
    if temperament := facts.get("temperament"):
        traits = tuple(trait.strip().lower() for trait in temperament.split(","))
        shown = f"{', '.join(traits[:-1])} and {traits[-1]}" if traits[1:] else traits[0]
        yield Told("character", traits, "nature", sentence("character", value=shown))
    if often := BRUSHING.get(facts.get("grooming_frequency_category", "")):
        yield Told("brushing", (often,), "care", sentence("brushing", value=often))
    if shedding := SHEDDING.get(facts.get("shedding_category", "")):
        yield Told("shedding", (shedding,), "care", sentence("shedding", value=shedding))


def link(
    described: Sequence[Described],
    corpus: Corpus,
    synsets: Mapping[str, Sequence[str]],
    countries: Mapping[str, Country],
) -> list[Entity]:
    """Entities whose facts know every passage that states them. `synsets` has the ids of the
    WordNet documents about an entity, by its key; `countries` are by name."""
    entities = []
    for one in described:
        facts: list[Fact] = []
        for statement in one.statements:
            answers = accepted(statement.texts)
            glosses = synsets.get(one.key, ())
            gold = (
                *corpus.stating([statement.passage], answers),
                *corpus.stating(glosses, accepted(statement.in_gloss)),
            )
            if not gold:
                continue
            facts.append(Fact(statement.relation, answers, (gold,), statement.question))
            named = next((name for name in statement.texts if name in countries), None)
            if statement.relation in PLACED and named:
                bridge = accepted([named])
                first = corpus.stating([statement.passage, *glosses], bridge)
                facts += through(statement.relation, bridge[0], first, countries[named])
        entities.append(Entity(one.key, one.category, one.noun, one.names, tuple(facts)))
    return entities
