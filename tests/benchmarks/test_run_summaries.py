"""Summaries of runs in one results file: what stands side by side was measured on the same."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from made_runs import make_run

from skipqa.errors import UserError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GPU = {"machine": {"cpu": "abacus", "cores": 2, "gpu": "NVIDIA H200, PCIe"}}
Summarise = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run_summaries() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module("run_summaries")


@pytest.fixture
def summarise(
    run_summaries: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Summarise:
    """The results file of the runs in `runs/`, timed by those in `timed/` if there are any."""

    def call() -> dict[str, Any]:
        out = tmp_path / "results"
        words = ["--runs", tmp_path / "runs", "--subject", "okvqa", "--out", out]
        if (tmp_path / "timed").exists():
            words += ["--timed", tmp_path / "timed"]
        monkeypatch.setattr("sys.argv", ["run_summaries.py", *map(str, words)])
        run_summaries.main()
        (path,) = out.iterdir()
        assert path.name == "okvqa_nvidia-h200-pcie_202611.json"
        return json.loads(path.read_text())

    return call


def test_times_come_from_the_runs_that_were_timed(summarise: Summarise, tmp_path: Path) -> None:
    for name in ("skip", "dense"):
        make_run(tmp_path / "runs" / name, name, alone=False, header=GPU | {"commit": None})
        make_run(tmp_path / "timed" / name, name, questions=range(10), ms=200.0)
    found = summarise()
    assert found["commit"] is None
    assert found["command"] == "skipqa eval vqa"
    assert found["results"]["timed"]["num_questions"] == 10
    assert found["results"]["timed"]["commit"] == "abc1234"
    for system in found["results"]["systems"].values():
        assert system["num_questions"] == 40
        assert system["latency_ms"]["p50"] < 300


@pytest.mark.parametrize(
    ("runs", "timed", "says"),
    [
        ([("a", "skip", {}), ("b", "skip", {})], [], r"runs/a and .*runs/b are of one system"),
        (
            [("a", "skip", {}), ("b", "dense", {"subset": "crowded"})],
            [],
            r"runs/a and .*runs/b differ in their subset",
        ),
        (
            [("a", "skip", {}), ("b", "dense", {})],
            [("a", "skip", {})],
            "timed holds no run of dense",
        ),
        *(
            ([("a", "skip", {})], [("a", "skip", about)], f"differ in their {name}")
            for name, about in {
                "components": {"components": {"reader": "r2"}},
                "config": {"config": {"preset": "desk"}},
                "questions": {"file": "other.jsonl"},
            }.items()
        ),
    ],
)
def test_what_cannot_stand_side_by_side_is_refused(
    runs: list[tuple[str, str, dict[str, Any]]],
    timed: list[tuple[str, str, dict[str, Any]]],
    says: str,
    summarise: Summarise,
    tmp_path: Path,
) -> None:
    for folder, some in (("runs", runs), ("timed", timed)):
        for name, system, about in some:
            make_run(tmp_path / folder / name, system, **about)
    with pytest.raises(UserError, match=says):
        summarise()
