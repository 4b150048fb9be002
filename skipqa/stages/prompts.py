"""The prompts of large and small decoders, and the answer in a completion.

Enters: passages, what the image shows, the question. Leaves: the prompt; from a completion, the
short answer. Prompt E.4 of the paper is in our own words where the paper leaves them open: the
difficulty says how far to reason, and only that level's instruction is given. Passages and
questions are data: nothing in them can pass for a tag or a line of the prompt's own structure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from skipqa.backbones.backbone import IMAGE
from skipqa.types import Level

DEPTH: dict[Level, str] = {
    "EASY": "Answer in at most two sentences, from what the image shows.",
    "MEDIUM": "Join one or two of the passages with what the image shows, then answer.",
    "HARD": (
        "Reason step by step over the image and all passages, citing passages by their numbers, "
        "then answer."
    ),
}

ANSWER_PROMPT = """\
You answer questions about an image that need knowledge from outside it. You are given the regions \
of the image that matter to the question and passages that were checked against it. Reason as far \
as the difficulty asks for and rely on the passages rather than on memory.
<difficulty>{level}</difficulty>
<image_regions>
{seen}
</image_regions>
<verified_knowledge>
{knowledge}
</verified_knowledge>
<question>{question}</question>
{depth}
End with the answer alone, a few words at most, between tags: <answer>...</answer>"""

ENDING = "Answer:"  # of the short prompt
BRIEFLY = "Answer with one to three words in lower case and nothing else."
IN_A_SENTENCE = "Answer in one sentence. Use the facts where they help."
_TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL | re.IGNORECASE)
# What a prompt, a chat template or a tokenizer would take for structure
_TAG = re.compile(
    r"<(?=/?(?:difficulty|image_regions|verified_knowledge|question|answer|image|s)\b|\|)",
    re.IGNORECASE,
)
_ROLE = re.compile(r"\b(USER|ASSISTANT|SYSTEM):")
_LINE_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_LABEL = re.compile(r"^(?:(?:final |short )?answer\s*(?:is)?\s*[:\-]\s*)", re.IGNORECASE)


def answer_prompt(level: Level, seen: str, passages: Sequence[str], question: str) -> str:
    """`seen` is the image token, or the names of what the regions show."""
    numbered = [f"[{number}] {as_data(text)}" for number, text in enumerate(passages, 1)]
    return ANSWER_PROMPT.format(
        level=level,
        seen=seen,
        knowledge="\n---\n".join(numbered) or "none",
        question=as_data(question),
        depth=DEPTH[level],
    )


def reading_prompt(
    facts: Sequence[str], shown: Sequence[str], question: str, *, fused: bool = False
) -> str:
    """The short prompt: facts, the best last, then what is seen, then the question. `fused` tokens
    are the first of the facts."""
    lines = _facts(facts, fused)
    lines += [f"Picture: {', '.join(shown)}", f"Question: {as_data(question)}", ENDING]
    return "\n".join(lines)


def trained_prompt(
    facts: Sequence[str], shown: Sequence[str], question: str, *, fused: bool = False
) -> str:
    """The short prompt of a reader that was trained on passages in lower case."""
    return reading_prompt([fact.lower() for fact in facts], shown, question, fused=fused)


def chat_prompt(
    facts: Sequence[str], shown: Sequence[str], question: str, *, fused: bool = False
) -> str:
    """What the user says to a decoder that follows instructions: facts, the best last."""
    return _chat(_facts(facts, fused), shown, question, BRIEFLY)


def sentence_prompt(facts: Sequence[str], shown: Sequence[str], question: str) -> str:
    """As `chat_prompt`, for an answer in a sentence."""
    return _chat(_facts(facts), shown, question, IN_A_SENTENCE)


def _facts(facts: Sequence[str], fused: bool = False) -> list[str]:
    return [f"Fact:{IMAGE}"] * fused + [f"Fact: {as_data(fact)}" for fact in facts]


def _chat(facts: list[str], shown: Sequence[str], question: str, how: str) -> str:
    asked = [f"The photo shows: {', '.join(shown)}", f"Question: {as_data(question)}", how]
    return "\n".join([*facts, *asked])


def as_data(text: str) -> str:
    """On one line, and with a space inside everything that could pass for structure: readable, but
    no tag, special token or turn of a conversation."""
    return _ROLE.sub(r"\1 :", _TAG.sub("< ", _LINE_BREAKS.sub(" ", text)))


def parse_answer(completion: str) -> str:
    """The text in the last pair of tags; without tags the last line, where completions conclude."""
    if tagged := _TAGGED.findall(completion):
        found = tagged[-1]
    else:
        lines = [line for line in completion.splitlines() if line.strip()]
        found = _LABEL.sub("", lines[-1].strip()) if lines else ""
    return " ".join(found.split()).removesuffix(".")
