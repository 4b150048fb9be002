"""Inflections and articles of English, for sources that store base forms only.

Enters: a word or a noun phrase in lower case. Leaves: the same with an ending or an article. The
rules are those of a school grammar; it knows no dictionary, and a rare word may come out wrong.
"""

from __future__ import annotations

import re

VOWELS = "aeiou"
ONE_SYLLABLE = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")  # stop, run: the last letter doubles
IRREGULAR_PARTICIPLES = {
    "be": "been", "beat": "beaten", "bite": "bitten", "bind": "bound", "blow": "blown",
    "break": "broken", "bring": "brought", "build": "built", "burst": "burst", "buy": "bought",
    "catch": "caught", "choose": "chosen", "cut": "cut", "dig": "dug", "do": "done",
    "draw": "drawn", "drink": "drunk", "drive": "driven", "eat": "eaten", "feed": "fed",
    "feel": "felt", "fight": "fought", "find": "found", "fly": "flown", "forget": "forgotten",
    "freeze": "frozen", "get": "got", "give": "given", "grind": "ground", "grow": "grown",
    "hang": "hung", "have": "had", "hear": "heard", "hide": "hidden", "hit": "hit",
    "hold": "held", "hurt": "hurt", "keep": "kept", "know": "known", "lay": "laid",
    "lead": "led", "leave": "left", "lend": "lent", "lose": "lost", "make": "made",
    "mean": "meant", "meet": "met", "pay": "paid", "put": "put", "read": "read", "ride": "ridden",
    "ring": "rung", "run": "run", "say": "said", "see": "seen", "sell": "sold", "send": "sent",
    "set": "set", "shake": "shaken", "shoot": "shot", "shut": "shut", "sing": "sung",
    "speak": "spoken", "spend": "spent", "spin": "spun", "split": "split", "spread": "spread",
    "steal": "stolen", "sting": "stung", "strike": "struck", "sweep": "swept", "swim": "swum",
    "take": "taken", "tear": "torn", "tell": "told", "think": "thought",
    "throw": "thrown", "wear": "worn", "weave": "woven", "win": "won", "wind": "wound",
    "write": "written",
}  # fmt: skip
# Before these a noun takes no further article.
DETERMINERS = frozenset(
    """a an the no any some every each all both many much more most several few two three four five
    six seven eight nine ten twelve hundred thousand million lot your my his her its their our
    someone's person's one another same not only very too
    yourself oneself itself themselves""".split()
)
COUNTS = frozenset(
    "many several few two three four five six seven eight nine ten twelve hundred both".split()
)
# Common nouns that are used without an article.
MASS = frozenset(
    """advice air alcohol bread butter calcium cash cheese clothe clothing coal coffee cold cotton
    damage darkness death dirt dust education electricity energy equipment evidence exercise fabric
    fiber fire flour food fuel fun furniture gas gasoline glass gold grass gravity hair happiness
    health heat help homework honey ice information ink iron jewelry joy juice knowledge leather
    life light linen liquid love luck luggage mail meat medicine metal milk money mud music nature
    news oil oxygen pain paint paper pasta peace plastic pleasure pollution potassium power pressure
    progress protein rain rice rubber rust salt sand school sex shade silk silver sleep smoke snow
    soap soil space steam steel stuff sugar sunlight tea time traffic trash travel trouble water
    weather wheat wine wood wool work""".split()
)
MASS_ENDINGS = ("ness", "ism", "ics", "hood")


def gerund(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")) and len(verb) > 2:
        return verb[:-1] + "ing"
    return _doubled(verb) + "ing"


def participle(verb: str) -> str:
    """The past participle; one that is given as such ("eaten") stays."""
    if verb in IRREGULAR_PARTICIPLES:
        return IRREGULAR_PARTICIPLES[verb]
    if verb.endswith("ed") or verb in IRREGULAR_PARTICIPLES.values():
        return verb
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2:-1] not in VOWELS:
        return verb[:-1] + "ied"
    return _doubled(verb) + "ed"


def plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in VOWELS:
        return noun[:-1] + "ies"
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    return noun + "s"


def with_article(phrase: str) -> str:
    """`long neck` becomes `a long neck` and `four leg` `four legs`; `water` stays."""
    words = phrase.split()
    if words[0] in COUNTS:
        return " ".join((*words[:-1], words[-1] if len(words) == 1 else plural(words[-1])))
    if words[0] in DETERMINERS or words[-1] in MASS or words[-1].endswith(MASS_ENDINGS):
        return phrase
    if not words[0][0].isalpha():
        return phrase
    return f"{'an' if words[0][0] in VOWELS else 'a'} {phrase}"


def _doubled(verb: str) -> str:
    return verb + verb[-1] if ONE_SYLLABLE.fullmatch(verb) else verb
