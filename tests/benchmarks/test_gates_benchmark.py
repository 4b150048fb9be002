"""What the benchmark of gates computes, against plain counting."""

from __future__ import annotations

import importlib
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.backbones.networks.llama import Llama, LlamaConfig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def gates() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module("gates")


@given(rows=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
def test_auroc_counts_pairs(gates: ModuleType, rows: list[tuple[bool, int]]) -> None:
    wanted = [rank for is_wanted, rank in rows if is_wanted]
    others = [rank for is_wanted, rank in rows if not is_wanted]
    if not wanted or not others:
        return
    above = sum((a > b) + 0.5 * (a == b) for a, b in product(wanted, others))
    found = gates.auroc(np.array([w for w, _ in rows]), np.array([r for _, r in rows], float))
    assert found == pytest.approx(above / len(wanted) / len(others))


def test_the_first_by_rank_are_drafted(gates: ModuleType) -> None:
    rank, draft = np.array([0.1, 0.9, 0.5, 0.2, 0.8]), np.zeros(5)
    assert gates.with_drafts(rank, draft, np.ones(5)).tolist() == [1, 0, 1, 1, 0]


def test_logits_are_those_that_chose_the_draft(gates: ModuleType) -> None:
    torch.manual_seed(0)
    decoder = Llama(LlamaConfig(50, 32, 2, 4, 2, 48)).eval().requires_grad_(False)
    prompt = decoder.embedding(torch.randint(50, (1, 6)))
    drafted = decoder.generate(prompt, 4)
    hidden, logits = gates.draft_states(decoder, prompt, drafted.tokens)
    assert logits[:4].argmax(-1).tolist() == drafted.tokens
    torch.testing.assert_close(hidden[0], decoder.states(prompt)[0, -1])


def test_a_probe_finds_what_a_hidden_state_tells(gates: ModuleType) -> None:
    draw = np.random.default_rng(0)

    def gated(right: bool) -> object:
        hidden = draw.normal(size=20)
        hidden[3] += 3 if right else -3
        return gates.Gated({"confidence": 0.5}, {}, hidden.tolist(), float(right), 1.0)

    train, val = ([gated(n % 2 == 0) for n in range(count)] for count in (100, 40))
    probe, ridge = gates.fit_probe(train)
    assert ridge in gates.RIDGES
    found = gates.measure(val, probe)["gates"]
    assert found["probe"]["auroc_right"]["mean"] > 0.95
    assert found["confidence"]["auroc_right"]["mean"] == 0.5, "all alike"
