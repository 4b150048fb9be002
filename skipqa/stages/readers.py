"""The readers: how a decoder of each kind answers from the evidence.

- `ShortReader`: a small decoder trained to read, or one that follows instructions. It answers in a
  few words; where the passages made its answer more probable, that is the answer, else it is scored
  together with the drafter's. Tokens that a fusion reader left are the first fact of its prompt.
- `QuotingReader`: a small decoder as published. It sees two worked examples and may only quote a
  span of the passages: a model of this size otherwise makes things up (LOG.md has the comparison),
  and a quoted answer is grounded by construction.
- `InstructedReader`: a large decoder. It is instructed by difficulty and reads visual tokens where
  there is a projector for them, kept or fused ones.

Enters: a state with everything but the answer, and the facts to read, the best last. Leaves: a
`Reading`. Which passages are read is decided in `decode.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Protocol

import torch
from torch import Tensor

from skipqa.backbones.backbone import IMAGE, Backbone, Completion, Decoding
from skipqa.config import DecodeConfig
from skipqa.language import STOP_WORDS, all_forms, base_forms, words_of
from skipqa.nn import projector as network
from skipqa.nn.projector import Projector
from skipqa.stages.prompts import (
    answer_prompt,
    chat_prompt,
    parse_answer,
    reading_prompt,
    trained_prompt,
)
from skipqa.stages.regions import posterior
from skipqa.state import State
from skipqa.types import Decoded, Draft, Question, SeenWords

LONG_NAME = 6  # letters
ALIKE = 0.9  # of two spellings: the matching letters of all
ALIKE_IN_PART = 0.75  # the same where a word of the name is right
SURE_WORD = 4  # letters
MAX_SHOWN = 2  # regions whose names the decoder reads, the most salient

EXAMPLES = """\
Fact: lantern (noun): a lamp in a case of glass that shields its flame from the wind
Picture: lantern
Question: What does the glass do?
Answer: it shields the flame from the wind

Fact: leipajuusto (noun): soft cheese from the north of Finland, often eaten with cloudberries
Picture: cheese
Question: Which country does this food come from?
Answer: Finland

"""
_TERM = re.compile(r"[^\W_]+")  # a word or a number
_NAME_WORD = re.compile(r"[\w'’.-]*\w\.?")  # "Mrs." and "Oyelaran-Smith" are one word each
_UNBROKEN = r"[^.;:,()\"]*"  # by punctuation
_EXPLAIN = re.compile(r"(?:how (?:is|are|was|were|do|does|did|can|could)|why)\b")


@dataclass(frozen=True, slots=True)
class Reading:
    answer: Decoded
    prompt: str
    completion: Completion
    how: str  # how the answer came about, for the trace
    flops: int = 0  # besides those of the completion


class Reader(Protocol):
    @property
    def max_passages(self) -> int: ...

    def __call__(self, state: State, facts: Sequence[str]) -> Reading: ...


class Generate(Protocol):
    """How the facts reach the decoder: in one prompt, or in one each."""

    def __call__(
        self,
        write: Callable[[Sequence[str]], str],
        facts: Sequence[str],
        decoding: Decoding,
        visual: Tensor | None = None,
    ) -> tuple[Completion, str]:
        """The completion and the prompt, which `write` makes from facts; `visual` tokens stand in
        place of its `IMAGE`."""


class ReadTogether:
    """All facts in one prompt."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def __call__(
        self,
        write: Callable[[Sequence[str]], str],
        facts: Sequence[str],
        decoding: Decoding,
        visual: Tensor | None = None,
    ) -> tuple[Completion, str]:
        prompt = write(facts)
        return self.backbone.generate(prompt, decoding, visual), prompt


class QuotingReader:
    def __init__(self, config: DecodeConfig, backbone: Backbone, generate: Generate) -> None:
        self.max_passages, self.max_new_tokens = config.max_passages, config.max_new_tokens
        self.backbone, self.generate = backbone, generate

    def __call__(self, state: State, facts: Sequence[str]) -> Reading:
        shown, asked = names_shown(state, self.backbone), state.question.text

        def write(texts: Sequence[str]) -> str:
            return EXAMPLES + reading_prompt(texts, shown, asked)

        known = words_of(" ".join([asked, *shown]))
        decoding = Decoding(self.max_new_tokens, quote_from=tuple(facts), avoid=frozenset(known))
        completion, prompt = self.generate(write, facts, decoding)
        answer = Decoded(completion.text, grounded=bool(facts and completion.text))
        return Reading(answer, prompt, completion, "by examples")


class ClauseReader:
    """Quotes, and widens the quotation to its clause: for a decoder trained to say little."""

    def __init__(self, quoting: QuotingReader) -> None:
        self.quoting, self.max_passages = quoting, quoting.max_passages

    def __call__(self, state: State, facts: Sequence[str]) -> Reading:
        reading = self.quoting(state, facts)
        clause = whole_clause(reading.answer.text, facts, state.question)
        return replace(reading, answer=replace(reading.answer, text=clause))


class ShortReader:
    """`explain`, where given, answers how and why: there a few words would not do."""

    def __init__(
        self,
        config: DecodeConfig,
        backbone: Backbone,
        generate: Generate,
        explain: Reader | None = None,
    ) -> None:
        self.config, self.backbone = config, backbone
        self.generate, self.explain = generate, explain
        self.max_passages = config.max_passages

    def __call__(self, state: State, facts: Sequence[str]) -> Reading:
        if self.explain is not None and asks_to_explain(state.question, facts):
            return self.explain(state, facts)
        first = names_asked_about(state, self.backbone, self.config)
        words = words_shown(state.kept.tokens.words, self.config)
        words = list(dict.fromkeys((*first, *words)))[: self.config.words]
        shown, asked = words or names_shown(state, self.backbone), state.question.text
        fused = state.fused.for_decoder

        def write(texts: Sequence[str]) -> str:
            return prompt_of(self.config)(texts, shown, asked, fused=fused is not None)

        candidates = tuple(
            (answer, log_prior(answer, log_prob, state.draft, self.config))
            for answer, log_prob in state.draft.candidates
        )
        decoding = Decoding(
            self.config.max_new_tokens,
            candidates=candidates,
            completion_log_prior=self.config.own_weight,
        )
        completion, prompt = self.generate(write, facts, decoding, fused)
        reading = Reading(Decoded(completion.text), prompt, completion, "as the reader says")
        facts = facts if fused is None else [*facts, *_attended(state)]
        if candidates:
            alone = prompt_of(self.config)([], shown, asked)
            reading = self._judged(reading, state.draft, facts, alone)
        spelled = spelled_as_in(reading.answer.text, facts)
        return replace(reading, answer=replace(reading.answer, text=spelled))

    def _judged(
        self, reading: Reading, draft: Draft, facts: Sequence[str], without_facts: str
    ) -> Reading:
        """The decoder's own answer if the facts made it likelier than the prompt `without_facts`:
        then the drafter, which has read nothing, has no say. An answer that shares no word with
        the facts cannot rest on them. Else the best of decoder and drafter together."""
        completion, flops = reading.completion, 0
        if has_a_word_of(completion.text, facts):
            (before,), flops = self.backbone.loglikelihood(without_facts, [completion.text])
            own = completion.candidate_log_probs[-1]
            if (gain := own - before) > self.config.grounded_gain:
                answer = Decoded(completion.text, own, grounded=True)
                how = f"as the passages say ({gain:+.1f} nats)"
                return replace(reading, answer=answer, how=how, flops=flops)
        text, log_prob = best_of_both(completion, draft, self.config)
        how = reading.how
        if text != completion.text:
            how = f"the drafter's answer; the decoder said {completion.text!r}"
        answer = Decoded(text, log_prob, grounded=False)
        return replace(reading, answer=answer, how=how, flops=flops)


class InstructedReader:
    def __init__(self, config: DecodeConfig, backbone: Backbone) -> None:
        self.config, self.backbone = config, backbone

    @property
    def max_passages(self) -> int:
        """None as text where the decoder reads fused tokens alone (algorithm 1)."""
        if _reads_fused(self.backbone.projector) and not self.config.passages_with_fused:
            return 0
        return self.config.max_passages

    def __call__(self, state: State, facts: Sequence[str]) -> Reading:
        visual, how, flops = self._visual_tokens(state)
        seen = ", ".join(names_shown(state, self.backbone)) if visual is None else IMAGE
        level, asked = state.budget.level, state.question.text
        prompt = answer_prompt(level, seen, facts[::-1], asked)  # the best first
        completion = self.backbone.generate(prompt, Decoding(self.config.max_new_tokens), visual)
        answer = Decoded(parse_answer(completion.text))
        return Reading(answer, prompt, completion, f"{level}, {how}", flops)

    @torch.inference_mode()
    def _visual_tokens(self, state: State) -> tuple[Tensor | None, str, int]:
        """What the decoder sees of the image, in words how, and the FLOPs of projecting it."""
        projector, kept = self.backbone.projector, state.kept
        if projector is None:
            return None, "no projector, so words only", 0
        fused = _reads_fused(projector)
        tokens = state.fused.tokens if fused else kept.tokens.features[kept.positions]
        visual = projector(tokens.to(projector.out.weight))
        how = f"{len(tokens)} visual tokens ({projector.config.reads})"
        return visual, how, network.flops(projector.config, len(tokens))


def _attended(state: State) -> list[str]:
    """What the decoder read as fused tokens."""
    read = zip(state.verified.passages, state.fused.mass, strict=True)
    return [passage.text for passage, mass in read if mass > 0]


class WritePrompt(Protocol):
    def __call__(
        self, facts: Sequence[str], shown: Sequence[str], question: str, *, fused: bool = False
    ) -> str: ...


def prompt_of(config: DecodeConfig) -> WritePrompt:
    if config.prompt == "chat":
        return chat_prompt
    return trained_prompt if config.lower_case else reading_prompt


def _reads_fused(projector: Projector | None) -> bool:
    return projector is not None and projector.config.reads == "fused"


def has_a_word_of(answer: str, facts: Sequence[str]) -> bool:
    """Some content word or number of the answer is in one of the facts."""
    told = all_forms(word.lower() for text in facts for word in _TERM.findall(text))
    said = (word.lower() for word in _TERM.findall(answer))
    return any(form in told for word in said if word not in STOP_WORDS for form in base_forms(word))


def spelled_as_in(answer: str, facts: Sequence[str]) -> str:
    """Spelled as in the best fact that has it: the trained decoder writes lower case. Of a long
    name, which has pieces that it never saw together, it may miss a letter."""
    if not answer:
        return answer
    found = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)", re.IGNORECASE)
    spellings = (match[0] for text in reversed(facts) if (match := found.search(text)))
    exact = next(spellings, None)
    return exact or next((name for text in reversed(facts) for name in _like(answer, text)), answer)


def _like(answer: str, text: str) -> Iterator[str]:
    """Names in the text that differ from the answer by a letter or two within it: as many words,
    one of them capitalised and long. Endings count: "California" is not "Californian"."""
    words, said = [match.span() for match in _NAME_WORD.finditer(text)], answer.lower()
    count = len(said.split())
    for first in range(len(words) - count + 1 if count else 0):
        span = text[words[first][0] : words[first + count - 1][1]]
        if not said.endswith("."):  # it ends the sentence, not the name
            span = span.removesuffix(".")
        own = span.lower()
        is_name = any(len(w) >= LONG_NAME and w[0].isupper() for w in span.split())
        same_ends = (own[0], own[-1]) == (said[0], said[-1])
        enough = ALIKE_IN_PART if _right_in_part(said, span) else ALIKE
        if is_name and same_ends and SequenceMatcher(None, said, own).ratio() >= enough:
            yield span


def _right_in_part(said: str, name: str) -> bool:
    """A word of the name is right ("raya begum" for Rahima Begum), and all begin as they should."""
    pairs = list(zip(said.split(), name.split(), strict=False))
    right = any(own.lower() == word and len(word) >= SURE_WORD for word, own in pairs)
    return right and all(own[0].isupper() and own[0].lower() == word[0] for word, own in pairs)


def whole_clause(quoted: str, facts: Sequence[str], question: Question) -> str:
    """The quotation widened to its clause: from the word asked about, if the clause has it
    earlier, to the next punctuation mark."""
    asked = all_forms(question.words)
    clause = re.compile(rf"({_UNBROKEN}?)(?<!\w)({re.escape(quoted)}{_UNBROKEN})")
    found = next((match for text in reversed(facts) if (match := clause.search(text))), None)
    if not quoted or found is None:
        return quoted
    before, rest = found.groups()
    ends = [m.end() for m in _TERM.finditer(before) if asked & base_forms(m[0].lower())]
    return (before[ends[-1] :] + rest if ends else rest).strip()


def asks_to_explain(question: Question, facts: Sequence[str]) -> bool:
    """The question asks how or why, and a fact speaks of what it asks: its own words are the best
    answer, longer than a short answer would be."""
    if _EXPLAIN.match(question.text.lower()) is None:
        return False
    told = all_forms(word for text in facts for word in words_of(text))
    return not told.isdisjoint(all_forms(question.words))


def best_of_both(completion: Completion, draft: Draft, config: DecodeConfig) -> tuple[str, float]:
    """The answer that decoder and drafter together find best, and the decoder's log-probability.

    The decoder's own answer competes with the drafter's. One that the drafter's vocabulary lacks
    has the drafter's log-probability of its best, since nothing speaks against it; one that it has
    and did not draft, that of its last. An empty completion is no answer.
    """
    own, drafted = completion.text, dict(draft.candidates)
    in_order = list(drafted.values())
    support = drafted.get(own, in_order[-1 if own in draft.vocabulary else 0])
    scored = zip((*draft.candidates, (own, support)), completion.candidate_log_probs, strict=True)

    def joint(candidate: tuple[tuple[str, float], float]) -> float:
        (answer, support), log_prob = candidate
        extra = config.own_weight if answer == own else 0.0
        return log_prob + log_prior(answer, support, draft, config) + extra

    (answer, _), log_prob = max((one for one in scored if one[0][0]), key=joint)
    return answer, log_prob


def log_prior(answer: str, drafter_log_prob: float, draft: Draft, config: DecodeConfig) -> float:
    """What is added to the decoder's log-probability of an answer. The drafter counts the less, the
    more probable it thinks that the answer needs retrieval."""
    weight = config.drafter_weight * (1 - draft.abstain_prob)
    return weight * drafter_log_prob + config.frequency_weight * draft.log_frequency(answer)


def words_shown(words: SeenWords | None, config: DecodeConfig) -> list[str]:
    if words is None:
        return []
    pairs = zip(words.names, words.probs.tolist(), strict=True)
    return [name for name, prob in pairs if prob > config.min_prob][: config.words]


def names_asked_about(state: State, backbone: Backbone, config: DecodeConfig) -> list[str]:
    """Of what the most salient region shows, the best first, for a question about one kind of
    thing; none for others, which are about the whole image."""
    prior = state.question.concept_prior
    if not config.region_words or prior is None or prior.information < config.min_information:
        return []
    probs = posterior(max(state.regions, key=lambda region: region.saliency), prior.weights)
    best = sorted(probs, key=lambda concept: -probs[concept])[: config.region_words]
    return [backbone.concepts[concept].name for concept in best]


def names_shown(state: State, backbone: Backbone) -> list[str]:
    shown = (region.concepts[0][0] for region in state.regions if region.concepts)
    names = dict.fromkeys(backbone.concepts[concept].name for concept in shown)
    return list(names)[:MAX_SHOWN]
