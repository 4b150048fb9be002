"""What the commands set for their process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from skipqa.cli.console import prepare_process
from skipqa.costs.environment import available_cores


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_core_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(available_cores() + 1)
    prepare_process()
    assert torch.get_num_threads() == available_cores()


def test_a_number_of_threads_that_is_given_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of tests would otherwise share every core, each with threads for all."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.set_num_threads(3)
    prepare_process()
    assert torch.get_num_threads() == 3
