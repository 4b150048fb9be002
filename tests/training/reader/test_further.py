"""The pocket's reader goes on: from its file to such a file, in the stage and in bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_lora_reader import TRAINING, trainer
from tiny_training import LLAMA, decoder

from skipqa.backbones.networks.llama import Llama
from skipqa.nn import compact, low_rank
from skipqa.training.reader.further import Further
from skipqa.training.run import Run
from skipqa.training.stage1.reader import generate, log_probs

RANK = 3


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """What some training made of the decoder: matrices at that rank, and the norms."""
    tuned = decoder(seed=1).state_dict()
    tuned["embedding.weight"] = decoder().embedding.weight
    found = low_rank.delta(decoder().state_dict(), tuned, RANK)
    path = tmp_path / "reader.safetensors"
    save_file(compact.pack(found), path)
    return path


def trained(start: Path, folder: Path, path: Path, bfloat16: bool) -> tuple[Llama, Llama]:
    """As the decoder answered before, and as the exported file answers."""
    network = decoder()
    if bfloat16:
        network.embedding.bfloat16()
    further = Further.of(network, start, "pocket")
    before = decoder()
    before.load_state_dict({name: value.float() for name, value in network.state_dict().items()})
    learned = further.train(network, trainer(Run(folder)), TRAINING)
    with further.exported(network, learned, path) as answering:
        return before, answering


@pytest.mark.parametrize("bfloat16", [False, True])
def test_it_begins_as_shipped_learns_and_is_as_large_as_before(
    bfloat16: bool, shipped: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trained" / "reader.safetensors"
    before, after = trained(shipped, tmp_path / "run", path, bfloat16)
    expected = low_rank.apply(decoder().state_dict(), compact.unpack(load_file(shipped)))
    for name, value in before.state_dict().items():
        near = {"rtol": 1e-2, "atol": 1e-2} if bfloat16 else {}
        torch.testing.assert_close(value, expected[name], **near)
    was, now = load_file(shipped), load_file(path)
    assert {n: v.shape for n, v in was.items()} == {n: v.shape for n, v in now.items()}
    assert now.keys().isdisjoint({"embedding.weight"})
    inputs = trainer(Run(tmp_path / "other")).inputs
    rows, prompts = range(50), inputs.prompts
    answers = [next(iter(inputs.examples[row].answers)) for row in rows]
    pairs = list(zip(rows, answers, strict=True))
    gained = log_probs(after, prompts, pairs) - log_probs(before, prompts, pairs)
    assert float(gained.mean()) > 1.0
    # The file alone gives the same answers, whatever it was trained in
    read = Llama(LLAMA).eval()
    read.load_state_dict(low_rank.apply(decoder().state_dict(), compact.unpack(now)))
    same = generate(read, prompts, rows)
    agree = sum(a == b for a, b in zip(same, generate(after, prompts, rows), strict=True))
    assert agree >= (45 if bfloat16 else 50)
