"""The reader of a large decoder: factors beside its matrices, trained while it stays as it is.

Enters: a frozen decoder, prompts with their answers. Leaves: an adapter; its file, a delta in 8
bits that is merged into the published weights when these are converted; and the adapter as that
file has it. Merged, because then an answer costs what it cost before, the converted folder has one
form, and the sum is rounded once to 8 bits, where factors beside an 8-bit product would be two more
products of floats per matrix and token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from skipqa.backbones.networks.llama import Llama, LlamaConfig
from skipqa.backbones.weights.gguf_decoder import PublishedDecoder
from skipqa.errors import UserError
from skipqa.nn import checkpoint, compact
from skipqa.nn.lora import Adapter, LoraConfig
from skipqa.training.reader.settings import ReaderSchedule
from skipqa.training.stage1.reader import ReaderTrainer

MOST_BYTES = 40_000_000  # of the file: it is downloaded by everyone
SCALE_BYTES = 4  # of a row in 8 bits


def matrices(config: LlamaConfig, lora: LoraConfig) -> dict[str, tuple[int, int]]:
    """Names and shapes (outputs, inputs) of those that get factors. q|k|v are one matrix here, and
    gate|up: one pair of factors each."""
    parts = {"qkv": (config.width + 2 * config.kv_width, config.width)}
    parts["out"] = (config.width, config.width)
    if lora.mlp:
        parts["gate_up"], parts["down"] = (2 * config.ffn, config.width), (config.width, config.ffn)
    return {
        f"layers.{i}.{part}": shape for i in range(config.layers) for part, shape in parts.items()
    }


def num_parameters(config: LlamaConfig, lora: LoraConfig) -> int:
    return sum(lora.rank * sum(shape) for shape in matrices(config, lora).values())


def file_bytes(config: LlamaConfig, lora: LoraConfig) -> int:
    """Of the exported tensors, for matrices that are worth 8 bits; the header comes on top."""
    scales = 2 * lora.rank * len(matrices(config, lora))
    return num_parameters(config, lora) + SCALE_BYTES * scales


def check_size(config: LlamaConfig, lora: LoraConfig) -> None:
    if (size := file_bytes(config, lora)) > MOST_BYTES:
        raise UserError(
            f"factors of rank {lora.rank} would be a file of {size / 1e6:.0f} MB, and at most "
            f"{MOST_BYTES / 1e6:.0f} are shipped: lower lora.rank, or leave lora.mlp out"
        )


@dataclass(frozen=True, slots=True)
class Beside:
    """A decoder that stays as published."""

    published: PublishedDecoder
    lora: LoraConfig
    preset: str

    def train(self, decoder: Llama, trainer: ReaderTrainer, training: ReaderSchedule) -> Adapter:
        return train(decoder, trainer, training, self.lora)

    @contextmanager
    def exported(self, decoder: Llama, learned: Adapter, path: Path) -> Iterator[Llama]:
        """In the block, with the factors as the file has them."""
        with export(learned, path, self.published, self.lora, preset=self.preset).beside(decoder):
            yield decoder


def train(
    decoder: Llama, trainer: ReaderTrainer, training: ReaderSchedule, lora: LoraConfig
) -> Adapter:
    """First on the mixture, then on knowledge questions; the decoder is not changed."""
    torch.manual_seed(trainer.run.seed)
    adapter = Adapter.start(decoder, matrices(decoder.config, lora), lora)
    for name, (rows, optimisation) in training.phases(trainer.inputs.groups).items():
        with adapter.beside(decoder):
            mean = trainer.phase(name, decoder, adapter, rows, optimisation)
        adapter = mean
    return adapter


def export(
    adapter: Adapter, path: Path, published: PublishedDecoder, lora: LoraConfig, *, preset: str
) -> Adapter:
    """The adapter as the file will be read back."""
    packed = {name: value.cpu() for name, value in compact.pack(adapter.delta()).items()}
    config = {**published.as_base(), **asdict(lora)}
    checkpoint.save_tensors(packed, path, component=path.stem, preset=preset, config=config)
    device = next(adapter.parameters()).device
    return Adapter.of(compact.unpack(packed), device)
