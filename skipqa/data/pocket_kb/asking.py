"""What is asked about a thing among others, and in which words.

Enters: a crowd, and what is referred to how. Leaves: questions whose answers are wrong for every
other thing of the same kind. Half of the questions of `val` are worded as none of `train` is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from skipqa.data.pocket_kb.corpus import Corpus
from skipqa.data.pocket_kb.crowd import Crowd
from skipqa.data.pocket_kb.entities import DESCRIPTION, SOURCE
from skipqa.data.pocket_kb.facts import NAME, Entity, Fact, templates
from skipqa.data.pocket_kb.references import AskedBy, Reference
from skipqa.data.pocket_kb.sample import draw_fact

SAME_RELATION = 0.5  # of the questions about two things of a kind: only the reference differs
NEW_WORDINGS = 0.5  # of the questions of `val`
# In questions that have words of their own: what stands for the thing
NAMED = re.compile(
    r"\bthis (?:apple|drink|fruit|juice|melon|milk|mushroom|pear|potato|product|spice|tomato|"
    r"vegetable|yoghurt)\b"
)


@dataclass(frozen=True, slots=True)
class Asked:
    thing: int
    by: AskedBy
    question: str
    fact: Fact | None  # None: its name is asked for
    new_wording: bool


def questions(
    crowd: Crowd, chosen: Sequence[tuple[int, Reference]], corpus: Corpus, random: Random
) -> Iterator[Asked]:
    """Fewer than were chosen where a thing has no fact that sets it apart."""
    before: tuple[str, str] | None = None  # kind and relation of the question before
    for place, reference in chosen:
        entity, alike = crowd.things[place].entity, crowd.alike(place)
        facts = _telling(entity, alike, corpus)
        if before is not None and before[0] == entity.category and random.random() < SAME_RELATION:
            facts = [fact for fact in facts if fact.relation == before[1]] or facts
        fact = draw_fact(facts, random)
        if not facts:
            return
        if fact is None and any(also_right(o, NAME, entity.called, corpus) for o in alike):
            return
        before = (entity.category, fact.relation if fact else NAME)
        half = "val" if crowd.split == "val" and random.random() < NEW_WORDINGS else "train"
        phrase = reference.phrase(entity.category, half, random)
        question = _ask(entity, fact, phrase, half, random)
        yield Asked(place, reference.by, question, fact, half == "val")


def also_right(other: Entity, relation: str, answers: Iterable[str], corpus: Corpus) -> bool:
    """Whether one of the answers would be right for another thing, too. Descriptions are asked
    about in words of their own, so all that they say counts."""
    if not other.answers(relation).isdisjoint(answers):
        return True
    described = [f"{SOURCE}:{other.key}:{DESCRIPTION}"] if relation == DESCRIPTION else []
    return bool(corpus.stating(described, tuple(answers)))


def _telling(entity: Entity, alike: Sequence[Entity], corpus: Corpus) -> list[Fact]:
    """Facts that no other shares; those that can be asked of all of them where there are any."""
    facts = [
        fact
        for fact in entity.facts
        if (not fact.question or NAMED.search(fact.question))
        and not any(also_right(other, fact.relation, fact.answers, corpus) for other in alike)
    ]
    of_all = [fact for fact in facts if all(other.answers(fact.relation) for other in alike)]
    return of_all or facts


def _ask(entity: Entity, fact: Fact | None, thing: str, half: str, random: Random) -> str:
    known = templates()["crowded"]
    if fact is None:
        wordings = known["questions"][NAME][entity.category]
    elif fact.question:
        return NAMED.sub(thing, fact.question)
    else:
        wordings = known["questions"][fact.relation]
    wording: str = random.choice(wordings[half])
    blanks = dict(fact.blanks) if fact else {}
    if "country" in blanks:
        wording = wording.replace(
            "{country}", random.choice(known["countries"][blanks["country"]][half])
        )
    return wording.format(thing=thing)
