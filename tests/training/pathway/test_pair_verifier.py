"""A pair verifier and its encoder are exported together, and only for the folder's own use."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from skipqa.backbones.networks.bert import Bert, BertConfig
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.training.pathway.context import TRAINED, TrainingContext
from skipqa.training.pathway.pair_verifier import ENCODER, PAIR_FILES, PairModel, PairPart
from skipqa.training.pathway.stage4_verifier import VerifierPart
from skipqa.training.pathway.verifier_settings import PairTraining, VerifierTraining
from skipqa.training.run import Run

SETTINGS = VerifierTraining(pairs=PairTraining(steps_on_cpu=1))
TINY = BertConfig(vocabulary=40, width=12, layers=2, heads=2, ffn=16, positions=16)


def model() -> PairModel:
    torch.manual_seed(0)
    return PairModel(Bert(TINY), Verifier(VerifierConfig(12, 12, 8, signals=3)))


def context_in(folder: Path, exported: list[str]) -> TrainingContext:
    def export(module: Any, name: str, *, ships: bool) -> None:
        if ships:
            exported.append(name)

    return cast(TrainingContext, SimpleNamespace(run=Run(folder), export=export))


def test_the_folder_that_a_stage_began_with_stays_as_it_is(tmp_path: Path) -> None:
    start, folder = tmp_path / "start", tmp_path / "out"
    for made in (start, folder / TRAINED):
        made.mkdir(parents=True)
    (start / ENCODER).write_bytes(b"of the stage before")
    os.link(start / ENCODER, folder / ENCODER)  # as components are copied
    (folder / TRAINED / ENCODER).write_bytes(b"new")
    exported: list[str] = []
    context = context_in(folder, exported)
    PairPart().export(context, SETTINGS, model(), {"pair_verifier": True})
    assert (start / ENCODER).read_bytes() == b"of the stage before"
    assert (folder / ENCODER).read_bytes() == b"new"
    assert exported == ["pair_verifier"]


@pytest.mark.parametrize("ships", [True, False])
def test_another_verifiers_threshold_is_not_for_old_pairs(tmp_path: Path, ships: bool) -> None:
    for name in PAIR_FILES:
        (tmp_path / name).write_bytes(b"of the stage before")
    verifier = Verifier(VerifierConfig(12, 12, 8))
    VerifierPart().export(context_in(tmp_path, []), SETTINGS, verifier, {"verifier": ships})
    assert [(tmp_path / name).exists() for name in PAIR_FILES] == [not ships] * 2


def test_pairs_have_to_beat_both_others(tmp_path: Path) -> None:
    context = context_in(tmp_path, [])
    context.run.finish("verifier", {"held-out": {"trained": {"f1": 0.3, "read": 0.9}}})

    def ships(f1: float, free: float) -> bool:
        held_out = {"trained": {"f1": f1, "read": 0.9}, "training_free": {"f1": free, "read": 0.1}}
        return PairPart().ships(context, {"held-out": held_out})["pair_verifier"]

    assert ships(0.35, free=0.2)
    assert not ships(0.35, free=0.5)
    assert not ships(0.25, free=0.2)


def test_passages_are_embedded_in_their_places() -> None:
    """Whatever else is in the batch; padding and empty questions are 0."""
    network = model().eval()
    pairs = [[[1, 5, 2], [1, 6, 7, 8, 2]], [], [[1, 9, 2]]]
    with torch.inference_mode():
        found = network.embedded(pairs, most=3)
        alone = network.embedded([[[1, 9, 2]]], most=3)
    assert found.shape == (3, 3, 12)
    torch.testing.assert_close(found[2], alone[0])
    norms = found.norm(dim=-1)
    assert norms[0].tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-5)
    assert not norms[1].any()


def test_both_halves_get_a_gradient() -> None:
    network = model().train()
    passages = network.embedded([[[1, 5, 2], [1, 6, 2]]], most=2)
    asked = torch.randn(1, 12), torch.randn(1, 12)
    there = torch.ones(1, 2, dtype=torch.bool)
    network.verifier(*asked, passages, torch.randn(1, 2, 3), there).sum().backward()
    grads = {name: p.grad for name, p in network.named_parameters()}
    assert grads["text.layers.0.qkv.weight"] is not None
    assert grads["text.layers.0.qkv.weight"].abs().sum() > 0
    assert grads["verifier.of_passage.weight"] is not None
    assert grads["verifier.of_passage.weight"].abs().sum() > 0


def test_without_a_gpu_it_is_left_out(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    said: list[str] = []
    context = cast(TrainingContext, SimpleNamespace(run=Run(tmp_path, say=said.append)))
    PairPart().run(context, VerifierTraining())
    assert said == ["the pair encoder needs a GPU: left as it is"]
    assert not list(tmp_path.iterdir())


def test_it_learns_which_word_answers_which() -> None:
    """Fifty questions, four passages each: right is the one that has the question's own number.
    No passage is right or wrong by itself, so what is embedded apart cannot tell."""
    draw = torch.Generator().manual_seed(1)
    asked = torch.randint(5, 15, (50,), generator=draw)
    told = torch.stack([5 + torch.randperm(10, generator=draw)[:4] for _ in range(50)])
    told[torch.arange(50), torch.randint(0, 4, (50,), generator=draw)] = asked
    pairs = [
        [[1, q, 2, 20 + p, 2] for p in passages]
        for q, passages in zip(asked.tolist(), told.tolist(), strict=True)
    ]
    right = (told == asked[:, None]).float()
    network = model().train()
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    nothing = torch.zeros(50, 12)
    for _ in range(150):
        logits = network.verifier(
            nothing, nothing, network.embedded(pairs, 4), torch.zeros(50, 4, 3)
        )
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, right)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert ((logits > 0) == right.bool()).float().mean() > 0.97
