"""decode: the language model answers from the evidence.

A small decoder is told in words: the passages that received attention, those with the most last,
where it heeds them best, then what the picture shows, then the question. One that was trained to
read so answers freely. Where the passages made its answer likelier, that is the answer; else it is
weighed against the drafter's. An untrained one gets two worked examples first, and may only quote a
span of those passages: a model of this size otherwise makes things up (LOG.md has the comparison),
and a quoted answer is grounded by construction.

A large one is instructed by difficulty (`prompts.py`) and reads the kept tokens themselves where
there is a projector for them, or the fused ones where one was trained for those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from skipqa.backbones.backbone import IMAGE, Backbone, Completion, Decoding
from skipqa.backbones.concepts import Concepts
from skipqa.config import DecodeConfig
from skipqa.language import STOP_WORDS, base_forms, words_of
from skipqa.nn import projector as project
from skipqa.nn.projector import Projector
from skipqa.stages.prompts import answer_prompt, parse_answer, reading_prompt
from skipqa.trace import StageRecord
from skipqa.types import (
    Budget,
    Draft,
    Fused,
    KeptTokens,
    Question,
    Region,
    SeenWords,
    Verified,
)

MAX_SHOWN = 2  # regions named to the decoder, the most salient

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
_UNBROKEN = r"[^.;:,()\"]*"  # by punctuation
_EXPLAIN = re.compile(r"(?:how (?:is|are|was|were|do|does|did|can|could)|why)\b")


def decode(
    question: Question,
    drafted: Draft,
    allowed: Budget,
    kept_tokens: KeptTokens,
    regions: Sequence[Region],
    verified: Verified,
    fused: Fused,
    backbone: Backbone,
    config: DecodeConfig,
    record: StageRecord,
) -> str:
    used = read_order(verified, fused)[: config.max_passages]
    shown = names_shown(regions, backbone.concepts)
    texts = facts(verified, used)
    if config.prompt == "short" and not explained(question, texts):
        words = words_shown(kept_tokens.tokens.words, config) or shown
        prompt = reading_prompt(texts, words, question.text)
        unread = reading_prompt([], words, question.text)

        def generate(candidates: Sequence[tuple[str, float]]) -> Completion:
            decoding = Decoding(config.max_new_tokens, candidates=tuple(candidates))
            return backbone.generate(prompt, decoding)

        completion, answer, how = read(generate, texts, unread, drafted, backbone, config)
        answer = as_written(answer, texts)
    elif config.prompt in ("short", "examples"):
        prompt, how = write_prompt(question, texts, shown), "by examples"
        known = words_of(" ".join([question.text, *shown]))
        decoding = Decoding(config.max_new_tokens, tuple(texts), frozenset(known))
        completion = backbone.generate(prompt, decoding)
        answer = completion.text
        if config.prompt == "short":  # it was trained to say little
            answer = whole_clause(answer, texts, question)
    else:
        visual, how, record.flops = _visual_tokens(kept_tokens, fused, backbone.projector)
        if _reads_fused(backbone.projector) and not config.passages_beside_fused:
            used = []
        seen = ", ".join(shown) if visual is None else IMAGE
        best_first = facts(verified, used)[::-1]  # none, where it has just been emptied
        prompt = answer_prompt(allowed.level, seen, best_first, question.text)
        completion = backbone.generate(prompt, Decoding(config.max_new_tokens), visual)
        answer, how = parse_answer(completion.text), f"{allowed.level}, {how}"
    record.flops += completion.flops
    record.kept, record.dropped = len(used), len(verified.passages) - len(used)
    record.why = f"{how}: {completion.prompt_tokens} prompt tokens, {completion.new_tokens} new"
    record.result = prompt
    return answer


def read(
    generate: Callable[[Sequence[tuple[str, float]]], Completion],
    texts: Sequence[str],
    unread: str,
    drafted: Draft,
    backbone: Backbone,
    config: DecodeConfig,
) -> tuple[Completion, str, str]:
    """The trained reader's reply, the answer, and in words how it came to be.

    `complete` lets it reply and weigh other answers beside its own. `unread` is the prompt without
    the facts, the `texts`: an answer that they made likelier is theirs, and the drafter, who has
    read nothing, has no say. One that none of them has a word of is not.
    """
    candidates = backing(drafted, config.drafter_weight)
    completion = generate(list(candidates.items()))
    if not candidates:
        return completion, completion.text, "as the reader says"
    if stated(completion.text, texts):
        (before,), flops = backbone.loglikelihood(unread, [completion.text])
        completion = replace(completion, flops=completion.flops + flops)
        if (gain := completion.candidate_log_probs[-1] - before) > config.grounded_gain:
            return completion, completion.text, f"as the passages say ({gain:+.1f} nats)"
    return completion, *agree(completion, drafted, config.drafter_weight)


def stated(answer: str, texts: Sequence[str]) -> bool:
    """Some word or number of the answer that says anything is in one of the texts."""
    told = {
        form for text in texts for word in _TERM.findall(text) for form in base_forms(word.lower())
    }
    said = (word.lower() for word in _TERM.findall(answer))
    return any(form in told for word in said if word not in STOP_WORDS for form in base_forms(word))


def as_written(answer: str, texts: Sequence[str]) -> str:
    """Spelt as in the best passage that has it: the reader itself writes lower case."""
    found = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)", re.IGNORECASE)
    spellings = (match[0] for text in reversed(texts) if (match := found.search(text)))
    return next(spellings, answer) if answer else answer


def whole_clause(quoted: str, texts: Sequence[str], question: Question) -> str:
    """The quotation widened to its clause: from the word that is asked about, where the clause has
    it before, to the next mark of punctuation."""
    asked = {form for word in question.words for form in base_forms(word)}
    clause = re.compile(rf"({_UNBROKEN}?)(?<!\w)({re.escape(quoted)}{_UNBROKEN})")
    found = next((match for text in reversed(texts) if (match := clause.search(text))), None)
    if not quoted or found is None:
        return quoted
    before, rest = found.groups()
    ends = [m.end() for m in _TERM.finditer(before) if asked & base_forms(m[0].lower())]
    return (before[ends[-1] :] + rest if ends else rest).strip()


def explained(question: Question, texts: Sequence[str]) -> bool:
    """The question asks how or why, and a passage speaks of what it asks: its own words are the
    best answer, longer than any that a reader of short answers would give."""
    if _EXPLAIN.match(question.text.lower()) is None:
        return False
    told = {form for text in texts for word in words_of(text) for form in base_forms(word)}
    return any(form in told for word in question.words for form in base_forms(word))


def agree(completion: Completion, drafted: Draft, weight: float) -> tuple[str, str]:
    """The answer that reader and drafter together find best, and in words how.

    The reader's own answer stands beside the drafter's. One that the drafter's vocabulary lacks
    gets the support of the best, since nothing speaks against it; one that it has and did not
    draft, that of the last. No reply is no answer.
    """
    prior = backing(drafted, weight)
    names = list(prior)
    known = completion.text in drafted.vocabulary
    own = prior.get(completion.text, prior[names[-1] if known else names[0]])
    weighed = zip(
        (*names, completion.text),
        (*prior.values(), own),
        completion.candidate_log_probs,
        strict=True,
    )
    said = [candidate for candidate in weighed if candidate[0]]
    answer = max(said, key=lambda candidate: candidate[2] + candidate[1])[0]
    return (
        answer,
        "as the reader says" if answer == completion.text else f"not {completion.text!r}, drafted",
    )


def backing(drafted: Draft, weight: float) -> dict[str, float]:
    """What the drafter's opinion adds to the log-probability of each answer that it drafted. The
    surer it is that the answer has to be looked up, the less it has to say."""
    weight *= 1 - drafted.abstain_prob
    return {answer: weight * prob for answer, prob in drafted.candidates}


def words_shown(words: SeenWords | None, config: DecodeConfig) -> list[str]:
    if words is None:
        return []
    pairs = zip(words.names, words.probs.tolist(), strict=True)
    return [name for name, prob in pairs if prob > config.min_prob][: config.words]


@torch.inference_mode()
def _visual_tokens(
    kept: KeptTokens, fused: Fused, projector: Projector | None
) -> tuple[Tensor | None, str, int]:
    """What the decoder sees of the image, in words how, and the FLOPs of projecting it."""
    if projector is None:
        return None, "no projector, so words only", 0
    tokens = fused.tokens if _reads_fused(projector) else kept.tokens.features[kept.positions]
    visual = projector(tokens.to(projector.out.weight))
    how = f"{len(tokens)} visual tokens ({projector.config.reads})"
    return visual, how, project.flops(projector.config, len(tokens))


def _reads_fused(projector: Projector | None) -> bool:
    return projector is not None and projector.config.reads == "fused"


def read_order(verified: Verified, fused: Fused) -> list[int]:
    """Passages that some token attended to, by verification score and attention together."""
    total = sum(fused.mass) or 1.0
    worth = [score + mass / total for score, mass in zip(verified.scores, fused.mass, strict=True)]
    attended = [j for j, mass in enumerate(fused.mass) if mass > 0]
    return sorted(attended, key=lambda j: (-worth[j], j))


def facts(verified: Verified, used: Sequence[int]) -> list[str]:
    """The passages to read, the best last; one line each, whatever their own line breaks."""
    return [" ".join(verified.passages[j].passage.text.split()) for j in reversed(used)]


def names_shown(regions: Sequence[Region], concepts: Concepts) -> list[str]:
    names = dict.fromkeys(concepts[region.concepts[0][0]].name for region in regions)
    return list(names)[:MAX_SHOWN]


def write_prompt(question: Question, texts: Sequence[str], shown: Sequence[str]) -> str:
    return EXAMPLES + reading_prompt(texts, shown, question.text)
