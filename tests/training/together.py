"""Trains a small module in this process, one of several or the only one.

For `test_several_processes.py`.

Enters: a folder, how many batches a step has, and at which step to stop as if killed (-1: never).
Leaves in the folder what `fit` leaves, and `weights.pt`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import tiny_training
import torch
from torch import Tensor, nn

from skipqa import components
from skipqa.config import RetrieveConfig
from skipqa.knowledge import Library
from skipqa.nn.lora import LoraConfig
from skipqa.training.loop import Optimisation, batches, fit
from skipqa.training.processes import joined
from skipqa.training.reader import adapter
from skipqa.training.reader.settings import ReaderSchedule
from skipqa.training.run import Run
from skipqa.training.stage1 import backbone, mixture
from skipqa.training.stage1.drafter import TRAIN_GROUPS
from skipqa.training.stage1.finding import Retrieval
from skipqa.training.stage1.reader import Prompts, ReaderInputs, ReaderTrainer

STEPS = 12


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x).tanh()


class Network(nn.Module):
    """Odd sizes, so that shards differ in length; dropout, running statistics, a frozen part and
    one without use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(3, 8), nn.ModuleList([Layer(), Layer()])
        self.dropout, self.last = nn.Dropout(0.3), nn.Linear(8, 1)
        self.frozen, self.unused = nn.Linear(8, 8).requires_grad_(False), nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(8, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(self.dropout(self.norm(self.frozen(x))))


def main(folder: Path, accumulate: int, stop: int) -> None:
    torch.manual_seed(0)
    network = Network()
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    batch_at = batches([torch.arange(64)], 10, 7)

    def loss(draw: int) -> Tensor:
        if draw == stop * accumulate:
            raise SystemExit(9)
        rows = batch_at(draw)
        noise = 0.1 * torch.randn(len(rows), 3)
        return (network(x[rows] + noise) - x[rows].sum(1, keepdim=True)).square().mean()

    with joined() as processes:
        kept = {"save_every_s": 0.0} if stop > 0 else {}
        run = Run(folder, 7, processes=processes, accumulate=accumulate, **kept)
        steps = Optimisation(STEPS, 1e-2, warmup=3)
        trained = fit("toy", network, loss, steps, run, [(network.first, 0.1)])
        if processes.rank == 0:
            torch.save(trained.state_dict(), folder / "weights.pt")


def lora(folder: Path) -> None:
    """Factors beside a tiny decoder, with dropout and layers that are computed again."""
    training = ReaderSchedule(epochs=4.0, focus_epochs=2.0, batch=4, lr=1e-2, warmup=2)
    texts = [f"{number} ?" for number in range(12)]
    examples = [tiny_training.make_example(0, t, {t[0]: 1.0}, "okvqa", "train") for t in texts]
    groups = dict.fromkeys(TRAIN_GROUPS, torch.zeros(0, dtype=torch.long))
    groups["okvqa/train"] = torch.arange(12)
    prompts = ReaderInputs(Prompts(texts, tiny_training.tokenizer()), examples, groups)
    with joined() as processes:
        run = Run(folder, 5, processes=processes, accumulate=2)
        trainer = ReaderTrainer(prompts, run, training, training.recompute)
        learned = adapter.train(tiny_training.qwen(), trainer, training, LoraConfig(4, mlp=True))
        if processes.rank == 0:
            torch.save(learned.state_dict(), folder / "weights.pt")


def write_world(folder: Path) -> Path:
    tiny_training.write_data(folder / "data")
    tiny_training.write_pocket_kb(folder / "pocket-kb")
    tiny_training.write_index(folder)
    return folder


def stage1(world: Path, folder: Path) -> None:
    """All parts of the first stage, with tiny networks."""
    mixed = mixture.read(world / "data", world / "pocket-kb")
    library = partial(Library.open, [world / "index"])
    retrieval = Retrieval(library, components.TRAINING_FREE, RetrieveConfig())
    with pytest.MonkeyPatch.context() as patch, joined() as processes:
        tiny_training.shrink_pictures(patch)
        run = Run(folder, 5, processes=processes, accumulate=2)
        backbone.train(
            mixed,
            tiny_training.SETTINGS,
            run,
            lambda _: tiny_training.networks(),
            torch.device("cpu"),
            lambda: retrieval,
        )
