"""SKIP's pathway by prompts: draft and difficulty, regions, queries, search, relevance, answer.

Enters: one question about one image, with what asks and what searches. Leaves: the answer with all
that led to it. Each method is one step, in the order of `run`; each has a fallback for a reply that
cannot be read, and names it when it uses it. It does not know HTTP or how an index is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from PIL import Image

from skipqa.language import content_words
from skipqa.prompted import parsing, prompts
from skipqa.prompted.answer import WHOLE_IMAGE, JudgedPassage, NamedRegion, PromptedAnswer
from skipqa.prompted.asking import Asking, Prompt
from skipqa.prompted.config import PromptedConfig
from skipqa.prompted.endpoint import Picture
from skipqa.prompted.images import as_picture, crop
from skipqa.types import Level

Search = Callable[[Sequence[str], str, int], list[JudgedPassage]]  # queries, question, at most
WHOLE = NamedRegion("the whole image", WHOLE_IMAGE, 1.0)


@dataclass(frozen=True)
class Pathway:
    asking: Asking
    search: Search
    config: PromptedConfig
    image: Image.Image
    question: str

    def run(self) -> PromptedAnswer:
        picture = as_picture(self.image, self.config.image_side)
        draft, level = self.draft(picture)
        if level == "EASY":
            return PromptedAnswer(self.question, draft, "draft", level, draft)
        budget = self.config.hard if level == "HARD" else self.config.medium
        regions = self.regions(picture, budget.regions)
        queries = self.queries(picture, regions)
        self.asking.report("search")
        found = self.search(queries, self.question, budget.passages)
        passages = self.judge(regions, found) if found else ()
        kept = [passage.text for passage in passages if passage.kept]
        prompt = prompts.answer_prompt(level, self.question, regions, kept)
        text, cited = self.answer(Prompt(prompt, picture), len(kept), draft)
        return PromptedAnswer(
            question=self.question,
            text=text,
            route="full",
            difficulty=level,
            draft=draft,
            regions=regions,
            queries=queries,
            # Kept passages come first: their numbers in the prompt are their places here
            passages=tuple(replace(p, cited=n in cited) for n, p in enumerate(passages)),
        )

    def draft(self, picture: Picture) -> tuple[str, Level]:
        """An answer that may be empty, and the difficulty; EASY only if the answer can stay."""
        prompt = Prompt(prompts.draft_prompt(self.question), picture)
        said = self.asking.ask("draft", prompt, self.config.max_tokens)
        read = parsing.read_draft(said.text)
        if read.level is None:
            self.asking.fall_back("difficulty: not readable, taken as MEDIUM")
        elif read.level == "EASY" and not read.answer:
            self.asking.fall_back("draft: EASY without an answer, taken as MEDIUM")
        elif read.level != "EASY" or self.config.fast_path:
            return read.answer, read.level
        return read.answer, "MEDIUM"

    def regions(self, picture: Picture, most: int) -> tuple[NamedRegion, ...]:
        prompt = Prompt(prompts.regions_prompt(self.question, most), picture)
        said = self.asking.ask("regions", prompt, self.config.max_tokens)
        regions = parsing.read_regions(said.text, most, (picture.width, picture.height))
        if not regions:
            self.asking.fall_back("regions: not readable, the whole image is one")
        return regions or (WHOLE,)

    def queries(self, picture: Picture, regions: Sequence[NamedRegion]) -> tuple[str, ...]:
        """One per region."""
        if self.config.queries == "together":
            read = self._queries_together(picture, regions)
        else:
            read = self._queries_each(regions)
        for number, query in enumerate(read, 1):
            if not query:
                self.asking.fall_back(
                    f"query {number}: not readable, names and the question's words"
                )
        return tuple(
            query or self._plain_query(region) for query, region in zip(read, regions, strict=True)
        )

    def _queries_together(
        self, picture: Picture, regions: Sequence[NamedRegion]
    ) -> tuple[str, ...]:
        words = self.config.query_words
        prompt = Prompt(prompts.queries_prompt(self.question, regions, words), picture)
        said = self.asking.ask("queries", prompt, self.config.max_tokens)
        return parsing.read_queries(said.text, len(regions), words)

    def _queries_each(self, regions: Sequence[NamedRegion]) -> tuple[str, ...]:
        config, words = self.config, self.config.query_words
        asked = []
        for region in regions:
            part = crop(self.image, region.box, config.crop_margin, config.smallest_crop)
            text = prompts.query_prompt(self.question, region, words)
            asked.append(Prompt(text, as_picture(part, config.image_side)))
        replies = self.asking.ask_all("queries", asked, config.max_tokens)
        return tuple(parsing.read_query(reply.text, words) for reply in replies)

    def _plain_query(self, region: NamedRegion) -> str:
        name = "" if region.name in (WHOLE.name, parsing.UNNAMED) else region.name
        words = [*name.split(), *content_words(self.question)] or self.question.split()
        return " ".join(words[: self.config.query_words])

    def judge(
        self, regions: Sequence[NamedRegion], found: Sequence[JudgedPassage]
    ) -> tuple[JudgedPassage, ...]:
        """Kept ones first, by relevance, then the others."""
        texts = [passage.text for passage in found]
        prompt = Prompt(prompts.relevance_prompt(self.question, regions, texts))
        said = self.asking.ask("relevance", prompt, self.config.max_tokens)
        scores = parsing.read_relevance(said.text, len(found))
        if unknown := scores.count(None):
            line = f"relevance: not readable for {unknown} of {len(found)} passages, which stay"
            self.asking.fall_back(line)
        judged = [
            replace(passage, score=score, kept=score is None or score >= self.config.threshold)
            for passage, score in zip(found, scores, strict=True)
        ]
        # The sort is stable: what was not judged stays in the order of retrieval, behind the rest
        return tuple(sorted(judged, key=lambda p: (not p.kept, -(p.score or 0.0))))

    def answer(self, prompt: Prompt, num_passages: int, draft: str) -> tuple[str, frozenset[int]]:
        """The answer, and which of the passages it names."""
        said = self.asking.ask("answer", prompt, self.config.answer_tokens)
        read = parsing.read_answer(said.text, num_passages)
        if draft and (not read.text or (said.cut_off and not read.tagged)):
            self.asking.fall_back("answer: cut off or empty, the draft instead")
            return draft, frozenset()
        if not read.text:
            self.asking.fall_back("answer: none was given")
        elif not read.tagged:
            self.asking.fall_back("answer: no tags, its last line is taken")
        return read.text, read.cited
