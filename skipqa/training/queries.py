"""Questions that passages answer, made from the passages themselves: what retrieval learns from.

Enters: an index with WordNet and the World Factbook in it and, where it was built, Pocket-KB.
Leaves: queries, each with the name of what is asked about (a picture would show it), a text, and
the ids of the passages that answer it. A tenth of the passages, and a tenth of Pocket-KB's
entities, ask no question that is trained on. Of Pocket-KB only the training questions are read.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from skipqa import assets
from skipqa.data.files import check_rows, read_jsonl
from skipqa.knowledge import Index
from skipqa.language import content_words
from skipqa.types import Passage
from skipqa.wordnet import PARTS_OF_SPEECH, Synset, read_synsets

HELD_OUT_OF = 10

COUNTRY = (
    "this country", "this nation", "this state", "the country with this flag",
    "the nation that flies this flag", "the country that this flag belongs to",
    "the state whose flag is shown",
)  # fmt: skip
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
# What a definition says when it answers the question beside it
CUES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(rf"\b(?:{cue})\b"), asked)
    for cue, asked in (
        ("used|for use", ("What is this {kind} used for?", "What do people do with this {kind}?")),
        (
            "native|found in|inhabiting|region|regions|waters|coast|coasts|africa|america|asia|"
            "europe|australia",
            ("Where does this {kind} live?", "Where in the world is this {kind} native to?",
             "Which place is the natural home of this {kind}?", "Where can one find this {kind}?"),
        ),
        ("made of|made from|consisting", ("What is this {kind} made of?",)),
        ("feeds|feeding|eats|eating|diet", ("What does this {kind} eat?",)),
        ("containing|contains|holding|holds", ("What does this {kind} hold?",)),
        ("worn", ("Who wears this {kind}?", "Where on the body is this {kind} worn?")),
        ("game|sport", ("In which game is this {kind} used?",)),
        ("family|genus", ("Which genus does this {kind} belong to?",
                          "What is the family of this {kind}?")),
    )
)  # fmt: skip
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


def generate(index: Index, pocket_kb: Path | None, seed: int, share: float = 1.0) -> list[Query]:
    """All queries that the index can answer, in a fixed order; a `share` of those made from
    passages."""
    passages = [index.passage(row) for row in range(len(index))]
    known = {passage.id for passage in passages}

    def wanted(id: str) -> Random | None:
        """Chance that depends on the passage alone."""
        random = Random(f"{seed} {id}")
        return random if random.random() < share else None

    found: list[Query] = []
    found += (query for query in from_wordnet(_synsets(), wanted) if set(query.gold) <= known)
    found += from_factbook((p for p in passages if p.source == "factbook"), wanted)
    if pocket_kb is not None:
        found += (query for query in from_pocket_kb(pocket_kb) if set(query.gold) <= known)
    return found


def is_held_out(name: str) -> bool:
    return zlib.crc32(name.encode()) % HELD_OUT_OF == 0


def from_wordnet(
    synsets: Mapping[str, Synset], wanted: Callable[[str], Random | None]
) -> Iterator[Query]:
    """A definition without its word, its kind, what it says, its key words: one of these."""
    for synset in synsets.values():
        id = f"wordnet:{synset.id}"
        if (random := wanted(id)) is None:
            continue
        definition = synset.gloss.partition('; "')[0]
        named = {word for lemma in synset.lemmas for word in content_words(lemma)}
        keys = [word for word in content_words(definition) if word not in named]
        above = [synsets[up].lemmas[0] for up in synset.hypernyms if up in synsets]
        kind = random.choice(above) if above else ""
        ways = [asked for cue, asked in CUES if cue.search(definition)]
        if len(keys) >= 4 and random.random() < 0.25:
            yield _query("", " ".join(keys), id)
            continue
        if kind and ways and random.random() < 0.6:
            form = random.choice(random.choice(ways))
        elif kind and random.random() < 0.5:
            form = random.choice(ABOUT_KIND)
        elif keys:
            form = random.choice(ABOUT_KEYS)
        else:
            continue
        few = " ".join(random.sample(keys, min(len(keys), random.randint(1, 3))))
        text = form.format(kind=kind.split()[-1] if kind else "thing", keys=few)
        yield _query(random.choice(synset.lemmas), text, id)


def from_factbook(
    passages: Iterable[Passage], wanted: Callable[[str], Random | None]
) -> Iterator[Query]:
    """Asks for a passage by its field, by the labels in it, and by words of what it says."""
    for passage in passages:
        if (random := wanted(passage.id)) is None:
            continue
        name, _, place = passage.title.partition(": ")
        field = place.rpartition("> ")[2].lower()
        said = passage.text.removeprefix(f"{name}, ")
        labels = [label for label in LABEL.findall(said) if label not in ("note", "name")]
        country = random.choice(COUNTRY)
        asked = [random.choice(labels) if labels and random.random() < 0.5 else field]
        if keys := [word for word in content_words(said) if word not in field]:
            asked.append(" ".join(random.sample(keys, min(len(keys), random.randint(2, 4)))))
        for of in asked:
            text = random.choice(ABOUT_COUNTRY).format(of=of, country=country)
            yield _query(name, text, passage.id)


def from_pocket_kb(folder: Path) -> Iterator[Query]:
    """Each training question once for each thing, the thing's name being known."""
    fields = {"question": str, "name": str, "entity": str, "hops": list}
    rows = check_rows(str(folder / "train.jsonl"), read_jsonl(folder / "train.jsonl"), fields)
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if row["hops"] and (asked := (row["entity"], row["question"])) not in seen:
            seen.add(asked)
            gold = tuple(row["hops"][0])
            held_out = is_held_out(row["entity"])
            yield Query(row["name"], row["question"], gold, "pocket-kb", held_out)


def _query(name: str, text: str, id: str) -> Query:
    return Query(name, text, (id,), id.partition(":")[0], is_held_out(id))


def _synsets() -> dict[str, Synset]:
    folder = assets.fetch(assets.WORDNET)
    every = (read_synsets(folder, part) for part in PARTS_OF_SPEECH)
    return {synset.id: synset for some in every for synset in some}
