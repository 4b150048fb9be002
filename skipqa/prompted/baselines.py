"""PICa and PromptCap over the same endpoint: a caption instead of the image, worked examples.

Enters: a question and a caption, or the image to describe; examples from a file. Leaves: an answer
that was given without seeing the image. PICa's caption (Yang et al., 2022) knows no question and
may come from elsewhere, so that no image is sent at all; PromptCap's (Hu et al., 2023) is written
for the question. Neither retrieves anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.files import check_object, read_jsonl
from skipqa.language import all_forms, content_words
from skipqa.prompted import parsing, prompts
from skipqa.prompted.answer import PromptedAnswer
from skipqa.prompted.asking import Asking, Prompt
from skipqa.prompted.config import PromptedConfig
from skipqa.prompted.endpoint import Picture
from skipqa.prompted.prompts import Example
from skipqa.state import ImageSource

Describe = Callable[[ImageSource], str]  # the caption, or words, of an image
NO_CAPTION = "no description"
SHORT_ANSWER = 256  # tokens: a few words, and none for reasoning


def read_examples(path: Path) -> tuple[Example, ...]:
    """JSON Lines with `question`, `caption`, and `answer` or a list of `answers`, of which the most
    frequent counts."""
    return tuple(
        Example(row["caption"], row["question"], _answer(f"{path} row {number}", row))
        for number, row in _rows(path, {"question": str, "caption": str})
    )


def read_captions(path: Path) -> Describe:
    """JSON Lines with `image` and `caption`. An image is known by its path as written, by the same
    path next to the file, or by its name alone where no two have that name."""
    captions: dict[str, str] = {}
    names: Counter[str] = Counter()
    for _, row in _rows(path, {"image": str, "caption": str}):
        image = Path(row["image"])
        captions[str(image)] = captions[str(path.parent / image)] = row["caption"]
        names[image.name] += 1
        if names[image.name] == 1:
            captions.setdefault(image.name, row["caption"])

    def describe(image: ImageSource) -> str:
        if not isinstance(image, str | Path):
            raise UserError("captions are by path: give the image as one")
        named = Path(image)
        known = captions.get(str(named))
        if known is None and names[named.name] == 1:
            known = captions.get(named.name)
        if known is None:
            raise UserError(f"{path} has no caption of {image}")
        return known

    return describe


def choose(
    examples: Sequence[Example], question: str, caption: str, most: int
) -> tuple[Example, ...]:
    """Those whose questions have most words in common with this one (Jaccard), the most similar
    last, next to the question; the asked question itself is none."""
    asked = all_forms(content_words(question))

    def similarity(example: Example) -> float:
        words = all_forms(content_words(example.question))
        return len(asked & words) / (len(asked | words) or 1)

    others = [e for e in examples if (e.question, e.caption) != (question, caption)]
    best = sorted(range(len(others)), key=lambda n: (-similarity(others[n]), n))[:most]
    return tuple(others[n] for n in reversed(best))


def describe_by_endpoint(
    asking: Asking, question: str, picture: Picture, config: PromptedConfig
) -> str:
    """PromptCap's caption knows the question, PICa's does not."""
    aware, words = config.method == "promptcap", config.caption_words
    text = prompts.aware_caption_prompt(question, words) if aware else prompts.caption_prompt(words)
    said = asking.ask("caption", Prompt(text, picture), config.max_tokens)
    caption = parsing.read_caption(said.text, words)
    if not caption:
        asking.fall_back("caption: none was given, the question is answered without")
    return caption


def answer_from_caption(
    asking: Asking, question: str, caption: str, examples: Sequence[Example], most: int
) -> PromptedAnswer:
    chosen = choose(examples, question, caption, most)
    text = prompts.captioned_prompt(question, caption or NO_CAPTION, chosen)
    said = asking.ask("answer", Prompt(text), SHORT_ANSWER)
    read = parsing.read_answer(said.text, 0)
    if not read.text:
        asking.fall_back("answer: none was given")
    elif not read.tagged:
        asking.fall_back("answer: no tags, its last line is taken")
    return PromptedAnswer(question, read.text, "caption", caption=caption)


def _rows(path: Path, fields: dict[str, type]) -> list[tuple[int, dict[str, Any]]]:
    rows = read_jsonl(path)
    return [(n, check_object(f"{path} row {n}", row, fields)) for n, row in enumerate(rows, 1)]


def _answer(where: str, row: dict[str, Any]) -> str:
    given = row.get("answer", row.get("answers"))
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise UserError(f"{where} needs `answer`, a text, or `answers`, a list of texts")
    return Counter(texts).most_common(1)[0][0]
