"""Countries through their flags: what the World Factbook says of each, as facts.

Enters: the factbook's documents in a corpus. Leaves: a country for every state that has a capital
and an internet code, which is also how its flag is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from skipqa.data.pocket_kb.corpus import Corpus
from skipqa.data.pocket_kb.facts import Entity, Fact
from skipqa.data.pocket_kb.text import accepted
from skipqa.knowledge.sources import Document

CAPITAL = re.compile(r"name: ([^;(\[,]+?)(?: \(([^)]+)\))?[;,]")
CURRENCY = re.compile(r"(?:Currency: )?([^();:]+?) \([A-Z]{3}\)")
LANGUAGE = re.compile(
    r"([A-Z][\w-]+(?: [A-Z][\w-]+)?)(?: \(or [^)]*\))?(?: [\d.]+%)? \((?:[^()]*\b)?official\b"
)
IN_LANGUAGE = re.compile(r" in [A-Z]\w+$")  # "Chisinau in Romanian"
SINGULAR = {  # of currencies whose plural is not English
    "kroner": "krone",
    "kronor": "krona",
    "kronur": "krona",
    "koruny": "koruna",
    "zlotych": "zloty",
    "leke": "lek",
    "leva": "lev",
    "lei": "leu",
    "maloti": "loti",
    "colones": "colon",
    "quetzales": "quetzal",
    "meticais": "metical",
}
CODE = re.compile(r"^\.([a-z]{2})\b|metropolitan France - \.(fr)")
PEAK = re.compile(r"highest point: ([^;(\d/]+?)(?: \((\w+)\))?(?: \([^)]*\))? -?[\d,.]+ ?m?\b")
PEAK_WORDS = re.compile(r"^(?:Mount|Mont|Monte|Cerro|Volcan|Pico|Jebel|Jabal) ")
FREED = re.compile(
    r"^(?:\d{1,2} \w+ )?(\d{4}) \(from (?:the )?([A-Z]\w+(?: [A-Z]\w+)*)(?: administration)?\)"
)
YEAR = re.compile(r"\b\d{4}\b")
ISO_OF_CODE = {"uk": "gb"}  # the one state whose internet code is not its ISO code
OTHER_NAMES = {
    "UK": ("UK", "United Kingdom", "Britain", "Great Britain", "England"),
    "US": ("US", "United States", "USA", "America"),
}
# What a person may call the regions that the factbook's maps are named after.
PARTS = {
    "Central America and the Caribbean": ("Central America", "Caribbean", "North America"),
    "Middle East": ("Asia", "Western Asia"),
    "Southeast Asia": ("Asia",),
    "Arctic Region": ("Europe", "Arctic"),
}
CFA = (
    "Communaute Financiere Africaine francs",
    "Cooperation Financiere en Afrique Centrale francs",
)
FIELDS = {
    "capital": ("government:capital",),
    "currency": ("economy:exchange-rates",),
    "language": ("people-and-society:languages",),
    "part": ("geography:map-references", "geography:location"),
    "code": ("communications:internet-country-code",),
    "peak": ("geography:elevation",),
    "freed_in": ("government:independence",),
    "freed_from": ("government:independence",),
}
NO_COUNTRY = ("European Union",)
IN_MULTIHOP = ("capital", "currency", "language", "code", "peak")


@dataclass(frozen=True, slots=True)
class Country:
    entity: Entity
    iso: str  # of its flag

    @property
    def flag(self) -> str:
        """As a row names the picture."""
        return f"flags/{self.iso}.png"


def read_countries(
    corpus: Corpus, documents: Sequence[Document], glosses: Mapping[str, Sequence[Document]]
) -> list[Country]:
    """`glosses` are WordNet's documents by lower-case lemma: some state capitals and continents."""
    by_code: dict[str, dict[str, Document]] = {}
    for document in documents:
        _, code, name = document.id.split(":", 2)
        by_code.setdefault(code, {})[name] = document
    countries = []
    for fields in by_code.values():
        internet = CODE.search(_text(fields, "communications:internet-country-code"))
        independence = _text(fields, "government:independence")
        if internet is None or not independence or independence.startswith("none"):
            continue
        name = fields["government:independence"].title.partition(":")[0]
        if name in NO_COUNTRY:
            continue
        code = internet[1] or internet[2]
        iso = ISO_OF_CODE.get(code, code)
        facts = tuple(_facts(corpus, fields, name, glosses))
        names = (name, *next((forms for forms in OTHER_NAMES.values() if name in forms), ()))
        countries.append(Country(Entity(f"country:{iso}", "country", "flag", names, facts), iso))
    return countries


def _text(fields: Mapping[str, Document], name: str) -> str:
    return fields[name].text if name in fields else ""


def _facts(
    corpus: Corpus,
    fields: Mapping[str, Document],
    name: str,
    glosses: Mapping[str, Sequence[Document]],
) -> Iterator[Fact]:
    for relation, texts in _stated(fields):
        answers = accepted(texts)
        ids = [fields[field].id for field in FIELDS[relation] if field in fields]
        gold = corpus.stating(ids, answers)
        if relation == "language":  # not the passage with a sentence in that language
            gold = tuple(id for id in gold if "official" in corpus.texts[id])
        if relation == "capital":  # "Paris: the capital and largest city of France"
            ids = [d.id for text in texts for d in glosses.get(text.lower(), ())]
            of_country = corpus.stating(ids, accepted([name]))
            gold += tuple(
                id
                for id in corpus.stating(ids, answers)
                if id in of_country and "capital" in corpus.texts[id]
            )
        if relation == "part":  # "France: a republic in western Europe"
            ids = [d.id for d in glosses.get(name.lower(), ())]
            gold += corpus.stating(ids, answers)
        if gold:
            yield Fact(relation, answers, (gold,), blanks=(("country", "flag"),))


def _stated(fields: Mapping[str, Document]) -> Iterator[tuple[str, list[str]]]:
    if match := CAPITAL.search(_text(fields, "government:capital")):
        text = _text(fields, "government:capital")
        if "capital)" not in text and "no official capital" not in text:  # one seat only
            names = [IN_LANGUAGE.sub("", name) for name in match.groups() if name]
            names = [name for name in names if name[0].isupper() and len(name.split()) <= 3]
            yield "capital", [*names, *(["Washington DC"] if names == ["Washington"] else [])]
    if match := CURRENCY.search(_text(fields, "economy:exchange-rates")):
        words = match[1].strip()
        last = words.split()[-1]
        short = [f"CFA {last}", f"CFA {_singular(last)}"] if words in CFA else []
        yield "currency", [words, _singular(words), last, _singular(last), *short]
    if languages := LANGUAGE.findall(_text(fields, "people-and-society:languages").split(";")[0]):
        words = [
            word for name in languages if " " in name for word in name.split() if word != "Language"
        ]
        yield "language", [*languages, *words, *(["Chinese"] if "Mandarin" in languages else [])]
    part = _text(fields, "geography:map-references").partition(";")[0]
    if re.fullmatch(r"[A-Z][a-z]+(?: \w+)*", part):
        yield "part", [part, *PARTS.get(part, ())]
    if match := re.match(r"\.([a-z]{2})$", _text(fields, "communications:internet-country-code")):
        yield "code", [match[1]]
    match = PEAK.search(_text(fields, "geography:elevation"))
    if match and match[1][0].isupper() and len(match[1].split()) <= 4:
        names = [name for name in (match[1], match[2], *match[1].split(" on ")) if name]
        yield "peak", [*names, *(PEAK_WORDS.sub("", name) for name in names)]
    independence = _text(fields, "government:independence")
    if match := FREED.search(independence):
        if len(set(YEAR.findall(independence))) == 1:  # else people count from other years too
            yield "freed_in", [match[1]]
        yield "freed_from", [match[2], *OTHER_NAMES.get(match[2], ())]


def _singular(words: str) -> str:
    *before, last = words.split()
    if last in SINGULAR:
        return " ".join((*before, SINGULAR[last]))
    if words.endswith("ies"):
        return words.removesuffix("ies") + "y"
    return words.removesuffix("s")


def through(kind: str, bridge: str, first: tuple[str, ...], country: Country) -> Iterator[Fact]:
    """Questions about the country that passages `first` tie something else to by `kind`."""
    for fact in country.entity.facts:
        if fact.relation in IN_MULTIHOP:
            hops = (first, *fact.hops)
            yield replace(fact, hops=hops, bridge=bridge, blanks=(("country", kind),))
