"""Read this first: the one way from an image and a question to an answer.

    encode -> draft (SKV) -> budget (DBC) -> look -> prune (QVS) -> regions + retrieve (RCSR)
           -> verify (SKV) -> fuse (BSCA) -> decode -> Answer

Each stage is one file in `stages/`, takes frozen values and returns one; what it kept, dropped
and spent is in the `Trace`. The command line, the evaluation and every server call `answer`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from PIL import Image

from skipqa.assets import Report
from skipqa.backbones.backbone import Backbone
from skipqa.backbones.presets.build import build as build_backbone
from skipqa.backbones.presets.pocket import FineTuned
from skipqa.components import TRAINING_FREE, Components, check_widths
from skipqa.components import load as read_components
from skipqa.components import shipped as bundled_components
from skipqa.config import Config, merged, preset
from skipqa.errors import UserError
from skipqa.image import open_image
from skipqa.knowledge import Index, default_index_is_built, default_index_path
from skipqa.stages.budget import budget
from skipqa.stages.decode import decode
from skipqa.stages.draft import draft
from skipqa.stages.encode import encode
from skipqa.stages.fuse import fuse
from skipqa.stages.look import look
from skipqa.stages.prune import prune
from skipqa.stages.regions import find_regions
from skipqa.stages.retrieve import retrieve
from skipqa.stages.verify import verify
from skipqa.stages.zoom import zoom
from skipqa.trace import Trace
from skipqa.types import (
    Draft,
    Evidence,
    Fused,
    KeptTokens,
    Question,
    Route,
    Verified,
    VisualTokens,
)

AHEAD = ThreadPoolExecutor(thread_name_prefix="look-up")  # full ways that run beside a drafter


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    route: Route
    evidence: tuple[Evidence, ...]
    trace: Trace

    @property
    def num_tokens(self) -> int:
        """V, of a closer look where there was one."""
        seen = self.trace["look" if "look" in self.trace else "encode"].kept
        assert seen is not None
        return seen

    def as_dict(self) -> dict[str, Any]:
        """What `skipqa ask --json` prints."""
        regions = self.trace["zoom"].result if "zoom" in self.trace else ()
        retrieved = self.trace["retrieve"].result if "retrieve" in self.trace else None
        kept_tokens = self.trace["prune"].kept if "prune" in self.trace else 0
        return {
            "answer": self.text,
            "route": self.route,
            "evidence": [
                {"id": e.id, "title": e.title, "text": e.text, "score": e.score, "region": e.region}
                for e in self.evidence
            ],
            "regions": [{"box": list(r.box), "tokens": len(r.members)} for r in regions],
            "tokens": {"total": self.num_tokens, "kept": kept_tokens},
            "passages": {
                "retrieved": retrieved.num_hits if retrieved else 0,
                "unique": retrieved.num_unique if retrieved else 0,
                "kept": len(self.evidence),
            },
            "stages": [
                {"name": s.name, "ms": round(s.ms, 2), "flops": s.flops} for s in self.trace.stages
            ],
            "flops": self.trace.flops,
            "latency_ms": round(self.trace.latency_ms, 2),
        }


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages that a baseline may do in another way, with the arguments of ours."""

    prune: Callable[..., KeptTokens] = prune
    verify: Callable[..., Verified] = verify
    fuse: Callable[..., Fused] = fuse
    decode: Callable[..., str] = decode


SKIP = Stages()


class Pipeline:
    """A backbone, an index, a config, and whatever components have been trained for them."""

    def __init__(
        self,
        backbone: Backbone,
        index: Index,
        config: Config,
        components: Components = TRAINING_FREE,
        stages: Stages = SKIP,
    ) -> None:
        self.backbone = backbone
        self.index = index
        self.config = config
        self.components = components
        self.stages = stages

    def answer(
        self,
        image: Image.Image | Path | str | IO[bytes],
        question: str,
        *,
        fast_path: bool = True,
    ) -> Answer:
        """Answer `question` about `image`. Without the fast path every question is looked up."""
        config, backbone, learned = self.config, self.backbone, self.components
        trace, rest = Trace(), Trace()

        with trace.stage("encode") as record:
            picture = open_image(image)
            low_res, asked = encode(
                picture, question, backbone, config.encode, record, learned.concept_prior
            )
        concepts = backbone.concepts  # read by now, and not for a question that was refused

        drafting: Future[Draft] = Future()
        look_up = partial(self._look_up, picture, low_res, asked, drafting.result, rest)
        ahead = AHEAD.submit(look_up) if config.draft.parallel and fast_path else None

        try:
            with trace.stage("draft") as record:
                drafted = draft(asked, low_res, concepts, config.draft, record, learned.drafter)
        except BaseException as error:
            rest.stop()
            drafting.set_exception(error)  # else what runs ahead would wait for it for ever
            raise
        drafting.set_result(drafted)
        if drafted.accepted and fast_path:
            rest.stop()
            return Answer(drafted.answer, "draft", (), trace)

        text, evidence = look_up() if ahead is None else ahead.result()
        return Answer(text, "full", evidence, Trace(trace.stages + rest.stages))

    def _look_up(
        self,
        picture: Image.Image,
        low_res: VisualTokens,
        asked: Question,
        drafted: Callable[[], Draft],
        trace: Trace,
    ) -> tuple[str, tuple[Evidence, ...]]:
        """The full way: the answer from outside the image, and the passages it rests on."""
        config, backbone, learned, stages = self.config, self.backbone, self.components, self.stages
        concepts = backbone.concepts

        with trace.stage("budget") as record:
            num_tokens = config.encode.num_tokens
            allowed = budget(low_res, asked, num_tokens, config.budget, record, learned.budget)

        with trace.stage("look") as record:
            tokens = look(picture, low_res, allowed, backbone, config.encode, record)

        with trace.stage("prune") as record:
            kept = stages.prune(
                tokens, asked, allowed, concepts, config.prune, record, learned.saliency
            )

        with trace.stage("regions") as record:
            regions = find_regions(
                kept,
                config.regions,
                record,
                lambda points: backbone.segmenter.boxes(picture, points),
            )

        with trace.stage("zoom") as record:
            kept, regions = zoom(
                picture,
                kept,
                regions,
                asked,
                allowed,
                backbone,
                config.zoom,
                record,
            )

        with trace.stage("retrieve") as record:
            retrieved = retrieve(
                regions,
                asked,
                allowed,
                concepts,
                self.index,
                config.retrieve,
                record,
                learned.region_query,
                kept.tokens,
            )

        with trace.stage("verify") as record:
            verified = stages.verify(
                retrieved,
                asked,
                allowed,
                kept,
                regions,
                backbone,
                config.verify,
                record,
                learned.verifier,
            )

        with trace.stage("fuse") as record:
            fused = stages.fuse(kept, asked, verified, config.fuse, record, learned.fusion)

        with trace.stage("decode") as record:
            text = stages.decode(
                asked,
                drafted(),
                allowed,
                kept,
                regions,
                verified,
                fused,
                backbone,
                config.decode,
                record,
            )

        evidence = tuple(
            Evidence(p.passage.id, p.passage.title, p.passage.text, round(score, 4), p.region)
            for p, score in zip(verified.passages, verified.scores, strict=True)
        )
        return text, evidence


def load(
    name: str = "pocket",
    *,
    index: Path | str | None = None,
    components: Path | None = None,
    trained: bool = True,
    weights: Path | None = None,
    overrides: dict[str, Any] | None = None,
    report: Report = lambda _: None,
) -> Pipeline:
    """A pipeline of a preset over an index, the default one where none is named.

    `components` is a folder of trained ones, in place of those that come with the preset; a stage
    without one there stays training-free, and without `trained` all do. `weights` is a folder of
    published models for the larger presets, else their cache serves.
    """
    preset(name)  # an unknown name is told before anything is read
    if components is not None and not trained:
        raise UserError(f"either the components in {components} or --untrained, not both")
    if components is None and trained:
        components = bundled_components(name)
    learned = TRAINING_FREE if components is None else read_components(components, preset=name)
    config = preset(name, merged(learned.settings, overrides or {}))
    if index is None and not default_index_is_built():
        raise UserError("the default index is not built yet: run `skipqa setup` once")
    uri = default_index_path() if index is None else index
    opened = Index.open(uri, trained_query=learned.sparse_query)
    backbone = build_backbone(
        config,
        weights=weights,
        projector=learned.projector,
        adapter=learned.adapter,
        learned=FineTuned(learned.tagger, learned.vision, learned.question, learned.reader),
        report=report,
    )
    check_widths(learned, backbone.widths, preset=name)
    return Pipeline(backbone, opened, config, learned)
