"""What a decoder that can follow instructions is asked, and the answer in what it replies.

Prompt E.4 of the paper in our own words where it leaves them open: the difficulty says how far to
reason, and only that level's instruction is given. Enters: passages, what is seen, a question.
Leaves: the prompt; of a reply, the short answer. It knows no model and no conversation's form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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

ENDING = "Answer:"  # of what a small decoder reads
_TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL | re.IGNORECASE)
_LABEL = re.compile(r"^(?:(?:final |short )?answer\s*(?:is)?\s*[:\-]\s*)", re.IGNORECASE)


def answer_prompt(level: Level, seen: str, passages: Sequence[str], question: str) -> str:
    numbered = [f"[{number}] {text}" for number, text in enumerate(passages, 1)]
    return ANSWER_PROMPT.format(
        level=level,
        seen=seen,
        knowledge="\n---\n".join(numbered) or "none",
        question=question,
        depth=DEPTH[level],
    )


def reading_prompt(facts: Sequence[str], shown: Sequence[str], question: str) -> str:
    """What a small decoder reads: facts, the best last, then what is seen, then the question."""
    lines = [f"Fact: {fact}" for fact in facts]
    lines += [f"Picture: {', '.join(shown)}", f"Question: {question}", ENDING]
    return "\n".join(lines)


def parse_answer(completion: str) -> str:
    """What stands in the last pair of tags; without tags the last line, where replies conclude."""
    if tagged := _TAGGED.findall(completion):
        found = tagged[-1]
    else:
        lines = [line for line in completion.splitlines() if line.strip()]
        found = _LABEL.sub("", lines[-1].strip()) if lines else ""
    return " ".join(found.split()).removesuffix(".")
