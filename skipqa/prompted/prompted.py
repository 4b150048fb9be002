"""Prompted mode as one value: an endpoint, a model, a library and settings.

Enters: images and questions, one by one or as a batch. Leaves: a `PromptedAnswer` for each. What is
asked in which order is in `pathway.py` and `baselines.py`. Bad output of a model never raises; only
the endpoint (`EndpointError`) and the input (`UserError`) can be at fault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from skipqa.errors import UserError
from skipqa.image import open_image
from skipqa.knowledge import Library
from skipqa.prompted.answer import JudgedPassage, PromptedAnswer, Route
from skipqa.prompted.asking import Asking, Report, concurrently
from skipqa.prompted.baselines import Describe, answer_from_caption, describe_by_endpoint
from skipqa.prompted.config import PromptedConfig
from skipqa.prompted.endpoint import Endpoint, EndpointError
from skipqa.prompted.images import as_picture
from skipqa.prompted.parsing import one_line
from skipqa.prompted.pathway import Pathway
from skipqa.prompted.prompts import Example
from skipqa.prompted.retrieval import search
from skipqa.state import ImageSource

Progress = Callable[[int, int], None]  # how many questions are done, of how many


class Prompted:
    """`endpoint` is an address, whose key is in the environment, or an `Endpoint`. The baselines
    need no library; `examples` and `describe` are theirs alone."""

    def __init__(
        self,
        endpoint: Endpoint | str,
        model: str,
        library: Library | None,
        config: PromptedConfig | None = None,
        *,
        examples: Sequence[Example] = (),
        describe: Describe | None = None,
    ) -> None:
        self.config = config or PromptedConfig()
        if isinstance(endpoint, str):
            endpoint = Endpoint(endpoint, config=self.config.endpoint)
        self.endpoint, self.model, self.library = endpoint, model, library
        self.examples, self.describe = tuple(examples), describe
        if self.config.method == "skip" and library is None:
            raise UserError("prompted mode needs a library to search")
        if self._needs_captions and describe is None:
            raise UserError(
                "PICa needs a caption of every image: give them, or set captions=endpoint"
            )
        self._searching = threading.Lock()  # encoders keep what they last encoded

    @property
    def _needs_captions(self) -> bool:
        return self.config.method == "pica" and self.config.captions == "given"

    def answer(
        self, image: ImageSource, question: str, *, report: Report = lambda _: None
    ) -> PromptedAnswer:
        """`report` is called with the name of each step."""
        return self._answer(Asking(self.endpoint, self.model, report), image, question)

    def answer_batch(
        self,
        images: Sequence[ImageSource],
        questions: Sequence[str],
        *,
        progress: Progress = lambda done, total: None,
    ) -> list[PromptedAnswer]:
        """`questions[i]` is about `images[i]`; as many are asked at a time as the endpoint may have
        calls in flight.

        A question that fails has an answer with its `error` and what it has spent. Where the
        endpoint would refuse every question, the batch ends with its `EndpointError`.
        """
        if len(images) != len(questions):
            raise UserError(f"{len(images)} images and {len(questions)} questions do not match")
        answers: dict[int, PromptedAnswer] = {}
        asked = list(enumerate(zip(images, questions, strict=True)))
        work = concurrently(asked, self._answer_or_error, self.endpoint.config.concurrency)
        for (number, _), answer in work:
            answers[number] = answer
            progress(len(answers), len(asked))
        return [answers[number] for number in range(len(asked))]

    def _answer_or_error(self, asked: tuple[int, tuple[ImageSource, str]]) -> PromptedAnswer:
        _, (image, question) = asked
        asking = Asking(self.endpoint, self.model)
        try:
            return self._answer(asking, image, question)
        except UserError as error:
            if isinstance(error, EndpointError) and error.for_everyone:
                raise
            route: Route = "full" if self.config.method == "skip" else "caption"
            failed = PromptedAnswer(question, "", route, error=one_line(str(error)))
            return _with_costs(failed, asking)

    def _answer(self, asking: Asking, image: ImageSource, question: str) -> PromptedAnswer:
        asked = one_line(question)
        if not asked:
            raise UserError("the question is empty")
        if self.config.method == "skip":
            pathway = Pathway(asking, self._search, self.config, open_image(image), asked)
            return _with_costs(pathway.run(), asking)
        caption = self._caption(asking, image, asked)
        num_examples = self.config.examples
        answer = answer_from_caption(asking, asked, caption, self.examples, num_examples)
        return _with_costs(answer, asking)

    def _caption(self, asking: Asking, image: ImageSource, question: str) -> str:
        if self._needs_captions:
            assert self.describe is not None
            return one_line(self.describe(image))
        picture = as_picture(open_image(image), self.config.image_side)
        return describe_by_endpoint(asking, question, picture, self.config)

    def _search(self, queries: Sequence[str], question: str, most: int) -> list[JudgedPassage]:
        assert self.library is not None
        with self._searching:
            return search(self.library, queries, question, most, self.config)


def _with_costs(answer: PromptedAnswer, asking: Asking) -> PromptedAnswer:
    calls, fallbacks = tuple(asking.calls), tuple(asking.fallbacks)
    return replace(answer, calls=calls, fallbacks=fallbacks, seconds=asking.seconds)
