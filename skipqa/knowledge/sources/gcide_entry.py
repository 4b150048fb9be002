r"""One entry of GCIDE as plain senses.

Enters: an entry as a DICT server shows it: a head (`giraffe \gi*raffe"\ (...), n. [F. girafe.]`),
then senses, quotations, notes, synonyms and phrases, told apart by numbers and indents. Leaves: the
senses and phrases with their definitions; without pronunciation, etymology, quotations and sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

QUOTATION_INDENT = 9  # a quotation is set in further than the sense it follows
MIN_WORDS = 2
PARTS_OF_SPEECH = {
    "n": "noun", "prop": "noun", "a": "adjective", "adj": "adjective", "adv": "adverb",
    "v": "verb", "imp": "verb", "p": "adjective", "prep": "preposition", "conj": "conjunction",
    "pron": "pronoun", "interj": "interjection",
}  # fmt: skip
HEAD = re.compile(
    r"""(?P<headword>[^\\\n]{1,80}?)\s*\\[^\\]*\\     # headword and pronunciation
    (?:,?\s*[^\\\n,;]{1,60}\s*\\[^\\]*\\)*            # other spellings
    (?:\s*\([^()]*\))?[\s,]*                          # pronunciation in other signs
    (?P<parts>(?:(?:n|prop|a|adj|adv|v|t|i|imp|p|pr|vb|pl|sing|prep|conj|pron|interj|compar|superl)
        \.[\s,;]*|(?:&|or)\s+)*)""",
    re.VERBOSE,
)
SENSE = re.compile(r"^ {0,5}\d{1,2}\. +", re.MULTILINE)
LETTERS = {
    "[ae]": "ae", "[AE]": "Ae", "[oe]": "oe", "[aum]": "ä", "[oum]": "ö", "[uum]": "ü", "['e]": "é",
    "[`e]": "è", "[^e]": "ê", "[,c]": "ç", "[~n]": "ñ", "['a]": "á", "[`a]": "à", "[^a]": "â",
    "[^o]": "ô", "['o]": "ó", "[eum]": "ë", "[ium]": "ï", "[deg]": "°", "[frac12]": "1/2",
}  # fmt: skip
LETTER = re.compile("|".join(map(re.escape, LETTERS)))
OBSOLETE = re.compile(r"\[(?:Obs|Archaic)\b[^\]]*\]")
BRACKETS = re.compile(r"\[[^\[\]]*\]")
QUOTED = re.compile(r'"[^"]*"\s*(?=--[A-Z])')
SOURCE = re.compile(r"\s*--\s?\(?[A-Z][\w.'&]*(?:[ ,]+\(?[A-Z&][\w.'&()]*)*")
FIELD = re.compile(r"^(?:\([A-Z][\w.,&; ]*\)[\s,;]*)+")
PHRASE = re.compile(r"\{([^{}]{1,80})\}(?:,? or \{[^{}]*\})*(?:\s*\([^()]*\))*[,.:;]?\s*")
REFERENCE = re.compile(r"(?:See|Same as|Cf\.|of)\s[^.;]*\.?$")
NEXT_HEADWORD = re.compile(r"(\[[^\[\]]*(?:Webster|WordNet|PJC)[^\[\]]*\])[ \t]*\S+\s*\Z")
SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Sense:
    headword: str
    part_of_speech: str  # may be empty
    definition: str


def read_entry(entry: str) -> Iterator[Sense]:
    entry = NEXT_HEADWORD.sub(r"\1", entry.lstrip())
    head = HEAD.match(entry)
    if head is None:
        return
    headword = SPACES.sub(" ", head["headword"]).strip(" ,")
    first = head["parts"].partition(".")[0].strip()
    part_of_speech = PARTS_OF_SPEECH.get(first, "")
    for body in SENSE.split(_without_etymology(entry[head.end() :])):
        definition: list[str] = []
        phrases: list[str] = []
        for paragraph in re.split(r"\n\s*\n", body):
            indent = len(paragraph) - len(paragraph.lstrip())
            said = paragraph.strip()
            if said.startswith("{"):
                phrases.append(said)
            elif said.startswith("Syn:") or (definition and indent >= QUOTATION_INDENT):
                continue
            elif not phrases:  # what follows a phrase belongs to it
                definition.append(said.removeprefix("Note: "))
        yield from _sense(headword, part_of_speech, definition)
        for phrase in phrases:
            if named := PHRASE.match(phrase):
                yield from _sense(plain(named[1]), "", [phrase[named.end() :]])


def _without_etymology(rest: str) -> str:
    """Drops the brackets after the part of speech; they may be nested and go over lines."""
    rest = rest.lstrip(" ,;")
    while rest.lstrip().startswith("[") and (end := _closing(rest)):
        rest = rest[end:].lstrip(" ,;.")
    return rest


def _closing(text: str) -> int:
    """The place after the bracket that closes the first one, 0 if none does."""
    depth = 0
    for at, letter in enumerate(text, 1):
        depth += (letter == "[") - (letter == "]")
        if letter == "]" and depth == 0:
            return at
    return 0


def _sense(headword: str, part_of_speech: str, paragraphs: Sequence[str]) -> Iterator[Sense]:
    if any(map(OBSOLETE.search, paragraphs)):
        return
    definition = " ".join(filter(None, map(plain, paragraphs)))
    if headword and len(definition.split()) >= MIN_WORDS and not REFERENCE.match(definition):
        yield Sense(headword, part_of_speech, definition)


def plain(said: str) -> str:
    text = LETTER.sub(lambda letter: LETTERS[letter[0]], said)
    for _ in range(3):  # brackets inside brackets
        text = BRACKETS.sub("", text)
    text = SPACES.sub(" ", text).strip()
    text = SOURCE.sub("", QUOTED.sub("", text))
    text = FIELD.sub("", text.replace("{", "").replace("}", ""))
    return SPACES.sub(" ", text).replace(" .", ".").replace(" ,", ",").strip(" ,;-")
