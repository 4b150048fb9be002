"""Facts out of WordNet's definitions, by rules that prefer silence to a wrong answer.

Enters: a definition and the plain noun for what it defines ("bird", "tool"). Leaves: (relation,
accepted answers), each answer a short span of the definition or the place that an adjective in
it names. Reads one definition at a time; knows nothing of photos or questions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

ANIMALS = frozenset(
    "bird dog cat fish shark snake lizard turtle frog salamander spider insect butterfly beetle "
    "monkey ape crab animal".split()
)
LIVING = ANIMALS | {"flower", "mushroom", "plant"}
FOODS = frozenset({"fruit", "vegetable", "food", "drink", "dish"})

# The plain noun for everything below a synset; the first that fits is taken.
NOUNS: tuple[tuple[str, str], ...] = tuple(
    (synset, noun)
    for synset, noun in (
        line.split()
        for line in """
        n01503061 bird
        n02084071 dog
        n02120997 cat
        n01482330 shark
        n02512053 fish
        n01726692 snake
        n01674464 lizard
        n01662784 turtle
        n01639765 frog
        n01629276 salamander
        n01772222 spider
        n02274259 butterfly
        n02164464 beetle
        n02159955 insect
        n02484322 monkey
        n02470325 ape
        n01976957 crab
        n00015388 animal
        n13134947 fruit
        n07705931 fruit
        n07707451 vegetable
        n07881800 drink
        n07557434 dish
        n00021265 food
        n12992868 mushroom
        n11669921 flower
        n00017222 plant
        n03800933 instrument
        n04524313 vehicle
        n03051540 garment
        n03405725 piece_of_furniture
        n04202417 shop
        n02913152 building
        n04565375 weapon
        n03528263 appliance
        n04451818 tool
        n03094503 container
        n03183080 device
        n03294048 piece_of_equipment
        n04341686 structure
        """.split("\n")
        if line.strip()
    )
)

PLACES = (
    "North America|South America|Central America|tropical America|United States|West Indies|"
    "East Indies|Old World|New World|Africa|Asia|Europe|Eurasia|Australia|Tasmania|Madagascar|"
    "Mexico|China|Tibet|India|Japan|Borneo|Sumatra|Brazil|Indonesia|New Guinea|New Zealand|"
    "Siberia|Canada|Alaska|Greenland|Persia|Arabia|Arctic|Antarctica|Near East|Peru|Chile|America"
)
OF_PLACES = {
    "African": "Africa",
    "Asian": "Asia",
    "Asiatic": "Asia",
    "European": "Europe",
    "Eurasian": "Eurasia",
    "Australian": "Australia",
    "North American": "North America",
    "South American": "South America",
    "Central American": "Central America",
    "tropical American": "tropical America",
    "American": "America",
    "Indonesian": "Indonesia",
    "Mexican": "Mexico",
    "Chinese": "China",
    "Japanese": "Japan",
    "Borneo": "Borneo",
    "East Indian": "East Indies",
    "Himalayan": "Himalayas",
    "Italian": "Italy",
    "Hungarian": "Hungary",
    "French": "France",
    "English": "England",
    "Scottish": "Scotland",
    "Irish": "Ireland",
    "German": "Germany",
    "Swiss": "Switzerland",
    "Siberian": "Siberia",
}
# Where a definition turns from the thing's own home to other matters.
ASIDE = re.compile(
    r"\b(?:used as|introduced|naturalized|related|resembl|similar|except|lacking|unlike|than|"
    r"differ|variety|imported|originally of|famous|classification|host for)\b.*"
)
PLACE = re.compile(rf"\b({PLACES})\b")
ADJECTIVE = re.compile(rf"\b({'|'.join(OF_PLACES)})\b")

END = r"(?=$|[;,.:(]| (?:that|which|who|when|while|with|by|at|from|on|or|as|and then|having|used|"
END += r"during|before|until|is|are|has|have|until|so|into|in|inside|after|especially|usually|to|"
END += r"without|under|through|against)\b)"
SPAN = rf"((?:[\w'-]+ ){{0,2}}?[\w'-]+){END}"
LEADING = re.compile(r"^(?:(?:the|a|an|your|their|its|his|small|large|other|various|some) )+")
VAGUE = frozenset(
    "it them things something people other another others one two use used support sale them "
    "protection making storage general military various and or former real mechanical mixed "
    "fastened consolidated such etc against holding "
    "storing serving rotating training".split()
)


ARTEFACTS = frozenset(noun.replace("_", " ") for _, noun in NOUNS) - LIVING - FOODS | {"object"}
WITH_KINDS = ANIMALS | FOODS | {"instrument", "vehicle", "weapon"}  # worth "what kind of … is it"


class Rule(NamedTuple):
    relation: str
    pattern: re.Pattern[str]
    nouns: frozenset[str] = ARTEFACTS


RULES = (
    Rule("eats", re.compile(rf"\bfeed(?:s|ing)? (?:chiefly |mainly |largely )?on {SPAN}"), ANIMALS),
    Rule("game", re.compile(rf"\bused in playing {SPAN}")),
    Rule("sold", re.compile(rf"\bwhere {SPAN}(?= are sold| is sold)|\bthat sells {SPAN}")),
    Rule("worn_by", re.compile(rf"\bworn by (?:some |most |both )?{SPAN}")),
    Rule("measures", re.compile(rf"\b(?:that measures|used to measure) {SPAN}")),
    Rule("pulled_by", re.compile(rf"\b(?:drawn|pulled) by {SPAN}")),
    Rule("powered_by", re.compile(rf"\b(?:powered|run|propelled) by {SPAN}")),
    Rule("protects", re.compile(rf"\b(?:protects|to protect|covers) (?:the |your )?{SPAN}")),
    Rule(
        "holds",
        re.compile(
            rf"\b(?:that holds|for holding|for storing|for serving|for carrying|used to store|"
            rf"that contains|for keeping|that houses|for transporting|used to hold) {SPAN}"
        ),
    ),
    Rule("made_of", re.compile(rf"\bmade (?:of|from|with) {SPAN}"), ARTEFACTS | FOODS),
    Rule("used_for", re.compile(rf"\bused (?:for|in|to) (?!an? |the |pairs|playing){SPAN}")),
    Rule("used_for", re.compile(rf"\bfor (\w+ing(?: [\w'-]+){{0,2}}?){END}")),
)
# Classes whose photos show another sense than the definition.
OTHER_SENSE = frozenset(
    "n07930864 n07579787 n01560419 n04355933 n03045698 n04008634 n04152593 n03933933 n03944341 "
    "n02892767 n04371430 n06359193 n03888257 n02840245 n03623198 n03188531 n03773504".split()
)
TAXON = re.compile(r"\bof the (family|genus|order) ([A-Z]\w+)")


def noun_of(ancestors: frozenset[str]) -> str:
    for synset, noun in NOUNS:
        if synset in ancestors:
            return noun.replace("_", " ")
    return "object"


def facts(gloss: str, noun: str, kinds: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(relation, answers) that the definition of a `noun` states; `kinds` are its direct kinds."""
    text = re.sub(r'"[^"]*"|\([^)]*\)', " ", gloss)
    text = " ".join(text.split()).replace(" ;", ";")
    found: set[str] = set()
    if noun in LIVING:
        home = ASIDE.sub("", text)
        places = PLACE.findall(home)
        adjectives = ADJECTIVE.findall(home)
        answers = [*places, *adjectives, *(OF_PLACES[one] for one in adjectives)]
        if answers:
            yield "lives", tuple(dict.fromkeys(answers))
    for rule in RULES:
        if noun not in rule.nouns or rule.relation in found:
            continue
        if match := rule.pattern.search(text):
            span = LEADING.sub("", next(group for group in match.groups() if group))
            # Of "smoothing or shaping wood" the first half would be no answer.
            halved = rule.relation == "used_for" and text[match.end() :].startswith(" or ")
            if span and not halved and not VAGUE & set(span.split()) and len(span.split()) <= 3:
                found.add(rule.relation)
                acted = rule.relation == "used_for" and match[0].startswith("used to ")
                yield rule.relation, (span, *_gerund(span)) if acted else (span,)
    if match := TAXON.search(text):
        yield f"taxon {match[1]}", (match[2],)
    for kind in kinds:
        stem = kind.split()[-1].lower()
        if noun in WITH_KINDS and stem != noun and re.search(rf"\b{kind}\b", text):
            yield "kind", (kind,)
            break


def _gerund(span: str) -> tuple[str, ...]:
    """ "push snow" is also said "pushing snow"."""
    verb, _, rest = span.partition(" ")
    return (f"{verb.removesuffix('e')}ing {rest}".strip(),)
