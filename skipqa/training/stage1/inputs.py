"""What the parts of stage I work with: the settings, the data in groups, the published networks.

Nothing is trained here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from skipqa.backbones.presets.pocket_vision import NUM_WORDS
from skipqa.config import Between, Count, Fraction, NonNegative
from skipqa.training.run import Run
from skipqa.training.stage1.drafter import TRAIN_GROUPS, DrafterTraining
from skipqa.training.stage1.encoder import EncoderTraining
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.networks import Networks
from skipqa.training.stage1.reader import ReaderTraining
from skipqa.training.stage1.tagger import TaggerTraining

HELD_OUT = "okvqa/held-out"  # what everything is chosen on
PERCEPTUAL = "coco/held-out"  # added where the fast path is chosen
PERCEPTUAL_RATIO = 4  # one perceptual question for so many of the others


@dataclass(frozen=True, slots=True)
class Stage1Settings:
    answers: Count = 4_000
    common: NonNegative = 8_000  # questions made from ConceptNet, at most; 0: none
    notes: NonNegative = 4_000  # questions that made-up notes answer, at most; 0: none
    words: Count = NUM_WORDS  # of an image; answering takes as many
    views: Annotated[int, Between(1, 8)] = 3
    ranks: Annotated[tuple[int, ...], Between(1, 1_000)] = (64, 144)  # the smallest that will do
    max_loss: Fraction = 0.003  # of held-out accuracy, for a smaller rank
    encoder: EncoderTraining = field(default_factory=EncoderTraining)
    tagger: TaggerTraining = field(default_factory=TaggerTraining)
    drafter: DrafterTraining = field(default_factory=DrafterTraining)
    reader: ReaderTraining = field(default_factory=ReaderTraining)
    # Questions of each group that the reader is scored on, at most, but for those it chooses by
    scored: Count = 1_000


@dataclass(frozen=True, slots=True)
class StageInputs:
    """What all parts work with."""

    mixed: Mixture
    groups: dict[str, Tensor]  # rows of the examples, to train on and to score
    networks: Networks
    settings: Stage1Settings
    run: Run
    device: torch.device

    @property
    def scored(self) -> dict[str, Tensor]:
        """Rows that nothing is trained on."""
        ends = ("held-out", "val")
        return {name: rows for name, rows in self.groups.items() if name.endswith(ends)}

    def read(self) -> dict[str, Tensor]:
        """Those that the reader is scored on. Reading takes longer than drafting, and most of them
        are measured through the whole pipeline, too."""
        most, chosen_by = self.settings.scored, (HELD_OUT, PERCEPTUAL)
        return {
            name: rows if name in chosen_by else evenly(rows, most)
            for name, rows in self.scored.items()
        }


def group_rows(mixed: Mixture) -> dict[str, Tensor]:
    """By source and split; sources are okvqa, coco, fvqa, vqav2, common (made from ConceptNet or
    about notes) and, of Pocket-KB, pocket-kb, crowded and unseen. A group that is trained on is
    there even if it is empty. Of the held-out perceptual questions only as many as the fast path is
    judged by."""
    kinds = {(example.source, example.split) for example in mixed.examples}
    found = {name: torch.zeros(0, dtype=torch.long) for name in TRAIN_GROUPS}
    for source, split in sorted(kinds):
        found[f"{source}/{split}"] = torch.tensor(mixed.select(source, split), dtype=torch.long)
    if PERCEPTUAL in found:
        count = max(1, len(found.get(HELD_OUT, ())) // PERCEPTUAL_RATIO)
        found[PERCEPTUAL] = evenly(found[PERCEPTUAL], count)
    return found


def evenly(rows: Tensor, count: int) -> Tensor:
    """So many, evenly spaced, or all."""
    return rows[:: max(1, len(rows) // count)][:count]
