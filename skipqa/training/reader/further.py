"""A reader that ships as factors goes on learning: those factors and the norms are trained.

Enters: the published decoder, the file of its reader. Leaves: another such file, of the same ranks
and so of the same size, and the decoder as that file has it: a part of the way from the reader
before to the one trained (WiSE-FT), which keeps what the last epochs did not ask for. The reader of
`pocket` learned with all its weights first (stage I), which takes a GPU; that it learns from other
corpora, or to copy names, takes an hour on two cores that compute in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from skipqa.backbones.networks.llama import Llama
from skipqa.nn import checkpoint, compact, low_rank
from skipqa.training.export import read_back
from skipqa.training.reader.settings import ReaderSchedule
from skipqa.training.stage1.reader import ReaderTrainer, train_all_but_embeddings


@dataclass(frozen=True, slots=True)
class Further:
    """From the reader in that file."""

    start: Path
    published: dict[str, Tensor]
    preset: str
    fraction: float = 1.0  # of the way to what was trained

    @staticmethod
    def of(decoder: Llama, start: Path, preset: str, fraction: float = 1.0) -> Further:
        """`decoder` as published; afterwards it is that reader."""
        published = {name: value.clone() for name, value in decoder.state_dict().items()}
        read_back(decoder, published, start)
        return Further(start, published, preset, fraction)

    def train(self, decoder: Llama, trainer: ReaderTrainer, training: ReaderSchedule) -> Llama:
        train_all_but_embeddings(decoder)
        delta = compact.unpack(load_file(self.start))
        low_rank.factor_as(decoder, self.published, delta)
        for name, (rows, optimisation) in training.phases(trainer.inputs.groups).items():
            decoder = trainer.phase(name, decoder, decoder, rows, optimisation)
        return decoder

    @contextmanager
    def exported(self, decoder: Llama, learned: Llama, path: Path) -> Iterator[Llama]:
        """In the block, as the file has it."""
        before = compact.unpack(load_file(self.start))
        after = {
            name: value.cpu() for name, value in low_rank.factored(learned, self.published).items()
        }
        packed = compact.pack(low_rank.interpolated(before, after, self.fraction))
        tensors = {name: value.cpu() for name, value in packed.items()}
        checkpoint.save_tensors(tensors, path, component=path.stem, preset=self.preset)
        low_rank.merge(learned)
        read_back(learned, self.published, path)
        yield learned.requires_grad_(False)
