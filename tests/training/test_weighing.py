"""Joint answers: the weight is chosen on held-out questions, for all alike."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_training import decoder, tokenizer

from skipqa.training import weighing
from skipqa.training.mixture import Example
from skipqa.training.reader import Prompts, generate, log_probabilities
from skipqa.training.weighing import Candidates, weigh


def test_weights() -> None:
    """Two candidates: the drafter likes the first, the reader the second."""
    opinion = torch.tensor([[-0.1, -2.0]]).expand(4, 2)
    read = torch.tensor([[-1.0, -0.5]]).expand(4, 2)
    first_right = Candidates(opinion, read, torch.tensor([[1.0, 0.0]]).expand(4, 2))
    second_right = Candidates(opinion, read, torch.tensor([[0.0, 1.0]]).expand(4, 2))
    assert first_right.chosen(0.0).tolist() == [0.0] * 4
    assert first_right.chosen(1.0).tolist() == [1.0] * 4
    found = weigh({"x/val": second_right, "held-out": first_right}, "held-out")
    # 0.3 is the first weight by which the drafter wins: 0.3 * 1.9 > 0.5
    assert {row["weight"] for row in found.values()} == {0.3}
    assert found["held-out"]["accuracy"] == 1
    assert found["x/val"]["accuracy"] == 0
    assert found["x/val"]["by_weight"]["0.0"] == 1
    assert found["held-out"]["route"]["draft_rate"] == 1


def test_candidates_are_the_drafters_best_and_the_readers_own() -> None:
    prompts = Prompts(["One Answer:", "Two Answer:"], tokenizer())
    network = decoder()
    examples = [Example(0, "?", {"b": 1.0, "a": 0.3}, "okvqa", "val")] * 2
    opinion = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]]).log()
    found = weighing.gather(network, prompts, examples, [1, 0], opinion, ("a", "b", "c"))
    assert found.drafted_QC.exp().tolist() == [
        pytest.approx([0.6, 0.3, 0.1, 0.1]),
        pytest.approx([0.5, 0.3, 0.2, 0.2]),
    ]
    assert found.score_QC[:, :3].tolist() == [
        pytest.approx([1.0, 0.0, 0.3]),
        pytest.approx([0.3, 0.0, 1.0]),
    ]
    own = generate(network, prompts, [1])[0]
    expected = log_probabilities(network, prompts, [(1, "b"), (1, own)])
    assert found.read_QC[0, [0, 3]].tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    assert all(math.isfinite(value) for value in found.read_QC.flatten().tolist())
