"""Gathered records in memory, the passages that they name, and their replay through the stages.

Enters: the folder that `gather.py` filled. Leaves: tensors over all questions, a table of every
passage once (for stages that need it also its embedding and its words' states), and `replay`, which
runs the pipeline on a record from prune to retrieve with any budget and any components.

Shape letters: N questions, V visual tokens, K passages, P passages of the table, d text width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from skipqa.files import atomic
from skipqa.knowledge import Library
from skipqa.pipeline import Pipeline
from skipqa.stages.prune import top_positions
from skipqa.state import State
from skipqa.trace import Trace
from skipqa.training.pathway import gather
from skipqa.training.pipelines import PipelineWorkers, run_jobs
from skipqa.training.run import Run
from skipqa.types import (
    Budget,
    ConceptPrior,
    Draft,
    KeptTokens,
    Passage,
    Question,
    Region,
    Retrieved,
    RetrievedPassage,
    SeenWords,
    VisualTokens,
)

PASSAGES_PER_FILE = 128
WORDS_PER_PASSAGE = 64  # whose states are kept


@dataclass(frozen=True, slots=True)
class EncodedPassages:
    embeddings: Tensor  # [P, d]
    states: tuple[Tensor, ...]  # [L, d] each, half precision


@dataclass(frozen=True)
class PassageTable:
    passages: tuple[Passage, ...]
    place: dict[int, int]  # a row of the library -> a row here
    encode: Callable[[], EncodedPassages]
    own: frozenset[int] = frozenset()  # rows of the library that are somebody's own documents

    @cached_property
    def encoded(self) -> EncodedPassages:
        """On first use: not every stage needs it, and it takes a while."""
        return self.encode()


@dataclass(frozen=True, slots=True)
class Records:
    about: list[dict[str, Any]]  # of each question, what is said in words
    tensors: dict[str, Tensor]  # [N, …] each
    table: PassageTable

    def __len__(self) -> int:
        return len(self.about)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def grid(self) -> int:
        return int(self["meaning"].shape[1] ** 0.5)

    def select(self, split: str, source: str | None = None) -> list[int]:
        return [
            i
            for i, row in enumerate(self.about)
            if row["split"] == split and source in (None, row["source"])
        ]

    def only(self, rows: Sequence[int]) -> Records:
        """These questions alone, over the same passages."""
        tensors = {name: tensor[list(rows)] for name, tensor in self.tensors.items()}
        return replace(self, about=[self.about[i] for i in rows], tensors=tensors)

    def part(self, rows: Sequence[int]) -> Records:
        """These questions alone, to be worked on elsewhere; encoded passages stay here."""
        fewer = self.only(rows)
        found = sorted(set(fewer["passages"].flatten().tolist()) - {-1})
        places = [self.table.place[row] for row in found]
        table = PassageTable(
            tuple(self.table.passages[place] for place in places),
            {row: number for number, row in enumerate(found)},
            _stays_there,
            self.table.own,
        )
        return replace(fewer, table=table)

    def question(self, i: int) -> Question:
        embedding = self["question"][i].float()
        row = self.about[i]
        prior = self["concept_prior"][i].float()
        return Question(
            row["question"],
            embedding,
            tuple(row["words"]),
            embedding[None],
            concept_prior=ConceptPrior(prior, row["information"]) if len(prior) else None,
            span=(row["span"][0], row["span"][1]) if row["span"] else None,
        )

    def tokens(self, i: int, num_concepts: int) -> VisualTokens:
        """What the stages up to retrieval ask of them; features of the most salient tokens alone,
        zeros elsewhere."""
        probs, concepts = self["evidence"][i].float(), self["concepts"][i].long()
        evidence = torch.zeros(len(probs), num_concepts).scatter_(1, concepts, probs)
        known = self["features"][i].float()
        features = torch.zeros(len(probs), known.shape[1])
        features[self["featured"][i].long()] = known
        return VisualTokens(
            features=features,
            concept_probs=evidence,
            meaning=self["meaning"][i].float(),
            overview=self["overview"][i].float(),
            grid=self.grid,
            words=self.seen_words(i),
        )

    def before_prune(self, i: int, num_concepts: int) -> State:
        """The question, the draft and the tokens."""
        about = self.about[i]
        return State(
            about["image"],
            about["question"],
            question=self.question(i),
            draft=self.draft(i, {}),
            tokens=self.tokens(i, num_concepts),
        )

    def after_retrieve(self, i: int, num_concepts: int) -> State:
        """As gathered."""
        state = self.before_prune(i, num_concepts)
        positions, saliency = self["kept"][i].nonzero()[:, 0], self["saliency"][i].float()
        return state.add(
            kept=KeptTokens(positions, saliency, state.tokens),
            regions=self.regions(i),
            retrieved=Retrieved(self.candidates(i), 0, 0),
        )

    def seen_words(self, i: int) -> SeenWords | None:
        """As a decoder is told them; their embeddings are not kept."""
        names, probs = self.about[i]["seen"], torch.tensor(self.about[i]["probs"])
        return SeenWords(tuple(names), probs, torch.zeros(len(names), 0)) if names else None

    def low_res_words(self, i: int) -> SeenWords | None:
        """Those of the view that every question begins with."""
        pairs = self.about[i]["low_res_seen"]
        names, probs = tuple(name for name, _ in pairs), torch.tensor([prob for _, prob in pairs])
        return SeenWords(names, probs, torch.zeros(len(names), 0)) if names else None

    def draft(self, i: int, vocabulary: Mapping[str, float]) -> Draft:
        """What the drafter said, who could have said any of `vocabulary`."""
        about = self.about[i]
        return Draft(
            about["draft"],
            about["confidence"],
            "as gathered",
            tuple((answer, prob) for answer, prob in about["candidates"]),
            vocabulary,
            abstain_prob=about["abstain_prob"],
        )

    def regions(self, i: int) -> tuple[Region, ...]:
        """As they were found while gathering."""
        region_of, saliency = self["region_of"][i], self["saliency"][i].float()
        found = []
        for number, named in enumerate(self.about[i]["regions"][: gather.MOST_REGIONS]):
            members = (region_of == number).nonzero()[:, 0]
            left, top, right, bottom = self["boxes"][i, number].tolist()
            found.append(
                Region(
                    (left, top, right, bottom),
                    tuple(members.tolist()),
                    tuple((int(c), float(s)) for c, s in named),
                    float(saliency[members].mean()) if len(members) else 0.0,
                )
            )
        return tuple(found)

    def candidates(self, i: int) -> tuple[RetrievedPassage, ...]:
        """The passages that were retrieved, best first."""
        names = ("passages", "scores", "asked_by", "relative")
        found = zip(*(self[name][i].tolist() for name in names), strict=True)
        there = [one for one in found if one[0] >= 0]
        return tuple(
            RetrievedPassage(
                row,
                self.table.passages[self.table.place[row]],
                score,
                asked_by,
                relative,
                excerpt,
                own=row in self.table.own,
            )
            for (row, score, asked_by, relative), excerpt in zip(
                there, self.about[i]["excerpts"], strict=True
            )
        )

    @property
    def own(self) -> Tensor:
        """[N, K] bool: retrieved passages that are from somebody's own documents."""
        rows = torch.tensor(sorted(self.table.own), dtype=self["passages"].dtype)
        return torch.isin(self["passages"], rows)

    def places(self, i: int) -> list[int]:
        """Rows of the table of what was retrieved."""
        return [self.table.place[row] for row in self["passages"][i].tolist() if row >= 0]


def collect(
    rows: Sequence[gather.Gathered],
    fingerprint: Mapping[str, Any],
    library: Library,
    workers: PipelineWorkers,
    run: Run,
) -> Records:
    """Gather what is missing, read everything."""
    files = gather.gather(rows, fingerprint, workers, run)
    about: list[dict[str, Any]] = []
    parts: list[dict[str, Tensor]] = []
    for path in files:
        with safe_open(path, framework="pt") as file:
            about += json.loads(file.metadata()["rows"])
        parts.append(load_file(path))
    tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    needed = {row for row in tensors["passages"].flatten().tolist() if row >= 0}
    needed |= {row for one in about for row in one["gold_rows"]}
    found = sorted(needed)
    table = PassageTable(
        tuple(map(library.passage, found)),
        {row: number for number, row in enumerate(found)},
        partial(_encode, found, workers, run),
        frozenset(filter(library.is_own, found)),
    )
    return Records(about, tensors, table)


def _encode(rows: Sequence[int], workers: PipelineWorkers, run: Run) -> EncodedPassages:
    """In files of some passages each, so that a killed run goes on."""
    batches = [rows[n : n + PASSAGES_PER_FILE] for n in range(0, len(rows), PASSAGES_PER_FILE)]
    files = [run.folder / f"passages-{number:04d}.safetensors" for number in range(len(batches))]
    todo = [pair for pair in zip(batches, files, strict=True) if not pair[1].exists()]
    run_jobs(workers, _write_passages, todo, run.counted("encoding passages"))
    embeddings, states = [], []
    for path in files:
        part = load_file(path)
        embeddings.append(part["embeddings"].float())
        states += part["states"].split(part["lengths"].tolist())
    return EncodedPassages(torch.cat(embeddings), tuple(states))


def _stays_there() -> EncodedPassages:
    raise RuntimeError("passages are encoded where the records are whole")


def _write_passages(pipeline: Pipeline, rows: Sequence[int], path: Path) -> None:
    passages = [pipeline.library.passage(row) for row in rows]
    encoded = pipeline.backbone.encode_texts([passage.text for passage in passages])
    states = [some[:WORDS_PER_PASSAGE].half() for some in encoded.states]
    tensors = {
        "embeddings": encoded.embeddings.half(),
        "states": torch.cat(states),
        "lengths": torch.tensor([len(some) for some in states]),
    }
    with atomic(path) as unfinished:
        save_file(tensors, unfinished)


def replaying(pipeline: Pipeline, **components: Any) -> Pipeline:
    """With these components in place, and without zoom: records hold no image."""
    return pipeline.with_config(zoom={"regions": 0}).with_components(**components)


def replay(records: Records, i: int, pipeline: Pipeline, budget: Budget) -> tuple[State, int]:
    """Record `i` from prune to retrieve with this budget, and the FLOPs of that."""
    trace = Trace()
    state = records.before_prune(i, len(pipeline.backbone.concepts)).add(budget=budget)
    if pipeline.components.grounding is None:
        return pipeline.run(state, start="prune", stop="retrieve", trace=trace), trace.flops
    # A grounding reads the features of all tokens: its scores are those of gathering.
    saliency = records["saliency"][i].float()
    kept = KeptTokens(top_positions(saliency, budget.tokens), saliency, state.tokens)
    state = pipeline.run(state.add(kept=kept), start="regions", stop="retrieve", trace=trace)
    return state, trace.flops + records.about[i]["flops"]["prune"]
