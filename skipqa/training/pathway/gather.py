"""What stages II to VI learn from: records of the pipeline, run on training questions.

Enters: questions of Pocket-KB (`pocket-kb`, `crowded`, `unseen`), FVQA and OK-VQA, a pipeline.
Leaves a folder of records, one file per few questions, so that a killed gathering resumes with the
next file: what the image shows token by token, the question, the regions, and the passages they
retrieved, as the decoder reads them, with flags of those that are known to hold the answer. A
record holds enough to run the later stages again without the photo (`records.py`). It trains
nothing.

Shape letters: V visual tokens, V' kept ones, R regions, K passages, d text width.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from skipqa.data.held_out import Split, is_fresh, pocket_kb_split
from skipqa.data.pocket_kb.text import accepted, says
from skipqa.errors import UserError
from skipqa.files import atomic
from skipqa.pipeline import Pipeline
from skipqa.stages.budget_signals import signals
from skipqa.stages.prune import top_positions
from skipqa.stages.signals import about_titles
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.tasks.facts import states
from skipqa.tasks.pocket_kb import POCKET_KB
from skipqa.trace import Trace
from skipqa.training.pipelines import PipelineWorkers, Source, run_jobs
from skipqa.training.run import Run
from skipqa.training.stage1.mixture import read_knowledge_questions
from skipqa.training.stage1.pocket_kb import HeldOut
from skipqa.types import RetrievedPassage, SeenWords

SPLITS: tuple[Split, ...] = ("train", "val")
A_FILE = 32  # questions
NAMES_PER_TOKEN = 32  # the rest of a token's evidence is too thin to name a region
# Tokens whose features are kept, the most salient: twice as many as answering keeps. In the pocket
# 164 KB per question, where those of all 256 would be 655.
FEATURED = 64
MOST_REGIONS = 8
MOST_PASSAGES = 16
# No record depends on them
LEARNED_BEFORE_RETRIEVAL = ("budget", "reading_choice", "saliency", "region_query")
OF_VERIFICATION = ("verifier", "pair_verifier", "pair_encoder")
OF_FUSION = ("fusion", "fusion_reader")
LEARNED_FROM_RECORDS = (*LEARNED_BEFORE_RETRIEVAL, "keep_head", *OF_FUSION, *OF_VERIFICATION)
AFTER_RETRIEVAL = ("bridge", "reader", "dense_reader")  # where a record ends
# What a record holds of a draft does not depend on whether it would be accepted
SETTINGS_WITHOUT_EFFECT = (
    *("draft.threshold", "draft.counting_threshold"),
    *("verify", "fuse", "hop", "decode", "confidence"),
)


@dataclass(frozen=True, slots=True)
class Gathered(Example):
    """A question to gather, and what training alone needs to know of it."""

    archive: Path = Path()  # of its photo
    gold_ids: tuple[str, ...] = ()  # passages that hold the answer, or a step to it
    fresh: bool = False  # trained on here, though stage I never saw the photo

    def about(self) -> dict[str, Any]:
        """What a record says of its question."""
        return {
            "id": str(self.id),
            "image": self.image,
            "question": self.question,
            "answers": dict(self.answers),
            "source": self.source,
            "split": self.split,
            "category": self.category,
            "type": self.type,
            "gold": list(self.gold_ids),
            "fact": self.fact,
            "box": self.box,
            "fresh": self.fresh,
        }

    def is_gold(self, found: RetrievedPassage) -> bool:
        """By its id, or because what is read of it states the fact behind the answer."""
        by_fact = self.fact is not None and states(self.fact, found.text)
        return by_fact or found.passage.id in self.gold_ids


def questions(
    data: Path | None, pocket_kb: Path | None, counts: Mapping[str, int], seed: int
) -> list[Gathered]:
    """As `draw`; some have to be there to learn from."""
    drawn = draw(data, pocket_kb, counts, seed)
    if not any(row.split == "train" and row.gold_ids for row in drawn):
        raise UserError("nothing to learn from: no training question names its passages")
    return drawn


def draw(
    data: Path | None, pocket_kb: Path | None, counts: Mapping[str, int], seed: int
) -> list[Gathered]:
    """So many of each `source/split`, drawn by the seed: a smaller draw is part of a larger one.

    What the photo of a row shows decides whether it is held out, so that no photo is on both sides.
    """
    found: list[Gathered] = []
    held_out = HeldOut.of(pocket_kb)
    if pocket_kb is not None:
        found += [row for split in SPLITS for row in _pocket_kb(pocket_kb, held_out, split)]
    if data is not None:
        found += _photo_questions(data, held_out)
    groups: dict[str, list[Gathered]] = {}
    for row in found:
        groups.setdefault(f"{row.source}/{'fresh' if row.fresh else row.split}", []).append(row)
    drawn: list[Gathered] = []
    for name, count in counts.items():
        some = groups.get(name, [])
        random.Random(f"{seed}/{name}").shuffle(some)
        drawn += some[:count]
    return drawn


def _pocket_kb(folder: Path, held_out: HeldOut, split: Split) -> Iterator[Gathered]:
    for example in POCKET_KB.load(folder, split):
        row, side = example.record, split
        if split == "train":
            held_out.check_apart(f"{folder / split}.jsonl: {example.place}", row)
            side = pocket_kb_split(row)
        fresh = side == "held-out" and is_fresh(row.get("photo") or example.image)
        yield Gathered(
            **_fields(example)
            | {"split": "train" if fresh else side, "source": held_out.source_of(row)},
            archive=POCKET_KB.images(folder, split),
            gold_ids=tuple(row.get("gold") or ()),
            fresh=fresh,
        )


def _fields(example: Example) -> dict[str, Any]:
    """All but the official row, which records need not carry to other processes."""
    names = (field.name for field in dataclasses.fields(Example))
    return {name: getattr(example, name) for name in names if name != "record"}


def _photo_questions(data: Path, held_out: HeldOut) -> Iterator[Gathered]:
    """OK-VQA's and FVQA's, split as stage I splits them."""
    mixture = read_knowledge_questions(data, held_out)
    archives = [archive for archive, _ in mixture.photos]
    for example in mixture.examples:
        if example.answers:
            category = example.category or example.source
            yield Gathered(
                **_fields(example) | {"category": category}, archive=archives[example.photo]
            )


def gather(
    rows: Sequence[Gathered], fingerprint: Mapping[str, Any], workers: PipelineWorkers, run: Run
) -> list[Path]:
    """The files of the records, in the order of `rows`; existing ones are left alone. The
    `fingerprint` is of what the workers' pipelines depend on up to retrieval."""
    asked = [row.about() for row in rows]
    run.claim(
        {
            "questions": hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16],
            "number": len(rows),
            "featured": FEATURED,  # older records have no features
            **fingerprint,
        }
    )
    batches = [rows[first : first + A_FILE] for first in range(0, len(rows), A_FILE)]
    files = [run.folder / f"records-{number:05d}.safetensors" for number in range(len(batches))]
    todo = [pair for pair in zip(batches, files, strict=True) if not pair[1].exists()]
    counted, before = run.counted("gathering"), len(files) - len(todo)
    run_jobs(
        workers,
        write,
        todo,
        lambda done, _: counted(min(len(rows), (before + done) * A_FILE), len(rows)),
    )
    return files


def write(pipeline: Pipeline, rows: Sequence[Gathered], path: Path) -> None:
    """Whole or not at all."""
    gathering = with_most_passages(pipeline)
    with ExitStack() as opened:
        paths = {row.archive for row in rows}
        zips = {path: opened.enter_context(zipfile.ZipFile(path)) for path in paths}
        found = [observe(gathering, row, zips[row.archive].read(row.image)) for row in rows]
    tensors = {name: torch.stack([one[name] for one, _ in found]) for name in found[0][0]}
    about = [row.about() | more for row, (_, more) in zip(rows, found, strict=True)]
    with atomic(path) as partial:
        save_file(tensors, partial, metadata={"rows": json.dumps(about)})


def records_fingerprint(source: Source) -> dict[str, Any]:
    """Of what records depend on: everything up to retrieval that is not learned from them."""
    return source.fingerprint(LEARNED_FROM_RECORDS + AFTER_RETRIEVAL, SETTINGS_WITHOUT_EFFECT)


def with_most_passages(pipeline: Pipeline) -> Pipeline:
    """The usual tokens, always at high resolution so that all records have the same V, and as many
    passages as a controller may ever ask for: most of them are there to be rejected. Nothing takes
    part that is learned from records."""
    most = min(pipeline.config.budget.max_passages, MOST_PASSAGES)
    budget = {"passages": most, "rho_r": 1.0, "min_information": 0.0}
    untrained = dict.fromkeys(LEARNED_BEFORE_RETRIEVAL)
    return pipeline.with_config(budget=budget).with_components(**untrained)


def observe(
    pipeline: Pipeline, row: Gathered, photo: bytes
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One question through the pipeline up to retrieval: tensors, and what is said in words."""
    trace = Trace()
    state = pipeline.run(State(BytesIO(photo), row.question), stop="retrieve", trace=trace)
    question, drafted, kept, regions = state.question, state.draft, state.kept, state.regions
    prior, tokens = question.concept_prior, kept.tokens
    low_res_words = state.low_res.words
    prob, concept = tokens.concept_probs.topk(
        min(NAMES_PER_TOKEN, tokens.concept_probs.shape[1]), dim=1
    )
    featured = top_positions(kept.saliency, FEATURED)
    region_of = torch.full((len(tokens),), -1, dtype=torch.int8)
    boxes = torch.zeros(MOST_REGIONS, 4)
    for number, region in enumerate(regions[:MOST_REGIONS]):
        region_of[list(region.members)] = number
        boxes[number] = torch.tensor(region.box)
    answers = accepted(row.answers)
    passages = state.retrieved.passages[:MOST_PASSAGES]

    titles = about_titles(question, [p.passage.title for p in passages])
    different = list(dict.fromkeys([*titles, *(p.text for p in passages)]))
    encoded = pipeline.backbone.encode_texts(different).embeddings

    def embedded(texts: Sequence[str]) -> Tensor:
        found = torch.zeros(MOST_PASSAGES, len(question.embedding))
        found[: len(texts)] = encoded[[different.index(text) for text in texts]]
        return found.half()

    def of_passages(values: Sequence[float], dtype: torch.dtype, absent: float) -> Tensor:
        return _padded(torch.tensor(values, dtype=dtype), MOST_PASSAGES, absent)

    return {
        "question": question.embedding.half(),
        "concept_prior": prior.weights.half() if prior else torch.zeros(0),
        "low_res": state.low_res.meaning.mean(0).half(),
        "signals": signals(question, state.low_res, drafted),
        "meaning": tokens.meaning.half(),
        "evidence": prob.half(),
        "concepts": concept.to(torch.int16),
        "features": tokens.features[featured].half(),
        "featured": featured.to(torch.int16),
        "overview": tokens.overview.half(),
        "saliency": kept.saliency.half(),
        "kept": torch.isin(torch.arange(len(tokens)), kept.positions),
        "region_of": region_of,
        "boxes": boxes,
        "asked_of": embedded(titles),
        "read_as": embedded([p.text for p in passages]),
        "passages": of_passages([p.row for p in passages], torch.int32, -1),
        "scores": of_passages([p.score for p in passages], torch.float32, 0),
        "relative": of_passages([p.relative for p in passages], torch.float64, 0),
        "asked_by": of_passages([p.region for p in passages], torch.int8, -1),
        "gold": of_passages([row.is_gold(p) for p in passages], torch.bool, 0),
        "stated": of_passages([says(p.text, answers) for p in passages], torch.bool, 0),
    }, {
        "gold_rows": pipeline.library.rows_of(row.gold_ids),
        "excerpts": ["" if p.text == p.passage.text else p.text for p in passages],
        "words": list(question.words),
        "span": question.span,
        "information": prior.information if prior else 0.0,
        "seen": list(tokens.words.names) if tokens.words else [],
        "probs": [round(s, 4) for s in tokens.words.probs.tolist()] if tokens.words else [],
        "low_res_seen": _named_probs(low_res_words),
        "regions": [[(c, round(s, 5)) for c, s in region.concepts] for region in regions],
        "draft": drafted.answer,
        "confidence": round(drafted.confidence, 4),
        "candidates": list(drafted.candidates),
        "abstain_prob": drafted.abstain_prob,
        "flops": {record.name: record.flops for record in trace.stages},
    }


def _named_probs(words: SeenWords | None) -> list[tuple[str, float]]:
    if words is None:
        return []
    probs = (round(prob, 4) for prob in words.probs.tolist())
    return list(zip(words.names, probs, strict=True))


def _padded(values: Tensor, length: int, absent: float) -> Tensor:
    whole = torch.full((length,), absent, dtype=values.dtype)
    whole[: len(values)] = values
    return whole
