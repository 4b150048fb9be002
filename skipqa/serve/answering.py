"""From a question with options to an answer that a client can read: the work of a worker process.

Enters: `Options`, a photo's bytes, a question. Leaves: the outline of the answer, its text with
citations in pieces, and how many tokens were read. Pipelines with other indexes or budgets share
the networks of the first; the last few are kept. It knows nothing of processes or of HTTP.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from skipqa.answer import Answer
from skipqa.errors import UserError
from skipqa.evaluation.systems import build as build_system
from skipqa.evaluation.systems.budgets import with_budget
from skipqa.knowledge import Library
from skipqa.pipeline import Pipeline
from skipqa.serve.options import Options
from skipqa.text_only import text_only

Key = TypeVar("Key")
Value = TypeVar("Value")
KEPT = 16  # pipelines, the last that were asked
MAX_QUESTION_TOKENS = 1_000
MAX_CITED = 240  # characters of a passage that a citation quotes


class Pipelines:
    def __init__(self, base: Pipeline) -> None:
        self.base = base
        self._with_image: OrderedDict[Options, Pipeline] = OrderedDict()
        self._text_only: OrderedDict[Options, Pipeline] = OrderedDict()
        self._libraries: OrderedDict[tuple[str, ...], Library] = OrderedDict()

    def get(self, options: Options, *, has_image: bool) -> Pipeline:
        key = replace(options, fast_path=True, citations=True)  # these do not change a pipeline
        if has_image:
            return _recall(self._with_image, key, lambda: self._build(key))
        return _recall(self._text_only, key, lambda: text_only(self._build(key)))

    def _build(self, options: Options) -> Pipeline:
        pipeline = self.base
        if options.indexes:
            pipeline = pipeline.with_library(self._library(options.indexes))
        if options.tokens is not None or options.passages is not None:
            pipeline = with_budget(pipeline, options.tokens, options.passages)
        if options.system != "skip":  # which has the last word on what is its own
            pipeline = build_system(options.system, pipeline)
        if (threshold := options.threshold) is not None:
            both = {"threshold": threshold, "counting_threshold": threshold}
            pipeline = pipeline.with_config(draft=both)
        return pipeline

    def _library(self, indexes: tuple[str, ...]) -> Library:
        trained_query = self.base.components.sparse_query

        def opened() -> Library:
            try:
                return Library.open(indexes, trained_query=trained_query)
            except UserError:  # its message names folders of this machine
                raise UserError("an index that the question names cannot be opened") from None

        return _recall(self._libraries, indexes, opened)


def _recall(kept: OrderedDict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """The kept value, or a new one in place of the one that was not asked for the longest."""
    value = kept.pop(key) if key in kept else make()
    kept[key] = value
    if len(kept) > KEPT:
        kept.popitem(last=False)
    return value


def check_length(question: str, pipeline: Pipeline) -> None:
    """Refuse a question whose few characters are very many tokens: numbers, rare scripts."""
    tokenizer = getattr(pipeline.backbone, "decoder_tokenizer", None)
    if tokenizer is None:
        return
    if (count := len(tokenizer.encode(question).ids)) > MAX_QUESTION_TOKENS:
        limit = MAX_QUESTION_TOKENS
        raise UserError(f"the question has {count:,} tokens, over the limit of {limit:,}")


def reply(answer: Answer, options: Options, pipeline: Pipeline) -> dict[str, Any]:
    """What goes back to the HTTP process."""
    outline = {**answer.outline(), "system": options.system}
    pieces = pieces_of(content(outline, citations=options.citations), pipeline)
    state = answer.state
    seen = len(state.kept.positions) if "kept" in state else len(state.low_res)
    read = len(state.question.states) + seen + state.answer.prompt_tokens
    return {"outline": outline, "pieces": pieces, "prompt_tokens": read}


def content(outline: Mapping[str, Any], *, citations: bool) -> str:
    """The answer as text, with the passages that it rests on if any: many clients show no more."""
    cited = [passage for passage in outline["passages"] if passage["cited"]]
    if not citations or not cited or outline["grounded"] is False:
        return str(outline["answer"])
    marks = "".join(f"[{passage['number']}]" for passage in cited)
    return "\n".join(
        [f"{outline['answer']} {marks}", "", *(_citation(passage) for passage in cited)]
    )


def _citation(passage: Mapping[str, Any]) -> str:
    """One line, so that no passage can pass for another citation or for the answer."""
    said = " ".join(passage["read"].split())
    if len(said) > MAX_CITED:
        said = said[:MAX_CITED].rsplit(" ", 1)[0] + " …"
    title = " ".join(passage["title"].split())
    return f"[{passage['number']}] {title}: {said} ({passage['id']})"


def pieces_of(text: str, pipeline: Pipeline) -> list[str]:
    """The text cut where the decoder's tokens end: what a stream sends one by one."""
    tokenizer = getattr(pipeline.backbone, "decoder_tokenizer", None)
    if tokenizer is None:
        words = text.split(" ")
        return [word if n == 0 else f" {word}" for n, word in enumerate(words)]
    ends = [end for _, end in tokenizer.encode(text, add_special_tokens=False).offsets]
    pieces, start = [], 0
    for end in [*ends, len(text)]:
        if end > start:
            pieces.append(text[start:end])
            start = end
    return pieces
