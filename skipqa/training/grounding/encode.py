"""What a grounding is trained on, encoded once: photos token by token, questions word by word.

Enters: photos in zips and the vision half of a backbone; questions and the pipeline's own encode
stage. Leaves: tables in half precision on the device of training, from which a batch is put
together as answering would see it, at low resolution or at high. The encoder is frozen here.

Shapes: P photos, Q questions, B in a batch, V tokens, F features, C concepts, N of them named,
T words.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from skipqa.backbones.concepts import Concepts
from skipqa.backbones.presets.pocket_vision import PocketVision, resized
from skipqa.config import EncodeConfig, PruneConfig
from skipqa.image import open_image
from skipqa.nn.grounding import Scene
from skipqa.parallel import InProcess, Workers
from skipqa.stages.encode import Encode
from skipqa.stages.prune import concept_relevance, expected, rule_logits
from skipqa.training.run import Counted

NAMED = 32  # concepts of a token's evidence that are kept
BATCH = {"cuda": 64, "cpu": 1}  # photos through the encoder at once
PHOTOS_PER_JOB = 64
LONGEST = 48  # words of a question

Photos = Mapping[tuple[Path, str], int]  # (zip, name) -> row
Job = tuple[Path, tuple[str, ...]]  # a zip, names in it


@dataclass(frozen=True, slots=True)
class EncodedView:
    """All photos at one resolution."""

    features_PVF: Tensor
    probs_PVN: Tensor
    concepts_PVN: Tensor
    overview_PC: Tensor


@dataclass(frozen=True, slots=True)
class PhotoTable:
    row: Mapping[int, int]  # of the mixture's photos -> here
    low_res: EncodedView
    high_res: EncodedView


@dataclass(frozen=True, slots=True)
class QuestionTable:
    row: Mapping[str, int]
    states: tuple[Tensor, ...]  # [T, d] each
    relevance_QC: Tensor  # what the rule takes from the question alone

    def to(self, device: torch.device) -> QuestionTable:
        states = tuple(one.to(device) for one in self.states)
        return QuestionTable(self.row, states, self.relevance_QC.to(device))


@dataclass(frozen=True, slots=True)
class Batch:
    """As a grounding reads it."""

    scene: Scene
    states_BTd: Tensor
    there_BT: Tensor


@dataclass(frozen=True, slots=True)
class Tables:
    photos: PhotoTable
    questions: QuestionTable
    config: PruneConfig

    def batch(self, photos: Sequence[int], questions: Sequence[str], high_res: bool) -> Batch:
        """Photos by their rows in the mixture."""
        view = self.photos.high_res if high_res else self.photos.low_res
        device = view.features_PVF.device
        rows = torch.tensor([self.photos.row[photo] for photo in photos], device=device)
        asked = [self.questions.row[question] for question in questions]
        probs_BVN = view.probs_PVN[rows].float()
        evidence_BVC = probs_BVN.new_zeros(*probs_BVN.shape[:2], view.overview_PC.shape[1])
        evidence_BVC.scatter_(2, view.concepts_PVN[rows].long(), probs_BVN)
        relevance_BC = self.questions.relevance_QC[asked].float()
        relevance_BC = relevance_BC + self.config.overview_weight * view.overview_PC[rows].float()
        rule_BV = (evidence_BVC @ relevance_BC[..., None])[..., 0]
        scene = Scene(view.features_PVF[rows].float(), evidence_BVC, rule_logits(rule_BV))
        states = [self.questions.states[n].float() for n in asked]
        there = [torch.ones(len(one), dtype=torch.bool, device=device) for one in states]
        return Batch(
            scene, pad_sequence(states, batch_first=True), pad_sequence(there, batch_first=True)
        )


def encode_questions(
    encode: Encode, concepts: Concepts, questions: Sequence[str], counted: Counted
) -> QuestionTable:
    """Each question once, by the pipeline's own stage."""
    states, relevance = [], []
    for done, text in enumerate(questions, 1):
        question, _ = encode.question(text)
        relevance_C = concept_relevance(question, concepts)
        if question.concept_prior is not None:
            relevance_C = relevance_C + expected(question.concept_prior)
        states.append(question.states[:LONGEST].half())
        relevance.append(relevance_C.half())
        counted(done, len(questions))
    row = {text: number for number, text in enumerate(questions)}
    return QuestionTable(row, tuple(states), torch.stack(relevance))


@torch.inference_mode()
def encode_photos(
    vision: PocketVision,
    photos: Photos,
    config: EncodeConfig,
    device: torch.device,
    processes: int,
    counted: Counted,
) -> PhotoTable:
    """At low resolution and at all scales, as answering sees them."""
    vision = vision.whole_on(device)
    by_archive: dict[Path, list[str]] = {}
    for archive, name in photos:
        by_archive.setdefault(archive, []).append(name)
    jobs = [
        (archive, tuple(names[start : start + PHOTOS_PER_JOB]))
        for archive, names in by_archive.items()
        for start in range(0, len(names), PHOTOS_PER_JOB)
    ]
    views: tuple[list[EncodedView], list[EncodedView]] = ([], [])
    row: dict[int, int] = {}
    prepare = partial(partial, _decode, config.scales)
    with InProcess(prepare) if processes < 2 else Workers(prepare, processes) as workers:
        for (archive, names), decoded in zip(jobs, workers.map(jobs), strict=True):
            for start in range(0, len(names), BATCH[device.type]):
                some = slice(start, start + BATCH[device.type])
                maps = [
                    vision.network(_as_input(decoded[scale][some], device))
                    for scale in config.scales
                ]
                views[0].append(_view(vision, maps[:1]))
                views[1].append(_view(vision, maps))
            for name in names:
                row[photos[archive, name]] = len(row)
            counted(len(row), len(photos))
    return PhotoTable(row, *(_joined(some) for some in views))


def _view(vision: PocketVision, maps: Sequence[Tensor]) -> EncodedView:
    recognised = vision.recognise(maps)
    top = recognised.probs_BVC.topk(min(NAMED, recognised.probs_BVC.shape[-1]), dim=-1)
    return EncodedView(
        maps[-1].flatten(2).transpose(1, 2).half(),
        top.values.half(),
        top.indices.to(torch.int16),
        recognised.overview_BC.half(),
    )


def _joined(views: Sequence[EncodedView]) -> EncodedView:
    return EncodedView(
        torch.cat([view.features_PVF for view in views]),
        torch.cat([view.probs_PVN for view in views]),
        torch.cat([view.concepts_PVN for view in views]),
        torch.cat([view.overview_PC for view in views]),
    )


def _as_input(shown_BSS3: NDArray[np.uint8], device: torch.device) -> Tensor:
    scaled = torch.from_numpy(shown_BSS3).to(device, non_blocking=True).float() / 127.5 - 1
    return scaled.permute(0, 3, 1, 2)  # in the order of memory that the encoder likes best


def _decode(sizes: Sequence[int], job: Job) -> dict[int, NDArray[np.uint8]]:
    """By size in pixels, [n, S, S, 3]. No torch here: each of many processes would compute with as
    many threads as there are cores."""
    archive, names = job
    found: dict[int, list[NDArray[np.uint8]]] = {size: [] for size in sizes}
    with zipfile.ZipFile(archive) as file:
        for name in names:
            image = open_image(BytesIO(file.read(name)))
            for size in sizes:
                found[size].append(resized(image, size))
    return {size: np.stack(some) for size, some in found.items()}
