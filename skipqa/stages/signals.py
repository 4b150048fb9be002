"""Signals for a passage besides its embedding, which a trained verifier also reads.

Enters: a state with retrieved passages, their embeddings, and those of the question about each
passage's title. Leaves: [K, SIGNALS]. The embedding of a short passage knows its topic, but not
which of a hundred similar things it is about, nor whether the image shows that one. The signals
compare: how probable it is that the image shows what the passage is titled with and the question
is about, whether the passage says of it what is asked, and by how much it leads the others, those
about other things, about the same one and from the same corpus; and whether it speaks of what the
image shows. Of a long passage what is read of it counts. Which corpus it is from is no signal, as
everyone brings their own, nor is the draft, which may be made at the same time.

Somebody's own documents are compared among themselves: a note that mentions the bicycle would never
lead the entries that dictionaries have about bicycles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from skipqa.backbones.concepts import Concepts, plain_name
from skipqa.knowledge.excerpt import subject_of
from skipqa.language import all_forms, base_forms, content_words
from skipqa.stages.prune import concept_relevance
from skipqa.stages.regions import posterior, region_means
from skipqa.state import State
from skipqa.types import Question, RetrievedPassage

SIGNALS = 32
OF_EMBEDDINGS = (2, 3, 10, 12, 13)  # 0 where passages are not embedded by themselves
ANYTHING = 0.05  # relevance of a concept that the question does not seem to be about
SMALLEST = 1e-6
_WORD = re.compile(r"[^\W_]+")


def about_titles(question: Question, titles: Sequence[str]) -> list[str]:
    """The question about each title, to be embedded: "Where is it from?" about "Maine Coon"."""
    return [f"{question.text} {subject_of(title)}" for title in titles]


def signals(state: State, embeddings_Kd: Tensor, asked_of_Kd: Tensor, concepts: Concepts) -> Tensor:
    """Each signal is of about unit size, so that none needs a scale of its own. `asked_of_Kd`
    embeds what `about_titles` writes."""
    passages = state.retrieved.passages
    found_KS = torch.zeros(len(passages), SIGNALS)
    for places in by_kind(passages):
        some = replace(state.retrieved, passages=tuple(passages[j] for j in places))
        compared = state.add(retrieved=some), embeddings_Kd[places], asked_of_Kd[places]
        found_KS[places] = _among_themselves(*compared, concepts)
    return found_KS


def by_kind(passages: Sequence[RetrievedPassage]) -> list[list[int]]:
    """Places of somebody's own documents and of general knowledge, where there are any."""
    own = [j for j, passage in enumerate(passages) if passage.own]
    general = [j for j, passage in enumerate(passages) if not passage.own]
    return [places for places in (own, general) if places]


def _among_themselves(
    state: State, embeddings_Kd: Tensor, asked_of_Kd: Tensor, concepts: Concepts
) -> Tensor:
    passages, question, kept = state.retrieved.passages, state.question, state.kept
    score_K = torch.tensor([max(p.score, SMALLEST) for p in passages])
    relative_K = torch.tensor([p.relative for p in passages])
    titles = [names_in(p.passage.title) for p in passages]
    numbers = [_numbers(names, concepts) for names in titles]
    seen_K = _best(numbers, kept.tokens.concept_probs[kept.positions].amax(0))
    shown_K = _best(numbers, kept.tokens.overview)
    asking_Kd = region_means(state)[[p.region for p in passages]]
    sure_K = torch.tensor([state.regions[p.region].concepts[0][1] for p in passages])
    topic_K = embeddings_Kd @ question.embedding
    said_K = (embeddings_Kd * asked_of_Kd).sum(1)
    asked_K = torch.tensor([_overlap(question, p.text) for p in passages])
    subject = [names[0] if names else "" for names in titles]
    same_KK = torch.tensor([[one == other for other in subject] for one in subject])
    alone_KK = same_KK & ~torch.eye(len(passages), dtype=torch.bool)
    order_K = torch.arange(len(passages)) / len(passages)
    return torch.stack(
        (
            (relative_K / relative_K.max()).log().clamp(min=-3),
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
            *_asked_about(state, numbers, concepts),
            *_own_corpus(passages),
            *_spoken_of(state),
        ),
        dim=1,
    )


def _asked_about(
    state: State, numbers: Sequence[Sequence[int]], concepts: Concepts
) -> list[Tensor]:
    """[K] each: is the title what the image shows and the question is about, by Bayes' rule over
    all concepts? For the surest token, the whole image and the mean token, the root of its
    posterior and its lead over the next concept; then by the region that asked, and by how many
    regions. `numbers` are the concepts that bear each passage's title."""
    kept, regions = state.kept, state.regions
    prior_C = ANYTHING + concept_relevance(state.question, concepts)
    tokens_VC = kept.tokens.concept_probs[kept.positions]
    found = []
    for prob_C in (tokens_VC.amax(0), kept.tokens.overview, tokens_VC.mean(0)):
        posterior_C = prob_C * prior_C
        posterior_C = posterior_C / posterior_C.sum().clamp(min=SMALLEST)
        pairs = [_own_and_next(posterior_C, some) for some in numbers]
        own_K, next_K = _root(torch.tensor(pairs)).T
        found += [own_K, own_K - next_K]
    by_region = [posterior(region, prior_C) for region in regions]
    best = [max(probs, key=probs.__getitem__, default=-1) for probs in by_region]
    asking = list(zip(state.retrieved.passages, numbers, strict=True))
    own = [[by_region[p.region].get(n, 0.0) for n in some] for p, some in asking]
    first = [best[p.region] in some for p, some in asking]
    agreeing = [sum(n in some for n in best) / len(regions) for some in numbers]
    return [
        *found,
        _root(torch.tensor([max(probs, default=0.0) for probs in own])),
        torch.tensor(first, dtype=torch.float32),
        torch.tensor(agreeing),
        torch.tensor([float(bool(some)) for some in numbers]),  # a thing that can be seen at all
    ]


def _own_corpus(passages: Sequence[RetrievedPassage]) -> list[Tensor]:
    """[K] each: the place among the passages of its corpus, how far it is behind the best of them,
    how many of all passages they are; and how long the passage is."""
    sources = [p.passage.source for p in passages]
    best: dict[str, float] = {}
    for p in passages:
        best[p.passage.source] = max(p.relative, best.get(p.passage.source, 0.0))
    behind = [p.relative / best[source] for p, source in zip(passages, sources, strict=True)]
    place = [sources[:k].count(source) for k, source in enumerate(sources)]
    words = torch.tensor([float(len(p.text.split())) for p in passages])
    return [
        torch.tensor(place) / len(passages),
        torch.tensor(behind).log().clamp(min=-3),
        torch.tensor([sources.count(source) for source in sources]) / len(passages),
        (words.log1p() - 3) / 2,
    ]


def _spoken_of(state: State) -> list[Tensor]:
    """[K] each, roots of probabilities: of the most probable word for the image that is in the
    title, and that is in the text."""
    seen = state.kept.tokens.words
    shown = zip(seen.names, seen.probs.tolist(), strict=True) if seen else ()
    in_image = [(_as_words(name), prob) for name, prob in shown]
    pairs = [(_as_words(p.passage.title), _as_words(p.text)) for p in state.retrieved.passages]
    found = [
        (
            max((prob for name, prob in in_image if name in title), default=0.0),
            max((prob for name, prob in in_image if name in text), default=0.0),
        )
        for title, text in pairs
    ]
    return list(_root(torch.tensor(found)).T)


def _as_words(text: str) -> str:
    """In lower case, each word between spaces, so that whole words are found in it."""
    return f" {' '.join(_WORD.findall(text.lower()))} "


def _own_and_next(prob_C: Tensor, own: Sequence[int]) -> tuple[float, float]:
    """The summed probability of some concepts, and the highest of any other."""
    others_C = prob_C.clone()
    others_C[list(own)] = 0
    return float(prob_C[list(own)].sum()), float(others_C.max())


def names_in(title: str) -> tuple[str, ...]:
    """All names of what a passage is about, in plain form."""
    parts = title.partition(":")[0].split(",")
    return tuple(name for part in parts if (name := plain_name(part)))


def _numbers(names: Sequence[str], concepts: Concepts) -> list[int]:
    return [number for name in names for number in concepts.by_plain_name.get(name, ())]


def _best(numbers: Sequence[Sequence[int]], prob_C: Tensor) -> Tensor:
    """[K]: the highest probability of a concept that bears the passage's title."""
    return torch.tensor([float(prob_C[list(some)].max()) if some else 0.0 for some in numbers])


def _overlap(question: Question, text: str) -> float:
    """The fraction of the question's words that the passage uses, in whatever form."""
    used = all_forms(content_words(text))
    asked = [set(base_forms(word)) for word in question.words]
    return sum(not used.isdisjoint(forms) for forms in asked) / max(1, len(asked))


def _lead(values_K: Tensor, others_KK: Tensor) -> Tensor:
    """By how much each leads the best of its others; 0 where it has none."""
    best = values_K.expand_as(others_KK).masked_fill(~others_KK, -torch.inf).amax(1)
    return torch.where(others_KK.any(1), values_K - best, torch.zeros(()))


def _root(prob: Tensor) -> Tensor:
    """Evidence is thin where many names share it: the root tells small values apart."""
    return prob.clamp(min=0).sqrt()
