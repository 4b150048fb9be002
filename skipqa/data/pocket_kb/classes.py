"""ImageNet classes as entities: facts that rules read out of their WordNet definitions.

Enters: WordNet's nouns and the synset ids of photos. Leaves: an entity for each, and which
synsets are about the breeds, flowers and groceries of the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from skipqa.data.pocket_kb import glosses
from skipqa.data.pocket_kb.corpus import Corpus
from skipqa.data.pocket_kb.entities import ROOTS, Described
from skipqa.data.pocket_kb.facts import Entity, Fact
from skipqa.data.pocket_kb.text import accepted, plain
from skipqa.wordnet import Synset


class Nouns:
    """WordNet's nouns with their ancestors."""

    def __init__(self, synsets: Iterable[Synset]) -> None:
        self.by_id = {synset.id: synset for synset in synsets if synset.part_of_speech == "noun"}
        self.by_lemma: dict[str, list[Synset]] = {}
        for synset in self.by_id.values():
            for lemma in synset.lemmas:
                self.by_lemma.setdefault(plain(lemma), []).append(synset)

    def ancestors(self, id: str) -> frozenset[str]:
        """The synset itself and all that it is a kind of."""
        found: set[str] = set()
        level = [id]
        while level:
            found |= set(level)
            level = [
                up
                for one in level
                for up in self.by_id[one].hypernyms
                if up in self.by_id and up not in found
            ]
        return frozenset(found)

    def about(self, described: Described) -> list[str]:
        """The synsets that an entity's names mean in its category."""
        if not described.in_wordnet:
            return []
        found = (
            synset.id
            for name in described.names
            for synset in self.by_lemma.get(plain(name), ())
            if self.ancestors(synset.id) & set(ROOTS[described.category])
        )
        return list(dict.fromkeys(found))


def class_entity(id: str, nouns: Nouns, corpus: Corpus) -> Entity | None:
    """The class as an entity, with the facts of its definition."""
    synset = nouns.by_id.get(id)
    if synset is None or id in glosses.OTHER_SENSE:
        return None
    noun = glosses.noun_of(nouns.ancestors(id))
    names = synset.lemmas
    kinds = tuple(nouns.by_id[up].lemmas[0] for up in synset.hypernyms if up in nouns.by_id)
    facts = []
    for relation, texts in glosses.facts(synset.gloss, noun, kinds):
        if relation == "kind":
            texts += names  # who names the very bird has named its kind
        answers = accepted(texts)
        gold = corpus.stating([f"wordnet:{id}"], answers)
        if gold:
            relation, _, rank = relation.partition(" ")
            facts.append(Fact(relation, answers, (gold,), blanks=(("rank", rank),)))
    category = "animal" if noun in glosses.LIVING else "thing"
    return Entity(f"class:{id}", category, noun, names, tuple(facts))


def synsets_of(described: Sequence[Described], nouns: Nouns) -> Mapping[str, list[str]]:
    return {one.key: nouns.about(one) for one in described}
