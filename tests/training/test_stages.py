"""Stages by name: what each begins with, and what is refused before anything is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skipqa.components import read_settings, write_settings
from skipqa.errors import UserError
from skipqa.training import stages
from skipqa.training.pathway.context import Gathering
from skipqa.training.pathway.gather import Source
from skipqa.training.run import Run
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stages import Inputs, Later, Settings, train


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each stage would have begun with."""
    found: list[dict[str, Any]] = []

    def begin(source: Source, _data: Path, _kb: Path, wanted: Gathering, *folders: Any) -> None:
        found.append({"components": source.components, "wanted": wanted, "records": folders[0]})

    monkeypatch.setattr(stages.context, "begin", begin)
    monkeypatch.setattr(Source, "fingerprint", lambda self, *_: {"preset": self.preset})
    for name, later in stages.LATER.items():
        monkeypatch.setitem(stages.LATER, name, Later(later.settings, lambda *_: {"done": True}))
    return found


def test_all_begins_each_stage_with_what_the_one_before_left(
    begun: list[dict[str, Any]], tmp_path: Path
) -> None:
    start, out = tmp_path / "start", tmp_path / "out"
    metrics = train("all", Inputs(tmp_path, tmp_path, components=start), out)
    assert list(metrics) == ["stage2", "stage3", "stage4", "stage5", "stage6"]
    assert [one["components"] for one in begun] == [start, *(out / n for n in list(metrics)[:-1])]
    assert {one["records"] for one in begun} == {out / "records"}
    assert (out / "stage6" / "config.json").is_file()


def stage1_read(okvqa: float) -> dict[str, Any]:
    """Metrics of a stage I whose picture adds so much to a question of OK-VQA."""
    blind = {"okvqa/val": 0.2, "pocket-kb/val": 0.2}
    unread = {"okvqa/val": 0.2 + okvqa, "pocket-kb/val": 0.5}
    return {"reader": {"shipped": {"blind": blind, "unread": unread}}}


def with_first_stages(monkeypatch: pytest.MonkeyPatch, metrics: dict[str, Any]) -> None:
    """Stage I and splade leave an empty file each, of the name of a component of theirs."""
    monkeypatch.setattr(stages.mixture, "read", lambda *_: Mixture())
    monkeypatch.setattr(stages, "_size", lambda *_: "")

    def learn_to_see(_mixed: Any, _settings: Any, run: Run, _device: Any) -> dict[str, Any]:
        (run.folder / "reader.safetensors").touch()
        write_settings(run.folder / "settings.toml", {"decode": {"prompt": "short"}})
        return metrics

    def learn_to_ask(_kb: Any, _index: Any, _settings: Any, run: Run, *_: Any) -> dict[str, Any]:
        (run.folder / "sparse_query.safetensors").touch()
        return {"done": True}

    stage1 = replace(stages.STAGES["stage1"], run=learn_to_see)
    monkeypatch.setitem(stages.STAGES, "stage1", stage1)
    monkeypatch.setattr(stages.sparse, "run", learn_to_ask)


@pytest.mark.usefixtures("begun")
def test_all_goes_from_photos_to_a_whole_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_first_stages(monkeypatch, stage1_read(0.1))
    out = tmp_path / "out"
    metrics = train("all", Inputs(tmp_path, tmp_path), out)
    assert list(metrics) == ["stage1", "splade", *stages.LATER]
    left = {path.name for path in (out / "splade").glob("*.safetensors")}
    assert left == {"reader.safetensors", "sparse_query.safetensors"}
    settings = read_settings(out / "splade" / "settings.toml")
    assert settings == {"decode": {"prompt": "short"}, "retrieve": stages.sparse.RETRIEVE}


def test_a_picture_that_adds_nothing_stops_what_would_build_on_it(
    begun: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_first_stages(monkeypatch, stage1_read(0.04))
    with pytest.raises(UserError, match=r"adds 4\.0 points to the question alone on okvqa/val"):
        train("all", Inputs(tmp_path, tmp_path), tmp_path / "out")
    assert not begun
    train("all", Inputs(tmp_path, tmp_path, limit=9), tmp_path / "trial")
    assert len(begun) == len(stages.LATER)


def test_records_lie_beside_and_are_limited(begun: list[dict[str, Any]], tmp_path: Path) -> None:
    inputs = Inputs(tmp_path, tmp_path, limit=9)
    train("stage4", inputs, tmp_path / "out", changes=["train.steps=7", "records.val=3"])
    assert begun[0]["records"] == tmp_path / "records"
    expected = replace(Gathering().at_most(9), val=3)
    assert begun[0]["wanted"] == expected
    with pytest.raises(UserError, match="holds a run with other settings"):
        train("stage4", inputs, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("all", ["train.steps=3"], "settings are of one stage"),
        ("stage2", ["train.step=3"], "unknown setting train.step; known are"),
        ("stage2", [], "stage2 learns from passages that are known to answer: give Pocket-KB"),
        ("all", [], "all learns from passages that are known to answer: give Pocket-KB"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, name: str, changes: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        train(name, Inputs(tmp_path), tmp_path / "out", changes=changes)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["stage1", "stage2"])
def test_only_splade_learns_without_photos(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"{name} learns from photos: give --data"):
        train(name, Inputs(pocket_kb=tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_settings_of_a_stage_are_two_groups() -> None:
    for later in stages.LATER.values():
        assert isinstance(later.settings, Settings)
        assert later.settings.records == Gathering()
