"""Sentences from the assertions of a graph whose concepts are base forms without articles.

Enters: an assertion, such as (`stove`, CapableOf, `heat pot`). Leaves: "A stove can heat a pot."
What is a verb, a name or a thing without an article is learned from where words stand in the graph;
it knows no dictionary and nothing of files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from skipqa.knowledge.sources.english import gerund, participle, with_article

PREPOSITIONS = frozenset(
    """in on at to of for from with by into onto out up down over under above below around near
    through against about inside outside between behind off away back then and or""".split()
)
INTRANSITIVE = frozenset("go come live look stay lie sit stand sleep fall die be become".split())
NEVER_VERBS = ("tion", "ment", "ness", "able", "ible", "ity", "ance")
NOUN_PLACES = ("IsA", "HasA", "AtLocation", "UsedFor", "HasProperty", "PartOf", "MadeOf")
EVENTS = (
    *("HasSubevent", "HasFirstSubevent", "HasLastSubevent"),
    *("HasPrerequisite", "MotivatedByGoal"),
)
NAMED_KINDS = frozenset(("country", "nation", "continent", "city", "planet", "month"))
UNCOUNTED_KINDS = frozenset(
    """sport liquid substance gas metal element material color emotion feel disease science language
    activity drink beverage music dance fabric mineral game""".split()
)


class Assertion(NamedTuple):
    subject: str
    relation: str
    object: str
    score: int


@dataclass(frozen=True, slots=True)
class Words:
    """What the graph itself tells of its words: how often one stands where a verb or a noun does,
    and which concepts are names ("africa") or go without an article ("baseball")."""

    verbs: Counter[str] = field(default_factory=Counter)
    nouns: Counter[str] = field(default_factory=Counter)
    names: set[str] = field(default_factory=set)
    uncounted: set[str] = field(default_factory=set)

    def is_verb(self, word: str) -> bool:
        """Also of one that is a noun more often, such as "drink"."""
        often = self.verbs[word] > 2 and 5 * self.verbs[word] > self.nouns[word]
        return often and not word.endswith(NEVER_VERBS)

    def is_noun(self, word: str) -> bool:
        return self.nouns[word] > 9 and self.nouns[word] > self.verbs[word]


def thing(concept: str, words: Words) -> str:
    if concept in words.names:
        return concept.title()
    *_, last = parts = concept.split()
    if concept in words.uncounted or parts[0] in PREPOSITIONS or last in words.names:
        return concept
    return with_article(concept)


def action(concept: str, words: Words, inflect: Callable[[str], str] = str) -> str:
    """A verb, inflected, and the article of its object: `heat pot` becomes `heat a pot`."""
    verb, _, rest = concept.partition(" ")
    parts = rest.split()
    if len(parts) in (1, 2) and words.is_noun(parts[-1]) and verb not in INTRANSITIVE:
        rest = thing(rest, words)
    return f"{inflect(verb)} {rest}".rstrip()


def activity(concept: str, words: Words) -> str:
    """`cook food` becomes `cooking food`; what does not begin with a verb is a thing."""
    if words.is_verb(concept.partition(" ")[0]):
        return action(concept, words, gerund)
    return thing(concept, words)


def goal(concept: str, words: Words) -> str:
    if words.is_verb(concept.partition(" ")[0]):
        return f"to {action(concept, words)}"
    return thing(concept, words)


def acted_on(concept: str, words: Words) -> str:
    return action(concept, words, participle)


def quality(concept: str, words: Words) -> str:
    """`red` stays, but `long neck animal` gets its article."""
    *first, last = concept.split()
    return thing(concept, words) if first and words.is_noun(last) else concept


Form = Callable[[str, Words], str]
# relation -> the form of its subject, the words between, the form of its object. Relations that are
# not here make no sentence: of InheritsFrom and of kinds of pain the graph has a few noisy ones.
PHRASES: Mapping[str, tuple[Form, str, Form]] = {
    "IsA": (thing, "is", thing),
    "InstanceOf": (thing, "is", thing),
    "DefinedAs": (thing, "is", thing),
    "CapableOf": (thing, "can", action),
    "UsedFor": (thing, "is used for", activity),
    "HasA": (thing, "has", thing),
    "PartOf": (thing, "is part of", thing),
    "MadeOf": (thing, "is made of", thing),
    "HasProperty": (thing, "is", quality),
    "AtLocation": (thing, "in", thing),
    "ReceivesAction": (thing, "can be", acted_on),
    "CreatedBy": (thing, "is created by", activity),
    "SymbolOf": (thing, "is a symbol of", thing),
    "Desires": (thing, "wants", goal),
    "Causes": (activity, "can cause", activity),
    "CausesDesire": (activity, "makes you want", goal),
    "HasSubevent": (activity, "can involve", activity),
    "HasFirstSubevent": (activity, "begins with", activity),
    "HasLastSubevent": (activity, "ends with", activity),
    "HasPrerequisite": (activity, "requires", activity),
    "MotivatedByGoal": (activity, "is done for", activity),
    "LocatedNear": (thing, "is near", thing),
    "SimilarSize": (thing, "is about as large as", thing),
    "ConceptuallyRelatedTo": (thing, "is related to", activity),
}


def words_of(assertions: Iterable[Assertion]) -> Words:
    words = Words()
    uncounted: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for subject, relation, other, score in assertions:
        if relation == "CapableOf":
            words.verbs[other.partition(" ")[0]] += 1
        if relation in EVENTS and " " in subject:
            words.verbs[subject.partition(" ")[0]] += 1
        if relation in NOUN_PLACES and " " not in subject:
            words.nouns[subject] += 1
        if relation in ("AtLocation", "HasA", "PartOf"):
            words.nouns[other.rpartition(" ")[2]] += 1
        if relation == "IsA" and other in NAMED_KINDS:
            named[subject] += score
        if relation == "IsA" and other in UNCOUNTED_KINDS:
            uncounted[subject] += score
    for found, scores in ((words.names, named), (words.uncounted, uncounted)):
        found.update(concept for concept, score in scores.items() if score > 1)
    return words


def sentence(fact: Assertion, words: Words) -> str:
    of_subject, between, of_object = PHRASES[fact.relation]
    subject, other = of_subject(fact.subject, words), of_object(fact.object, words)
    if fact.relation == "AtLocation":
        said = f"you can find {subject} {'' if _placed(other) else 'in '}{other}"
    else:
        said = f"{subject} {between} {other}"
    return f"{said[0].upper()}{said[1:]}."


def _placed(place: str) -> bool:
    return place.partition(" ")[0] in PREPOSITIONS
