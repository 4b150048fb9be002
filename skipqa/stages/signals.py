"""What speaks for a passage beside its embedding: the numbers that a trained verifier also reads.

Enters: the retrieved passages with their embeddings, the question, the question about what each
passage is titled with, the tokens that were kept and the regions that asked. Leaves: [K, SIGNALS].
An embedding of a short passage knows its topic, not which of a hundred like things it is about,
nor whether the picture shows that one; so the numbers compare: how surely the picture shows what
the passage is titled with, among all that it may show and the question may be about, whether the
passage says of it what is asked, and by how much it leads the others, those about other things and
those about the same thing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from skipqa.backbones.concepts import Concepts
from skipqa.language import base_forms, content_words
from skipqa.nn.tagger import bare_name
from skipqa.stages.prune import concept_relevance
from skipqa.stages.regions import posterior
from skipqa.types import KeptTokens, Question, Region, RetrievedPassage

SIGNALS = 26
ANYTHING = 0.05  # how much a question may be about what it does not seem to be about
SMALLEST = 1e-6
_NOT_WORDS = re.compile(r"[^a-z0-9]+")


def about_titles(question: Question, titles: Sequence[str]) -> list[str]:
    """The question about each title, to be embedded: "Where is it from?" about "Maine Coon"."""
    return [f"{question.text} {subject_of(title)}" for title in titles]


def subject_of(title: str) -> str:
    """Of "Luxembourg: Government > Flag" Luxembourg, of "bag, traveling bag" the first name."""
    return title.partition(":")[0].partition(",")[0].strip()


def signals(
    candidates: Sequence[RetrievedPassage],
    embeddings_Kd: Tensor,
    asked_of_Kd: Tensor,
    question: Question,
    kept: KeptTokens,
    regions: Sequence[Region],
    concepts: Concepts,
) -> Tensor:
    """Each of about unit size, so that none needs a scale of its own. `asked_of_Kd` embeds what
    `about_titles` writes."""
    if not candidates:
        return torch.zeros(0, SIGNALS)
    score_K = torch.tensor([max(c.score, SMALLEST) for c in candidates])
    titles = [names_in(c.passage.title) for c in candidates]
    seen_K = _seen(titles, kept, concepts)
    shown_K = _shown(titles, kept, concepts)
    meaning = kept.tokens.meaning
    centres_Rd = torch.stack([meaning[list(region.members)].mean(0) for region in regions])
    asking_Kd = centres_Rd[[c.region for c in candidates]]
    sure_K = torch.tensor([regions[c.region].concepts[0][1] for c in candidates])
    topic_K = embeddings_Kd @ question.embedding
    said_K = (embeddings_Kd * asked_of_Kd).sum(1)
    asked_K = torch.tensor([_overlap(question, c.passage.text) for c in candidates])
    subject = [names[0] if names else "" for names in titles]
    same_KK = torch.tensor([[one == other for other in subject] for one in subject])
    alone_KK = same_KK & ~torch.eye(len(candidates), dtype=torch.bool)
    order_K = torch.arange(len(candidates)) / len(candidates)
    asked_about = _asked_about(candidates, titles, question, kept, regions, concepts)
    return torch.stack(
        (
            (score_K / score_K.max()).log().clamp(min=-3),
            score_K.log1p() - 2,
            topic_K,
            (embeddings_Kd * asking_Kd).sum(1),
            seen_K,
            _root(seen_K),
            _root(shown_K),
            _lead(_root(seen_K), ~same_KK),
            _lead(_root(shown_K), ~same_KK),
            asked_K,
            3 * _lead(topic_K, alone_KK),
            _lead(asked_K, alone_KK),
            said_K,
            5 * _lead(said_K, alone_KK),
            _root(sure_K),
            order_K,
            *asked_about,
        ),
        dim=1,
    )


def _asked_about(
    candidates: Sequence[RetrievedPassage],
    titles: Sequence[Sequence[str]],
    question: Question,
    kept: KeptTokens,
    regions: Sequence[Region],
    concepts: Concepts,
) -> list[Tensor]:
    """[K] each: is the title what the picture shows and the question is about, by Bayes' rule over
    all concepts? By the surest token, the whole picture and the mean token its root share and how
    far that leads the next; then by the region that asked, and by how many regions."""
    factor_C = ANYTHING + concept_relevance(question, concepts)
    numbers = [_numbers(names, concepts) for names in titles]
    tokens_VC = kept.tokens.evidence[kept.positions]
    found = []
    for prob_C in (tokens_VC.amax(0), kept.tokens.overview, tokens_VC.mean(0)):
        posterior_C = prob_C * factor_C
        posterior_C = posterior_C / posterior_C.sum().clamp(min=SMALLEST)
        pairs = [_own_and_next(posterior_C, some) for some in numbers]
        own_K, next_K = _root(torch.tensor(pairs)).T
        found += [own_K, own_K - next_K]
    by_region = [posterior(region, factor_C) for region in regions]
    likeliest = [max(probs, key=probs.__getitem__, default=-1) for probs in by_region]
    asking = list(zip(candidates, numbers, strict=True))
    own = [[by_region[c.region].get(n, 0.0) for n in some] for c, some in asking]
    first = [likeliest[c.region] in some for c, some in asking]
    agreeing = [sum(n in some for n in likeliest) / len(regions) for some in numbers]
    return [
        *found,
        _root(torch.tensor([max(probs, default=0.0) for probs in own])),
        torch.tensor(first, dtype=torch.float32),
        torch.tensor(agreeing),
        torch.tensor([float(bool(some)) for some in numbers]),  # a thing that can be seen at all
    ]


def _own_and_next(prob_C: Tensor, own: Sequence[int]) -> tuple[float, float]:
    """What some concepts have together, and the most that another has."""
    others_C = prob_C.clone()
    others_C[list(own)] = 0
    return float(prob_C[list(own)].sum()), float(others_C.max())


def names_in(title: str) -> tuple[str, ...]:
    """All names of what a passage is about, in plain form."""
    parts = title.partition(":")[0].split(",")
    return tuple(name for part in parts if (name := _plain(part)))


def _plain(text: str) -> str:
    return bare_name(_NOT_WORDS.sub(" ", text.lower()).strip())


@functools.lru_cache(maxsize=2)
def _by_name(concepts: _ByIdentity) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, concept in enumerate(concepts.of.entries):
        for name in concept.names:
            found.setdefault(_plain(name), []).append(number)
    return found


class _ByIdentity:
    """A table of concepts as a key: there are one or two in a process."""

    def __init__(self, of: Concepts) -> None:
        self.of = of

    def __hash__(self) -> int:
        return id(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.of is other.of


def _numbers(names: Sequence[str], concepts: Concepts) -> list[int]:
    table = _by_name(_ByIdentity(concepts))
    return [number for name in names for number in table.get(name, ())]


def _seen(titles: Sequence[Sequence[str]], kept: KeptTokens, concepts: Concepts) -> Tensor:
    """[K]: how surely some kept token shows what the passage is titled with."""
    most_C = kept.tokens.evidence[kept.positions].amax(0)
    return _best(titles, most_C, concepts)


def _shown(titles: Sequence[Sequence[str]], kept: KeptTokens, concepts: Concepts) -> Tensor:
    """[K]: how surely the picture as a whole does."""
    return _best(titles, kept.tokens.overview, concepts)


def _best(titles: Sequence[Sequence[str]], prob_C: Tensor, concepts: Concepts) -> Tensor:
    found = [_numbers(names, concepts) for names in titles]
    return torch.tensor([float(prob_C[some].max()) if some else 0.0 for some in found])


def _overlap(question: Question, text: str) -> float:
    """The share of the question's words that the passage uses, in whatever form."""
    used = {form for word in content_words(text) for form in base_forms(word)}
    asked = [set(base_forms(word)) for word in question.words]
    return sum(not used.isdisjoint(forms) for forms in asked) / max(1, len(asked))


def _lead(values_K: Tensor, others_KK: Tensor) -> Tensor:
    """By how much each leads the best of its others; 0 where it has none."""
    best = values_K.expand_as(others_KK).masked_fill(~others_KK, -torch.inf).amax(1)
    return torch.where(others_KK.any(1), values_K - best, torch.zeros(()))


def _root(prob: Tensor) -> Tensor:
    """Evidence is thin where many names share it: small shares are told apart as well."""
    return prob.clamp(min=0).sqrt()
