"""draft: answer at once what needs no knowledge (SKV's fast path).

A trained drafter answers from its vocabulary with its calibrated confidence, of a yes or a no what
is above chance. Without one the only questions whose answer is certain to lie in the image are
those that ask what a thing is. They are answered by the concept that the whole image shows, with
its evidence as the confidence; every other question gets confidence 0 and goes on.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import torch

from skipqa.backbones.concepts import Concept, Concepts
from skipqa.config import DraftConfig
from skipqa.language import base_forms
from skipqa.nn import drafter
from skipqa.nn.drafter import ABSTAIN, Drafter, above_chance
from skipqa.trace import StageRecord
from skipqa.types import Draft, Question, VisualTokens

_POINTER = r"(?:this|that|it|these|those|(?:in|on) th(?:e|is) (?:image|picture|photo))"
_IDENTITY = re.compile(
    rf"(?:what|which)(?: (?:kind|type|sort|breed|species) of)?(?: (?P<noun>[a-z]+(?: [a-z]+)?))?"
    rf" (?:is|are)(?: (?:being )?(?:shown|seen|depicted))? {_POINTER}(?: (?P<after>[a-z]+))?"
)
_COUNTING = re.compile(r"how (?:many|much)\b")


def draft(
    question: Question,
    tokens: VisualTokens,
    concepts: Concepts,
    config: DraftConfig,
    record: StageRecord,
    learned: Drafter | None = None,
) -> Draft:
    """The draft; whether it is `accepted` is the routing decision."""
    if learned is None:
        candidate = _candidate(question, tokens, concepts)
    else:
        candidate, record.flops = _drafted(learned, question, tokens, config.candidates)
    counting = _COUNTING.search(question.text.lower()) is not None
    threshold = config.counting_threshold if counting else config.threshold
    accepted = candidate.confidence > threshold
    record.result = candidate = replace(candidate, accepted=accepted)
    record.kept, record.dropped = int(accepted), int(not accepted)
    verdict = "answered" if accepted else "passed on"
    record.why = f"{verdict}: {candidate.reason} ({candidate.confidence:.2f} of {threshold:.2f})"
    return candidate


@torch.inference_mode()
def _drafted(
    learned: Drafter, question: Question, tokens: VisualTokens, count: int
) -> tuple[Draft, int]:
    """The best `count` answers of the vocabulary, and what finding them cost."""
    seen = tokens.features if tokens.low_res is None else tokens.low_res
    asked = question.states if question.drafter_states is None else question.drafter_states
    words, num_words = None, 0
    if tokens.words is not None:
        words = tokens.words.embeddings[None], tokens.words.probs[None]
        num_words = len(tokens.words.names)
    logits = learned(seen[None], asked[None], words=words)
    answers = learned.config.answers
    probs = learned.log_probs(logits)[0]
    abstain_prob = float(probs[answers.index(ABSTAIN)].exp()) if ABSTAIN in answers else 0.0
    best = probs.topk(min(count + 1, len(answers)))  # one more, which may be to look it up
    ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    candidates = tuple((answers[i], value) for i, value in ranked if answers[i])[:count]
    answer, value = candidates[0]
    sure = above_chance(answer, math.exp(value))
    reason = f"the drafter says {answer}"
    drafted = Draft(answer, sure, reason, candidates, answers, abstain_prob=abstain_prob)
    return drafted, drafter.flops(learned.config, len(asked), num_words)


def _candidate(question: Question, tokens: VisualTokens, concepts: Concepts) -> Draft:
    asked = _IDENTITY.fullmatch(question.text.lower().strip(" ?!."))
    if asked is None:
        return Draft("", 0.0, "the answer may need knowledge")
    noun = asked["noun"] or asked["after"]
    mass = {
        index: float(prob)
        for index, prob in enumerate(tokens.overview)
        if noun is None or _is_a(concepts[index], noun)
    }
    if not mass:
        return Draft("", 0.0, f"nothing here is known to be a {noun}")
    best = max(mass, key=mass.__getitem__)
    return Draft(concepts[best].name, mass[best], "the question asks what is seen")


def _is_a(concept: Concept, noun: str) -> bool:
    return any(noun_form in names for noun_form in base_forms(noun) for names in concept.kinds)
