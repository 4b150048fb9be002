"""Questions that passages answer, made from the passages themselves: what retrieval learns from.

Enters: a library with WordNet and the World Factbook in it and, where it was built, Pocket-KB.
Leaves: queries, each with the name of what is asked about (an image would show it), a text, and
the ids of the passages that answer it. A tenth of the passages, and a tenth of Pocket-KB's
entities, are held out; they are also asked for in held-out wordings. Of Pocket-KB only the
training questions are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from skipqa import assets
from skipqa.data.held_out import is_id_held_out
from skipqa.files import check_rows, read_jsonl
from skipqa.knowledge import Library
from skipqa.language import content_words
from skipqa.training.retrieval.paraphrases import (
    Meaning,
    edited,
    held_out_wordings,
    of_field,
    references,
    say,
    train_wording,
    wordings,
)
from skipqa.types import Passage
from skipqa.wordnet import PARTS_OF_SPEECH, Synset, read_synsets

# Where queries come from; the last two are in held-out wordings.
TRAIN = "train.jsonl"  # of Pocket-KB
SOURCES = ("wordnet", "factbook", "pocket-kb", "held-out wordings", "held-out wordings, factbook")
TRAIN_SOURCES, HELD_OUT_SOURCES = SOURCES[:3], SOURCES[3:]
BY_FLAG = Meaning("", "country", "flag", ())

ABOUT_COUNTRY = (
    "What is the {of} of {country}?", "Which {of} does {country} have?", "{of} of {country}",
    "What do you know about the {of} of {country}?", "How is the {of} in {country}?",
    "Tell me the {of} of {country}.",
)  # fmt: skip
ABOUT_KIND = (
    "What kind of {kind} is this?", "Which kind of {kind} does the picture show?",
    "Which {kind} is this?", "What is special about this {kind}?", "What {kind} is it?",
    "What is this {kind} like?",
)  # fmt: skip
ABOUT_KEYS = (
    "What has this {kind} to do with {keys}?", "Is this {kind} {keys}?", "{keys}",
    "Which {keys} does this {kind} have?", "How is it with {keys}?",
)  # fmt: skip
# What a definition says when it answers questions of a relation
CUES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"\b(?:{cue})\b"), relation)
    for cue, relation in (
        ("used|for use", "used_for"),
        (
            "native|found in|inhabiting|region|regions|waters|coast|coasts|africa|america|asia|"
            "europe|australia",
            "lives",
        ),
        ("made of|made from|consisting", "made_of"),
        ("feeds|feeding|eats|eating|diet", "eats"),
        ("containing|contains|holding|holds", "holds"),
        ("worn", "worn_by"),
        ("game|sport", "game"),
        ("family", "family"),
        ("genus", "genus"),
        ("measures|measuring", "measures"),
        ("powered by|propelled by|driven by", "powered_by"),
        ("drawn by|pulled by", "pulled_by"),
        ("protects|protecting|protect", "protects"),
    )
)
LABEL = re.compile(r"(?:^|; )([a-z][a-z ]{3,40}): ")


@dataclass(frozen=True, slots=True)
class Query:
    name: str  # empty where the text stands alone
    text: str
    gold: tuple[str, ...]
    source: str
    held_out: bool

    @property
    def whole(self) -> str:
        return f"{self.name}: {self.text}" if self.name else self.text


def generate(
    library: Library, pocket_kb: Path | None, seed: int, fraction: float = 1.0, reworded: int = 1
) -> list[Query]:
    """All queries that the library can answer, in a fixed order; a `fraction` of those made from
    passages, and each Pocket-KB question in so many other wordings."""
    passages = [library.passage(row) for row in range(len(library))]
    known = {passage.id for passage in passages}

    def drawn(id: str) -> Random | None:
        """Chance that depends on the passage alone."""
        random = Random(f"{seed} {id}")
        return random if random.random() < fraction else None

    found: list[Query] = []
    found += (query for query in from_wordnet(_synsets(), drawn) if set(query.gold) <= known)
    of_lands = [p for p in passages if p.source == "factbook"]
    found += from_factbook(of_lands, drawn)
    found += from_fields(of_lands, seed)
    if pocket_kb is not None:
        asked = from_pocket_kb(pocket_kb, seed, reworded)
        found += (query for query in asked if set(query.gold) <= known)
    return found


def from_wordnet(
    synsets: Mapping[str, Synset], drawn: Callable[[str], Random | None]
) -> Iterator[Query]:
    """A definition without its word, its kind, what it says, its key words: one of these."""
    for synset in synsets.values():
        id = f"wordnet:{synset.id}"
        if (random := drawn(id)) is None:
            continue
        definition = synset.gloss.partition('; "')[0]
        named = {word for lemma in synset.lemmas for word in content_words(lemma)}
        keys = [word for word in content_words(definition) if word not in named]
        above = [synsets[up].lemmas[0] for up in synset.hypernyms if up in synsets]
        kind = random.choice(above) if above else ""
        ways = [relation for cue, relation in CUES if cue.search(definition)]
        if len(keys) >= 4 and random.random() < 0.25:
            yield _query("", " ".join(keys), id)
            continue
        name, plain = random.choice(synset.lemmas), kind.split()[-1] if kind else "thing"
        if kind and ways and random.random() < 0.6:
            meaning = Meaning(random.choice(ways), "thing", "", (("noun", plain),))
            wording = random.choice(wordings("train", meaning.relation))
            yield _query(name, edited(say(wording, meaning, "train", random), random), id)
            continue
        if kind and random.random() < 0.5:
            form = random.choice(ABOUT_KIND)
        elif keys:
            form = random.choice(ABOUT_KEYS)
        else:
            continue
        few = " ".join(random.sample(keys, min(len(keys), random.randint(1, 3))))
        yield _query(name, form.format(kind=plain, keys=few), id)


def from_factbook(
    passages: Iterable[Passage], drawn: Callable[[str], Random | None]
) -> Iterator[Query]:
    """Asks for a passage by its field, by the labels in it, and by words of what it says."""
    for passage in passages:
        if (random := drawn(passage.id)) is None:
            continue
        name, field = _field(passage)
        said = passage.text.removeprefix(f"{name}, ")
        labels = [label for label in LABEL.findall(said) if label not in ("note", "name")]
        country = random.choice(references("train", BY_FLAG))
        asked = [random.choice(labels) if labels and random.random() < 0.5 else field]
        if keys := [word for word in content_words(said) if word not in field]:
            asked.append(" ".join(random.sample(keys, min(len(keys), random.randint(2, 4)))))
        for of in asked:
            text = random.choice(ABOUT_COUNTRY).format(of=of, country=country)
            yield _query(name, text, passage.id)


def from_fields(passages: Iterable[Passage], seed: int) -> Iterator[Query]:
    """Fields that people ask about, in people's words; any part of a field is an answer."""
    parts: dict[str, list[Passage]] = {}
    for passage in passages:
        parts.setdefault(passage.id.partition("#")[0], []).append(passage)
    for id, some in parts.items():
        (name, field), gold = _field(some[0]), tuple(passage.id for passage in some)
        random, held_out = Random(f"{seed} {id} field"), is_id_held_out(id)
        for half in ("train", *(["held_out"] if held_out else [])):
            if known := of_field(half, field):
                text = say(random.choice(known), BY_FLAG, half, random)
                if half == "held_out":
                    yield Query(name, text, gold, HELD_OUT_SOURCES[1], held_out)
                else:
                    yield Query(name, edited(text, random), gold, "factbook", held_out)


def _field(passage: Passage) -> tuple[str, str]:
    """The country's name, and the field in lower case."""
    name, _, place = passage.title.partition(": ")
    return name, place.rpartition("> ")[2].lower()


def from_pocket_kb(folder: Path, seed: int, reworded: int) -> Iterator[Query]:
    """Each training question once for each thing, the thing's name being known; and what is asked
    for, in other words."""
    fields = {"question": str, "name": str, "entity": str, "category": str, "relation": str}
    path = folder / TRAIN
    rows = check_rows(str(path), read_jsonl(path), {**fields, "hops": list})
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        if not row["hops"]:
            continue
        question, relation, category = row["question"], row["relation"], row["category"]
        gold, held_out = tuple(row["hops"][0]), is_id_held_out(row["entity"])
        if (asked := (row["entity"], question)) not in seen:
            seen.add(asked)
            yield Query(row["name"], question, gold, "pocket-kb", held_out)
        if (fact := (row["entity"], relation, *gold)) in seen:
            continue
        seen.add(fact)
        random = Random(f"{seed} {fact}")
        for _ in range(reworded):
            text = train_wording(question, relation, category, random)
            yield Query(row["name"], text, gold, "pocket-kb", held_out)
        if held_out:
            for text in held_out_wordings(question, relation, category):
                yield Query(row["name"], text, gold, HELD_OUT_SOURCES[0], held_out)


def _query(name: str, text: str, id: str) -> Query:
    return Query(name, text, (id,), id.partition(":")[0], is_id_held_out(id))


def _synsets() -> dict[str, Synset]:
    folder = assets.fetch(assets.WORDNET)
    every = (read_synsets(folder, part) for part in PARTS_OF_SPEECH)
    return {synset.id: synset for some in every for synset in some}
