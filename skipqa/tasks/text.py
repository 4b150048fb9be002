"""What several official scorers do to answers, each piece once.

Strings enter, strings, tables or a score leave; which benchmark uses which piece is written
in that benchmark's own module.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

NUMBER_WORDS: Mapping[str, str] = MappingProxyType(
    {"none": "0", "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4"}
    | {"five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"}
)

# The table of the VQA evaluation server, shared by Encyclopedic-VQA: "result < words that
# become it". Its oddities are part of the score: somebody'd loses its apostrophe, let's and
# she's stay, and the keys with a capital I never meet a lower-cased word.
_CONTRACTIONS = """
ain't < aint; aren't < arent; can't < cant; could've < couldve; couldn't < couldnt
couldn't've < couldn'tve couldnt've; didn't < didnt; doesn't < doesnt; don't < dont
hadn't < hadnt; hadn't've < hadn'tve hadnt've; hasn't < hasnt; haven't < havent
he'd < hed; he'd've < he'dve hed've; he's < hes; how'd < howd; how'll < howll
how's < hows; I'd've < I'dve Id've; I'm < Im; I've < Ive; isn't < isnt; it'd < itd
it'd've < it'dve itd've; it'll < itll; let's < let's; ma'am < maam; might've < mightve
mightn't < mightnt; mightn't've < mightn'tve mightnt've; must've < mustve
mustn't < mustnt; needn't < neednt; not've < notve; o'clock < oclock; oughtn't < oughtnt
'ow's'at < 'ow'sat 'ows'at ow's'at; shan't < shant; she'd've < she'dve shed've
she's < she's; should've < shouldve; shouldn't < shouldnt
shouldn't've < shouldn'tve shouldnt've; somebody'd've < somebody'dve somebodyd've
somebody'll < somebodyll; somebody's < somebodys; somebodyd < somebody'd
someone'd < someoned; someone'd've < someone'dve someoned've; someone'll < someonell
someone's < someones; something'd < somethingd
something'd've < something'dve somethingd've; something'll < somethingll; that's < thats
there'd < thered; there'd've < there'dve thered've; there're < therere; there's < theres
they'd < theyd; they'd've < they'dve theyd've; they'll < theyll; they're < theyre
they've < theyve; 'twas < twas; wasn't < wasnt; we'd've < we'dve wed've; we've < weve
weren't < werent; what'll < whatll; what're < whatre; what's < whats; what've < whatve
when's < whens; where'd < whered; where's < wheres; where've < whereve; who'd < whod
who'd've < who'dve whod've; who'll < wholl; who's < whos; who've < whove; why'll < whyll
why're < whyre; why's < whys; won't < wont; would've < wouldve; wouldn't < wouldnt
wouldn't've < wouldn'tve wouldnt've; y'all < yall
y'all'd've < y'all'dve y'alld've yall'd've; y'all'll < y'allll yall'll; you'd < youd
you'd've < you'dve youd've; you'll < youll; you're < youre; you've < youve
"""


def _read_table(table: str) -> dict[str, str]:
    entries = (entry.split(" < ") for entry in table.replace(";", "\n").splitlines() if entry)
    return {word: result.strip() for result, words in entries for word in words.split()}


CONTRACTIONS: Mapping[str, str] = MappingProxyType(_read_table(_CONTRACTIONS))

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_normalise(text: str) -> str:
    """Lower-case, ASCII punctuation deleted (no space left), articles blanked, spaces collapsed."""
    bare = text.lower().translate(_DELETE_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def token_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Of the two multisets of tokens; two empty ones share nothing and score 0."""
    shared = (Counter(prediction) & Counter(reference)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(prediction), shared / len(reference)
    return 2 * precision * recall / (precision + recall)
