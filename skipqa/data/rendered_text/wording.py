"""What is written on things, and what is asked about it.

Enters: countries with their facts. Leaves: texts for each thing, the questions about what is
written there and, where the text names a place, about what a passage says of it. Every name
belongs to one split, by the checksum of it.
"""

from __future__ import annotations

import string
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from skipqa.data.pocket_kb.corpus import Corpus
from skipqa.data.pocket_kb.countries import Country
from skipqa.data.pocket_kb.text import accepted, plain, says

VAL_OF = 4  # one name in so many is for val
MOST_LETTERS = 15  # of a name
PHRASES = (
    "no entry,one way,keep left,keep right,slow down,exit,car park,bus stop,fire exit,no parking,"
    "public beach,city museum,town hall,old market,wet floor,mind the step,staff only,open today,"
    "closed,for sale,ice cream,fresh fish,free wifi,night market,boat rental,dog park,bike lane,"
    "school zone,harbour tour,ticket office,lost property,quiet zone,first aid,garden centre,"
    "picnic area,private road,road works,steep hill,ferry,taxi,library,swimming pool,art gallery"
).split(",")
TRADES = (
    "bakery,florist,butcher,barber,pharmacy,bookshop,tailor,jeweller,hardware,grocer,optician,"
    "stationer,tobacconist,shoe repair,toy shop,music store,bike shop,wine shop"
).split(",")
OWNERS = (
    "moretti,harper,okafor,lindgren,duval,petrov,nakamura,silva,becker,novak,osman,walsh,ferreira,"
    "hansen,romano,keller,barnes,castillo,fischer,larsen,murray,tanaka,weber,doyle"
).split(",")
GOODS = (
    "plum jam,honey,olives,pickles,peanut butter,mustard,salsa,cherry jam,apple sauce,chutney,"
    "coffee beans,green tea,brown sugar,sea salt,paprika,cinnamon,oregano,lentils,red beans,"
    "black pepper,maple syrup,marmalade,horseradish,pesto,curry paste,dried figs,almonds,raisins"
).split(",")
DRINKS = (
    "ginger ale,apple cider,root beer,lemonade,olive oil,soy sauce,tonic water,red wine,white rum,"
    "fish sauce,cola,mineral water,grape juice,iced tea,rice vinegar,orange juice,stout,gin,vodka,"
    "brandy,sesame oil,shampoo,malt vinegar,elderflower"
).split(",")
WRITTEN = {
    "sign": (
        "What does the sign say?",
        "What is written on the sign?",
        "What words are on the sign?",
    ),
    "shop": ("What does the shop front say?", "What is the name of the shop?"),
    "jar": ("What does the label on the jar say?", "What is written on the jar?"),
    "bottle": ("What does the label on the bottle say?", "What is written on the bottle?"),
    "plate": ("What is on the number plate?", "What does the license plate read?"),
    "number": ("What number is on the bus?", "What is the number of the bus?"),
    "destination": ("Where is the bus going?", "What is the destination of the bus?"),
}
KNOWN = {
    "country": (
        "In which country is the city named on the {noun}?",
        "What country is the city on the {noun} the capital of?",
    ),
    "capital": ("What is the capital of the country named on the {noun}?",),
    "currency": (
        "What currency is used in the country named on the {noun}?",
        "What money do people pay with in the country on the {noun}?",
    ),
    "language": ("What is an official language of the country named on the {noun}?",),
    "part": ("In which part of the world is the country named on the {noun}?",),
}
# How a thing names a place, around the name
NAMING = {
    "city": {"sign": ("{}", "welcome to|{}"), "shop": ("cafe {}", "hotel {}"), "bus": ("{}",)},
    "country": {"sign": ("{}",), "jar": ("product of|{}",), "bottle": ("wine of|{}", "made in|{}")},
}


@dataclass(frozen=True, slots=True)
class Known:
    """A question that a passage answers once the text is read."""

    relation: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A city or a country, and what may be asked about it."""

    name: str
    kind: str  # "city", "country"
    known: tuple[Known, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """What one thing says: lines, and what may be asked about them."""

    lines: tuple[str, ...]
    written: tuple[tuple[str, tuple[str, ...]], ...]  # (question, answers)
    place: Place | None = None

    @property
    def whole(self) -> str:
        return " ".join(self.lines)


def split_of(name: str) -> str:
    return "val" if zlib.crc32(plain(name).encode()) % VAL_OF == 0 else "train"


def places(countries: Sequence[Country], corpus: Corpus) -> list[Place]:
    """Countries and capitals with a short plain name, each with passages that state the answer."""
    found: list[Place] = []
    for country in countries:
        name = country.entity.names[0]
        facts = {fact.relation: fact for fact in country.entity.facts}
        known = [
            Known(relation, fact.answers, fact.gold)
            for relation, fact in facts.items()
            if relation in KNOWN
        ]
        if _short(name) and known:
            found.append(Place(name, "country", tuple(known)))
        if "capital" in facts:
            capital = facts["capital"]
            city = string.capwords(capital.answers[0])
            names = accepted(country.entity.names)
            stated = tuple(
                id
                for id in capital.gold
                if says(f"{corpus.title(id)} {corpus.texts[id]}", names)
                and says(corpus.texts[id], capital.answers[:1])
            )
            if _short(city) and stated and plain(city) != plain(name):
                found.append(Place(city, "city", (Known("country", names, stated),)))
    return found


def _short(name: str) -> bool:
    return name.isascii() and len(name) <= MOST_LETTERS and name.replace(" ", "").isalpha()


def draw_text(
    carrier: str,
    split: str,
    named: Mapping[str, Sequence[Place]],
    names_place: float,
    random: Random,
) -> Text:
    """What a thing says; with probability `names_place` a place's name, where it can carry one."""
    kinds = [kind for kind, ways in NAMING.items() if carrier in ways]
    if carrier == "plate":
        return _plate(random)
    if kinds and (carrier == "bus" or random.random() < names_place):
        place = random.choice(named[random.choice(kinds)])
        wording = random.choice(NAMING[place.kind][carrier])
        if carrier == "bus":
            return _bus(place, random)
        lines = tuple(wording.format(place.name).split("|"))
        return Text(lines, _asked(carrier, " ".join(lines)), place)
    if carrier == "shop":
        owner = random.choice(_of_split(OWNERS, split))
        lines = (f"{owner} {random.choice(TRADES)}",)
    else:
        source = {"sign": PHRASES, "jar": GOODS, "bottle": DRINKS}[carrier]
        said = random.choice(_of_split(source, split))
        # A narrow thing has a word on each line
        lines = tuple(said.split()) if carrier == "bottle" else (said,)
    return Text(lines, _asked(carrier, " ".join(lines)))


def cased(lines: Iterable[str], random: Random) -> tuple[str, ...]:
    """In capitals, or every word with one; digits stay."""
    upper = random.random() < 0.6
    return tuple(line.upper() if upper else string.capwords(line) for line in lines)


def _of_split(names: Sequence[str], split: str) -> list[str]:
    return [name for name in names if split_of(name) == split]


def _asked(carrier: str, said: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((question, (said,)) for question in WRITTEN[carrier])


def _plate(random: Random) -> Text:
    letters = [random.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(5)]
    digits = f"{random.randint(10, 99)}"
    said = f"{''.join(letters[:2])}{digits} {''.join(letters[2:])}"
    answers = (said, said.replace(" ", ""))
    return Text((said,), tuple((question, answers) for question in WRITTEN["plate"]))


def _bus(place: Place, random: Random) -> Text:
    number = str(random.randint(2, 199))
    asked = [(question, (number,)) for question in WRITTEN["number"]]
    asked += [(question, (place.name,)) for question in WRITTEN["destination"]]
    return Text((f"{number} {place.name}",), tuple(asked), place)
