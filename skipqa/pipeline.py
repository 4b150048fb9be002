"""Read this first: the data flow from an image and a question to an answer.

    encode -> draft (SKV) -> budget (DBC) -> look -> prune (QVS) -> regions + zoom (RCSR)
           -> read_text -> retrieve (RCSR) -> consult (ADR) -> verify (SKV) -> fuse (BSCA)
           -> hop (SKIP-Iter) -> decode -> Answer

Each stage is one file in `stages/`. It is built once with what it depends on and called as
`stage(state, record) -> state`: the `State` holds what is known of the question so far, the
`Trace` what each stage kept, dropped and spent. `run` enters and leaves anywhere; `answer` is the
whole flow. The command line, the evaluation and training call these two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skipqa.answer import Answer
from skipqa.assets import Report
from skipqa.backbones.backbone import Backbone
from skipqa.backbones.presets.build import build as build_backbone
from skipqa.backbones.presets.pocket import FineTuned
from skipqa.backbones.weights import convert
from skipqa.components import TRAINING_FREE, Components, check_widths
from skipqa.components import load_for as read_components
from skipqa.confidence import of_draft
from skipqa.config import Config, merged, override, preset
from skipqa.errors import UserError, choices
from skipqa.knowledge import Library, photos
from skipqa.knowledge.default import DEFAULT
from skipqa.knowledge.library import Uri
from skipqa.knowledge.on_demand import Sources, open_sources
from skipqa.nn.prototypes import PrototypeTagger
from skipqa.nn.tagger import Tagger
from skipqa.stages import (
    budget,
    consult,
    decode,
    draft,
    encode,
    fuse,
    hop,
    look,
    prune,
    read_text,
    regions,
    retrieve,
    verify,
    zoom,
)
from skipqa.stages.stage import Build, Parts, Stage
from skipqa.stages.together import Waiting, decode_batch
from skipqa.state import ImageSource, State
from skipqa.trace import Trace
from skipqa.types import Decoded

STAGES: Mapping[str, Build] = MappingProxyType(
    {
        "encode": encode.build,
        "draft": draft.build,
        "budget": budget.build,
        "look": look.build,
        "prune": prune.build,
        "regions": regions.build,
        "zoom": zoom.build,
        "read_text": read_text.build,
        "retrieve": retrieve.build,
        "consult": consult.build,
        "verify": verify.build,
        "fuse": fuse.build,
        "hop": hop.build,
        "decode": decode.build,
    }
)
NAMES = tuple(STAGES)


class Pipeline:
    """The stages of a preset over a library; `replaced` builds some of them differently."""

    def __init__(self, parts: Parts, replaced: Mapping[str, Build] = MappingProxyType({})) -> None:
        self.parts, self.replaced = parts, replaced
        for name in replaced:
            _check_stage(name)
        self._builders = {**STAGES, **replaced}
        self.stages: Mapping[str, Stage] = {name: self._builders[name](parts) for name in NAMES}

    @property
    def backbone(self) -> Backbone:
        return self.parts.backbone

    @property
    def library(self) -> Library:
        return self.parts.library

    @property
    def config(self) -> Config:
        return self.parts.config

    @property
    def sources(self) -> Sources:
        return self.parts.sources

    @property
    def components(self) -> Components:
        return self.parts.components

    def answer(self, image: ImageSource | None, question: str, *, fast_path: bool = True) -> Answer:
        """Answer `question` about `image`, which only `text_only` can do without. Without the fast
        path every question is looked up."""
        trace = Trace()
        state = self.run(State(image, question, fast_path), stop="encode", trace=trace)
        if self.config.draft.parallel and fast_path:
            return self._answer_ahead(state, trace)
        state = self.run(state, start="draft", stop="draft", trace=trace)
        return self.route(state, trace)

    def answer_batch(
        self,
        images: Sequence[ImageSource],
        questions: Sequence[str],
        *,
        fast_path: bool = True,
        together: int = 4,
    ) -> list[Answer]:
        """The same answers as `answer` gives one by one; `questions[i]` is about `images[i]`.

        An image that several questions are about is opened and encoded once, every draft is made
        before anything is looked up, and what is looked up is decoded `together` at a time, which
        may round differently in the last bits.
        """
        traces = [Trace() for _ in questions]
        states: list[State] = []
        encoded: dict[Any, State] = {}  # the first question about each image
        for source, text, trace in zip(images, questions, traces, strict=True):
            key = source if isinstance(source, str | Path) else id(source)
            state = State(source, text, fast_path)
            if (first := encoded.get(key)) is not None:
                state = state.add(image=first.image, low_res=first.low_res)
            states.append(self.run(state, stop="draft", trace=trace))
            encoded.setdefault(key, states[-1])
        answers = {
            n: self._drafted(states[n], traces[n])
            for n, state in enumerate(states)
            if state.draft.accepted and state.fast_path
        }
        hard = [n for n in range(len(states)) if n not in answers]
        for start in range(0, len(hard), together):
            batch = hard[start : start + together]
            found = decode_batch([self.fused(states[n], traces[n]) for n in batch])
            for n, state_or_error in zip(batch, found, strict=True):
                if isinstance(state_or_error, Exception):
                    raise state_or_error
                answers[n] = self.looked_up(state_or_error, traces[n])
        return [answers[n] for n in range(len(states))]

    def fused(self, drafted: State, trace: Trace) -> Waiting:
        """The full path up to decode, which several questions may go through together."""
        state = self.run(drafted, start="budget", stop="hop", trace=trace)
        return Waiting(state, trace, self._builders["decode"], self.parts)

    def route(self, state: State, trace: Trace) -> Answer:
        """Of a drafted state: the draft, if it is accepted and the state may take the fast path,
        else the answer of the full path."""
        if state.draft.accepted and state.fast_path:
            return self._drafted(state, trace)
        return self.looked_up(self.run(state, start="budget", trace=trace), trace)

    def _drafted(self, state: State, trace: Trace) -> Answer:
        """The answer of the fast path: no passage was read."""
        confidence = of_draft(state.draft, self.config.confidence)
        answer = Decoded(state.draft.answer, grounded=False, confidence=confidence)
        return Answer(state.add(answer=answer), "draft", trace, self.parts)

    def looked_up(self, state: State, trace: Trace) -> Answer:
        """The answer of the full path."""
        return Answer(state, "full", trace, self.parts)

    def run(
        self,
        state: State,
        *,
        start: str = NAMES[0],
        stop: str = NAMES[-1],
        trace: Trace | None = None,
    ) -> State:
        """The stages from `start` to `stop`, both included, on a state that has what they read."""
        first, last = _check_stage(start), _check_stage(stop)
        if first > last:
            raise UserError(f"{start} comes after {stop}: there is nothing to run")
        trace = Trace() if trace is None else trace
        for name in NAMES[first : last + 1]:
            with trace.stage(name) as record:
                state = self.stages[name](state, record)
        return state

    def _answer_ahead(self, encoded: State, trace: Trace) -> Answer:
        """Looking at the image goes on at the same time as the drafter, on the budget of a question
        whose draft is unknown, and stops when the draft is accepted or leaves another budget.

        What it has spent by then is not in the trace, and latencies add up as if in sequence.
        """
        ahead, executor = Trace(), ThreadPoolExecutor(1, thread_name_prefix="full-path")
        guessed = self.run(encoded, start="budget", stop="budget")
        looking = executor.submit(self.run, guessed, start="look", stop="zoom", trace=ahead)
        executor.shutdown(wait=False)  # the thread ends with its run
        try:
            state = self.run(encoded, start="draft", stop="draft", trace=trace)
        except BaseException:
            ahead.stop()
            raise
        if state.draft.accepted:
            ahead.stop()
            return self._drafted(state, trace)
        state = self.run(state, start="budget", stop="budget", trace=trace)
        if not state.budget.looks_like(guessed.budget):
            ahead.stop()
            return self.looked_up(self.run(state, start="look", trace=trace), trace)
        seen = looking.result().add(draft=state.draft, budget=state.budget)
        trace = Trace(trace.stages + ahead.stages)
        return self.looked_up(self.run(seen, start="read_text", trace=trace), trace)

    def with_config(self, **changes: Mapping[str, Any]) -> Pipeline:
        """The same with other settings, `with_config(fuse={"beta": 1.0})`."""
        return self._with(config=override(self.config, changes))

    def with_components(self, **components: Any) -> Pipeline:
        """The same with other trained components; None leaves the stage training-free."""
        return self._with(components=replace(self.components, **components))

    def with_backbone(self, backbone: Backbone) -> Pipeline:
        return self._with(backbone=backbone)

    def with_library(self, library: Library) -> Pipeline:
        """The same over other indexes."""
        return self._with(library=library)

    def with_sources(self, sources: Sequence[str] | Sources = ()) -> Pipeline:
        """The same with other knowledge beyond the library, or with none."""
        opened = sources if isinstance(sources, Sources) else open_sources(sources)
        return self._with(sources=opened)

    def with_stages(self, **builders: Build) -> Pipeline:
        """The same with some stages built differently."""
        return Pipeline(self.parts, {**self.replaced, **builders})

    def _with(self, **parts: Any) -> Pipeline:
        return Pipeline(replace(self.parts, **parts), self.replaced)


def _check_stage(name: str) -> int:
    """Its place in the flow."""
    if name not in STAGES:
        raise UserError(f"no stage {name!r}; there is {choices(name, NAMES)}")
    return NAMES.index(name)


def load(
    name: str = "pocket",
    *,
    index: Uri | Sequence[Uri] | None = None,
    components: Path | str | None = None,
    trained: bool = True,
    weights: Path | str | None = None,
    overrides: Mapping[str, Any] | None = None,
    query_cache: int = 0,
    sources: Sequence[str] = (),
    report: Report = lambda _: None,
) -> Pipeline:
    """A pipeline of a preset over one index or several, or over the default ones if none is named.

    An index is named by its folder or `engine:folder`, and "default" stands for the default ones:
    `index=["default", "notes-index"]` asks them and another, and makes one list of what is found.
    `components` is a folder of trained components, in place of those bundled with the preset; a
    stage without one there is training-free, and without `trained` all are. `weights` is a folder
    of published models for the larger presets; otherwise the Hugging Face cache is used.
    `query_cache` is how many encoded queries every index keeps, for callers that ask again.
    `sources` are asked for names that the indexes lack: "wikidata", "sparql:URL", "json:URL#FIELDS"
    or "index:FOLDER" (docs/sources.md).
    """
    preset(name)  # an unknown name is reported before anything is read
    beyond = open_sources(sources)
    if components is not None and not trained:
        raise UserError(f"either the components in {components} or none that are trained, not both")
    folder = None if components is None else Path(components)
    found = read_components(name, folder) if trained else TRAINING_FREE
    config = preset(name, merged(found.settings, overrides or {}))
    uris = [index] if isinstance(index, str | Path) else index or [DEFAULT]
    library = Library.open(uris, trained_query=found.sparse_query, query_cache=query_cache)
    if beyond:
        report("reading the titles of the indexes")
        _ = library.coverage
    backbone = build_backbone(
        config,
        weights=None if weights is None else Path(weights),
        projector=found.projector,
        adapter=found.adapter,
        learned=FineTuned(
            _knowing_by_sight(found, library, report),
            *(found.vision, found.question, found.reader, found.pair_encoder, found.cell_tagger),
        ),
        report=report,
    )
    check_widths(found, backbone.widths, preset=name)
    return Pipeline(Parts(backbone, library, config, found, beyond))


def _knowing_by_sight(found: Components, library: Library, report: Report) -> Tagger | None:
    """The tagger, with the things of which the indexes or the components have labelled photos."""
    if found.tagger is None:
        return None
    folders = [*(index.folder for index in library.indexes.values()), *reversed(found.folders)]
    known = photos.of_all(folders, lambda: convert.vision(report, found.vision).name)
    return found.tagger if known is None else PrototypeTagger(found.tagger, known)
