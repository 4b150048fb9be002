"""What stages II to VI learn from: the real pipeline's stages over training questions, kept.

Enters: Pocket-KB's and OK-VQA's questions, a pipeline. Leaves a folder of records, a file
for every few questions, so that a killed gathering goes on with the next file: what the picture
shows token by token, the question, the regions, and the passages that they found with the flags
of those that hold the answer. A record holds enough to send its question through the later stages
again without the photo (`records.py`). It trains nothing.

Shape letters: N questions of a file, V visual tokens, E names kept a token, C concepts, R regions,
K passages, d text width.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from skipqa import pipeline as pipelines
from skipqa.costs.environment import available_cores
from skipqa.data.held_out import Split, is_fresh, is_held_out, photos_of_val, pocket_kb_split
from skipqa.data.pocket_kb.text import accepted, says
from skipqa.errors import UserError
from skipqa.evaluation.systems.changes import up_to_retrieval, with_components, with_config
from skipqa.files import check_rows, read_jsonl
from skipqa.knowledge import Index
from skipqa.nn.budget import BudgetController, DiscreteBudgetConfig
from skipqa.pipeline import Pipeline
from skipqa.stages.signals import about_titles
from skipqa.training.run import Counted, Run
from skipqa.types import Budget

SPLITS: tuple[Split, ...] = ("train", "val")
A_FILE = 32  # questions
NAMES_A_TOKEN = 32  # the rest of a token's evidence is too thin to name a region
MOST_REGIONS = 8
LEARNED_FROM_RECORDS = ("saliency", "keep_head", "region_query", "fusion", "verifier", "budget")
AFTER_RETRIEVAL = ("reader",)  # where a record ends
MOST_PASSAGES = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to gather, and what is known of its answer."""

    id: str
    archive: Path
    image: str
    question: str
    answers: Mapping[str, float]
    source: str  # a data set
    split: Split
    category: str
    gold: tuple[str, ...] = ()  # passages that hold the answer, or a step to it
    box: tuple[float, float, float, float] | None = None  # left, top, right, bottom of the thing
    subset: tuple[str, ...] = ()
    fresh: bool = False  # learned from here, though stage I never saw the photo

    def about(self) -> dict[str, Any]:
        """All but where the photo lies."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "archive"}


def questions(
    data: Path | None, pocket_kb: Path | None, counts: Mapping[str, int], seed: int
) -> list[Asked]:
    """So many of each `source/split`, drawn by the seed: a smaller draw is part of a larger one.

    What the photo of a row shows decides whether it is held out, so that no photo is on both sides.
    """
    found: list[Asked] = []
    if pocket_kb is not None:
        found += [row for split in SPLITS for row in _pocket_kb(pocket_kb, split)]
    if data is not None:
        found += [row for split in SPLITS for row in _okvqa(data, pocket_kb, split)]
    groups: dict[str, list[Asked]] = {}
    for row in found:
        groups.setdefault(f"{row.source}/{'fresh' if row.fresh else row.split}", []).append(row)
    drawn: list[Asked] = []
    for name, count in counts.items():
        some = groups.get(name, [])
        random.Random(f"{seed}/{name}").shuffle(some)
        drawn += some[:count]
    if not any(row.split == "train" and row.gold for row in drawn):
        raise UserError("nothing to learn from: no training question names its passages")
    return drawn


def _pocket_kb(folder: Path, split: Split) -> Iterator[Asked]:
    path = folder / f"{split}.jsonl"
    fields = {"question_id": str, "image": str, "question": str, "answers": dict, "gold": list}
    for row in check_rows(str(path), read_jsonl(path), fields | {"category": str, "subset": list}):
        x, y, width, height = row.get("box") or (0.5, 0.5, 1.0, 1.0)  # its middle and its size
        left, top = x - width / 2, y - height / 2
        side = pocket_kb_split(row) if split == "train" else split
        fresh = side == "held-out" and is_fresh(row.get("photo") or row["image"])
        yield Asked(
            row["question_id"],
            folder / "photos.zip",
            row["image"],
            row["question"],
            row["answers"],
            "pocket-kb",
            "train" if fresh else side,
            row["category"],
            tuple(row["gold"]),
            (left, top, left + width, top + height) if row.get("box") else None,
            tuple(row["subset"]),
            fresh,
        )


def _okvqa(data: Path, pocket_kb: Path | None, name: Split) -> Iterator[Asked]:
    taken = photos_of_val(pocket_kb)["coco"]
    path = data / "okvqa" / f"{name}.jsonl"
    fields = {"image": str, "question": str, "answers": dict}
    for number, row in enumerate(check_rows(str(path), read_jsonl(path), fields)):
        if (name == "train" and row["image"] in taken) or not row["answers"]:
            continue
        yield Asked(
            str(row.get("question_id", number)),
            data / "okvqa" / f"{name}.zip",
            row["image"],
            row["question"],
            row["answers"],
            "okvqa",
            "held-out" if name == "train" and is_held_out(row["image"]) else name,
            str(row.get("category", "okvqa")),
        )


@dataclass(frozen=True, slots=True)
class Source:
    """How a worker builds the pipeline for itself."""

    preset: str = "pocket"
    components: Path | None = None
    index: Path | None = None
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def load(self) -> Pipeline:
        pipeline = pipelines.load(
            self.preset,
            components=self.components,
            index=self.index,
            overrides=dict(self.overrides),
        )
        index = Index.open(
            pipeline.index.folder,
            trained_query=pipeline.components.sparse_query,
            query_cache=1_024,  # most questions are asked about many images
        )
        return Pipeline(pipeline.backbone, index, pipeline.config, pipeline.components)

    def fingerprint(self, without: Sequence[str] = LEARNED_FROM_RECORDS) -> dict[str, Any]:
        """What a stage depends on, its components but those, which stages train."""
        folder = self.components or pipelines.bundled_components(self.preset)
        digest = hashlib.sha256()
        for path in sorted(folder.glob("*.safetensors")) if folder else ():
            if path.stem not in without:
                digest.update(path.name.encode() + path.read_bytes())
        index = "default" if self.index is None else (self.index / "manifest.json").read_text()
        return {
            "preset": self.preset,
            "seeing": digest.hexdigest()[:16],
            "index": hashlib.sha256(index.encode()).hexdigest()[:16],
            "overrides": dict(self.overrides),
        }


def gather(
    rows: Sequence[Asked], source: Source, run: Run, *, workers: int | None = None
) -> list[Path]:
    """The files of the records, in the order of `rows`; those that are there are left alone."""
    asked = [row.about() for row in rows]
    run.claim(
        {
            "questions": hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16],
            "number": len(rows),
            **source.fingerprint(LEARNED_FROM_RECORDS + AFTER_RETRIEVAL),
        }
    )
    batches = [rows[first : first + A_FILE] for first in range(0, len(rows), A_FILE)]
    files = [run.folder / f"records-{number:05d}.safetensors" for number in range(len(batches))]
    todo = [pair for pair in zip(batches, files, strict=True) if not pair[1].exists()]
    counted, before = run.counted("gathering"), len(files) - len(todo)
    spread(
        write,
        source,
        todo,
        lambda done, _: counted(min(len(rows), (before + done) * A_FILE), len(rows)),
        workers=workers,
    )
    return files


def spread(
    work: Callable[..., Any],
    source: Source,
    jobs: Sequence[tuple[Any, ...]],
    counted: Counted = lambda *_: None,
    *,
    workers: int | None = None,
) -> list[Any]:
    """`work(pipeline, *job)` of every job, in their order; where there are several cores, in as
    many processes, each with a pipeline of its own."""
    workers = available_cores() if workers is None else workers
    counted(0, len(jobs))
    found: list[Any] = []
    if workers < 2 or len(jobs) < 2:
        pipeline = source.load() if jobs else None
        for done, job in enumerate(jobs, start=1):
            found.append(work(pipeline, *job))
            counted(done, len(jobs))
        return found
    sent = [_pool(workers).submit(_work, work, source, _packed(job)) for job in jobs]
    try:
        for done, finished in enumerate(as_completed(sent), start=1):
            finished.result()
            counted(done, len(jobs))
    except BaseException:
        for one in sent:
            one.cancel()
        raise
    return [one.result() for one in sent]


@cache
def _pool(workers: int) -> ProcessPoolExecutor:
    """For as long as this process lives: to start one takes seconds."""
    return ProcessPoolExecutor(workers, get_context("spawn"), one_thread)


def one_thread() -> None:
    torch.set_num_threads(1)  # a process a core: threads of one would wait for another's


def _packed(job: tuple[Any, ...]) -> bytes:
    """Tensors as bytes: handed over as shared memory they would each keep a file open."""
    buffer = BytesIO()
    torch.save(job, buffer)
    return buffer.getvalue()


_loaded: list[tuple[Source, Pipeline]] = []  # the last one of this worker process


def _work(work: Callable[..., Any], source: Source, packed: bytes) -> Any:
    if not _loaded or _loaded[0][0] != source:
        _loaded[:] = [(source, source.load())]
    return work(_loaded[0][1], *torch.load(BytesIO(packed), weights_only=False))


def write(pipeline: Pipeline, rows: Sequence[Asked], path: Path) -> None:
    """Whole or not at all."""
    found = [observe(pipeline, row) for row in rows]
    tensors = {name: torch.stack([one[name] for one, _ in found]) for name in found[0][0]}
    said = [row.about() | more for row, (_, more) in zip(rows, found, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"rows": json.dumps(said)})
    partial.replace(path)


def observe(pipeline: Pipeline, row: Asked) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One question through the pipeline up to retrieval: tensors, and what is said in words."""
    seen: list[tuple[Any, ...]] = []
    max_budget = MaxBudget(pipeline)
    watched = with_config(pipeline, budget={"min_information": 0.0})  # records have one V
    watched = with_components(watched, budget=max_budget, saliency=None)
    watched = up_to_retrieval(watched, lambda *given: seen.append(given))
    trace = watched.answer(BytesIO(_read(row)), row.question, fast_path=False).trace
    [(retrieved, question, _, kept, regions, *_)] = seen
    drafted, expected = trace["draft"].result, question.concept_prior
    tokens = kept.tokens
    prob, concept = tokens.evidence.topk(min(NAMES_A_TOKEN, tokens.evidence.shape[1]), dim=1)
    region_of = torch.full((len(tokens),), -1, dtype=torch.int8)
    boxes = torch.zeros(MOST_REGIONS, 4)
    for number, region in enumerate(regions[:MOST_REGIONS]):
        region_of[list(region.members)] = number
        boxes[number] = torch.tensor(region.box)
    answers = accepted(row.answers)
    passages = retrieved.passages[:MOST_PASSAGES]

    titles = about_titles(question, [p.passage.title for p in passages])
    different = list(dict.fromkeys(titles))
    encoded = pipeline.backbone.encode_texts(different).embeddings
    asked_of = torch.zeros(MOST_PASSAGES, len(question.embedding))
    asked_of[: len(titles)] = encoded[[different.index(title) for title in titles]]

    def of_passages(values: Sequence[float], dtype: torch.dtype, absent: float) -> Tensor:
        return _padded(torch.tensor(values, dtype=dtype), MOST_PASSAGES, absent)

    return {
        "question": question.embedding.half(),
        "expected": expected.weights.half() if expected else torch.zeros(0),
        "low_res": max_budget.visual.half(),
        "meaning": tokens.meaning.half(),
        "evidence": prob.half(),
        "concepts": concept.to(torch.int16),
        "overview": tokens.overview.half(),
        "saliency": kept.saliency.half(),
        "kept": torch.isin(torch.arange(len(tokens)), kept.positions),
        "region_of": region_of,
        "boxes": boxes,
        "asked_of": asked_of.half(),
        "passages": of_passages([p.row for p in passages], torch.int32, -1),
        "scores": of_passages([p.score for p in passages], torch.float32, 0),
        "asked_by": of_passages([p.region for p in passages], torch.int8, -1),
        "gold": of_passages([p.passage.id in row.gold for p in passages], torch.bool, 0),
        "stated": of_passages([says(p.passage.text, answers) for p in passages], torch.bool, 0),
    }, {
        "gold_rows": [found for id in row.gold if (found := pipeline.index.row_of(id)) is not None],
        "words": list(question.words),
        "information": expected.information if expected else 0.0,
        "seen": list(tokens.words.names) if tokens.words else [],
        "probs": [round(s, 4) for s in tokens.words.probs.tolist()] if tokens.words else [],
        "regions": [[(c, round(s, 5)) for c, s in region.concepts] for region in regions],
        "draft": drafted.answer if drafted else "",
        "confidence": round(drafted.confidence, 4) if drafted else 0.0,
        "candidates": list(drafted.candidates) if drafted else [],
        "abstain_prob": drafted.abstain_prob if drafted else 0.0,
    }


class MaxBudget(BudgetController):
    """The usual tokens, and as many passages as a controller may ever ask for: most of them are
    there to be rejected. Remembers what a controller would decide by."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        widths = pipeline.backbone.widths
        self.config = DiscreteBudgetConfig(widths.text, widths.text)
        self.budget = pipeline.config.budget

    def decide(
        self, visual: Tensor, question: Tensor, num_tokens: int, num_passages: int
    ) -> Budget:
        self.visual = visual
        most = min(self.budget.max_passages, MOST_PASSAGES)
        return Budget(self.budget.most_tokens(num_tokens), most)


def _padded(values: Tensor, length: int, absent: float) -> Tensor:
    whole = torch.full((length,), absent, dtype=values.dtype)
    whole[: len(values)] = values
    return whole


def _read(row: Asked) -> bytes:
    return _archive(row.archive).read(row.image)


@cache
def _archive(path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)
