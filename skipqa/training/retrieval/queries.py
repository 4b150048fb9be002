"""Questions that passages answer, made from the passages themselves: what retrieval learns from.

Enters: the passages of a library and, where it was built, Pocket-KB. Leaves: queries, each with the
name of what is asked about (an image would show it), a text, and the ids of the passages that
answer it. A tenth of the passages and of Pocket-KB's entities is held out; some of these are also
asked for in held-out wordings. Of Pocket-KB only the training questions are read, and nothing is
asked of its unseen entities.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from skipqa import assets
from skipqa.data.held_out import is_id_held_out, read_unseen
from skipqa.data.pocket_kb.entities import SOURCE as POCKET_KB_PASSAGES
from skipqa.files import check_rows, read_jsonl
from skipqa.knowledge.sources import BUILT_IN
from skipqa.language import content_words
from skipqa.training.retrieval.corpora import from_articles, from_conceptnet
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
from skipqa.training.retrieval.query import ARTICLES, HELD_OUT_SOURCES, Draw, Query, made_from
from skipqa.types import Passage
from skipqa.wordnet import PARTS_OF_SPEECH, Synset, read_synsets

TRAIN = "train.jsonl"  # of Pocket-KB
WORDNET, FACTBOOK = "wordnet", "factbook"
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
class Amounts:
    fraction: float = 1.0  # of the passages get a question
    most: int = 20_000  # questions made from the passages of one corpus
    reworded: int = 1  # other wordings of each Pocket-KB question


@dataclass(frozen=True, slots=True)
class Unseen:
    """What no question may be about."""

    ids: frozenset[str] = frozenset()  # of passages
    names: frozenset[str] = frozenset()  # in lower case

    @staticmethod
    def of(pocket_kb: Path | None) -> Unseen:
        if pocket_kb is None:
            return Unseen()
        rows = read_unseen(pocket_kb, {"names": list, "passages": list})
        names = (name.lower() for row in rows for name in row["names"])
        return Unseen(frozenset(id for row in rows for id in row["passages"]), frozenset(names))

    def has(self, id: str, *names: str) -> bool:
        return id in self.ids or not self.names.isdisjoint(name.lower() for name in names)


def generate(
    passages: Sequence[Passage], pocket_kb: Path | None, seed: int, amounts: Amounts
) -> list[Query]:
    """What passages and Pocket-KB give, in a fixed order."""
    unseen = Unseen.of(pocket_kb)
    corpora: dict[str, list[Passage]] = {}
    for passage in passages:
        if not unseen.has(passage.id, passage.title, passage.title.partition(": ")[0]):
            kind = passage.source if passage.source in BUILT_IN else ARTICLES
            if passage.source != POCKET_KB_PASSAGES:
                corpora.setdefault(kind, []).append(passage)

    def drawn(kind: str) -> Draw:
        """Chance that depends on the passage alone."""
        fraction = min(amounts.fraction, amounts.most / max(1, len(corpora.get(kind, ()))))

        def draw(id: str) -> Random | None:
            random = Random(f"{seed} {id}")
            return random if random.random() < fraction else None

        return draw

    found: list[Query] = []
    if definitions := {passage.id for passage in corpora.get("wordnet", ())}:
        of_words = from_wordnet(_synsets(), drawn("wordnet"), unseen)
        found += (query for query in of_words if set(query.gold) <= definitions)
    of_lands = corpora.get("factbook", [])
    found += from_factbook(of_lands, drawn("factbook"))
    found += from_fields(of_lands, seed)
    found += from_conceptnet(corpora.get("conceptnet", ()), drawn("conceptnet"))
    found += from_articles(corpora.get(ARTICLES, ()), drawn(ARTICLES))
    if pocket_kb is not None:
        known = {passage.id for passage in passages}
        asked = from_pocket_kb(pocket_kb, seed, amounts.reworded)
        found += (
            query
            for query in asked
            if set(query.gold) <= known and not unseen.has(query.gold[0], query.name)
        )
    return found


def from_wordnet(synsets: Mapping[str, Synset], drawn: Draw, unseen: Unseen) -> Iterator[Query]:
    """A definition without its word, its kind, what it says, its key words: one of these."""
    for synset in synsets.values():
        id = f"wordnet:{synset.id}"
        if unseen.has(id, *synset.lemmas) or (random := drawn(id)) is None:
            continue
        definition = synset.gloss.partition('; "')[0]
        named = {word for lemma in synset.lemmas for word in content_words(lemma)}
        keys = [word for word in content_words(definition) if word not in named]
        above = [synsets[up].lemmas[0] for up in synset.hypernyms if up in synsets]
        kind = random.choice(above) if above else ""
        ways = [relation for cue, relation in CUES if cue.search(definition)]
        if len(keys) >= 4 and random.random() < 0.25:
            yield made_from("", " ".join(keys), id, WORDNET)
            continue
        name, plain = random.choice(synset.lemmas), kind.split()[-1] if kind else "thing"
        if kind and ways and random.random() < 0.6:
            meaning = Meaning(random.choice(ways), "thing", "", (("noun", plain),))
            wording = random.choice(wordings("train", meaning.relation))
            text = edited(say(wording, meaning, "train", random), random)
            yield made_from(name, text, id, WORDNET)
            continue
        if kind and random.random() < 0.5:
            form = random.choice(ABOUT_KIND)
        elif keys:
            form = random.choice(ABOUT_KEYS)
        else:
            continue
        few = " ".join(random.sample(keys, min(len(keys), random.randint(1, 3))))
        yield made_from(name, form.format(kind=plain, keys=few), id, WORDNET)


def from_factbook(passages: Iterable[Passage], drawn: Draw) -> Iterator[Query]:
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
            yield made_from(name, text, passage.id, FACTBOOK)


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


def _synsets() -> dict[str, Synset]:
    folder = assets.fetch(assets.WORDNET)
    every = (read_synsets(folder, part) for part in PARTS_OF_SPEECH)
    return {synset.id: synset for some in every for synset in some}
