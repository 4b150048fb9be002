"""The list of stages: what each begins with, and what is refused before anything is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from skipqa.components import read_settings, write_settings
from skipqa.errors import UserError
from skipqa.training.export import copy_components, ship
from skipqa.training.pathway.context import Gathering
from skipqa.training.pathway.stage import PathwaySettings, PathwayStage
from skipqa.training.pipelines import Source
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import backbone
from skipqa.training.stages import NAMES, STAGES, train
from skipqa.training.summaries import SUMMARIES


@dataclass(frozen=True, slots=True)
class Noted(TrainingStage):
    """A stage of the list that trains nothing: it leaves an empty file and remembers its inputs."""

    stage: TrainingStage
    metrics: Metrics
    begun: dict[str, Inputs] = field(default_factory=dict)

    @property
    def makes_backbone(self) -> bool:
        return self.stage.makes_backbone

    def part_of_all(self, preset: str) -> bool:
        return self.stage.part_of_all(preset)

    def run(self, inputs: Inputs, settings: Any, run: Run) -> Metrics:
        self.begun[self.name] = inputs
        run.folder.mkdir(parents=True)
        if inputs.components is not None:
            copy_components(inputs.components, run.folder)
        (run.folder / f"{self.name}.safetensors").touch()
        write_settings(run.folder / "settings.toml", {"decode": {"prompt": "short"}})
        return self.metrics

    def check(self, metrics: Mapping[str, Any]) -> None:
        self.stage.check(metrics)

    def refuses(self, preset: str) -> str:
        return self.stage.refuses(preset)


def stage1_read(okvqa: float) -> Metrics:
    """Metrics of a stage I whose image adds so much to a question of OK-VQA."""
    blind = {"okvqa/val": 0.2, "pocket-kb/val": 0.2}
    unread = {"okvqa/val": 0.2 + okvqa, "pocket-kb/val": 0.5}
    return {"reader": {"shipped": {"blind": blind, "unread": unread}}}


def noted(read: Metrics) -> tuple[list[Noted], dict[str, Inputs]]:
    begun: dict[str, Inputs] = {}
    return [Noted(stage.name, stage.settings, stage, read, begun) for stage in STAGES], begun


LATER = [
    *("cells", "grounding", "stage2", "stage3", "stage4", "stage5", "stage6"),
    *("hop", "ocr", "fast_path", "confidence"),
]


def test_the_order_is_the_papers_after_what_to_ask() -> None:
    assert ("splade", "stage1", "reader", *LATER, "all") == NAMES
    assert [stage.name for stage in STAGES if stage.makes_backbone] == ["splade", "stage1"]
    for stage in STAGES:
        assert dataclasses.is_dataclass(stage.settings)


def test_the_help_names_every_stage_in_order() -> None:
    assert tuple(SUMMARIES) == NAMES


def test_all_begins_each_stage_with_what_the_one_before_left(tmp_path: Path) -> None:
    stages, begun = noted(stage1_read(0.1))
    start, out = tmp_path / "start", tmp_path / "out"
    start.mkdir()
    metrics = train("all", Inputs(tmp_path, tmp_path, components=start), Run(out), (), stages)
    assert list(metrics) == list(begun) == LATER
    found = [inputs.components for inputs in begun.values()]
    assert found == [start, *(out / name for name in LATER[:-1])]
    assert {inputs.records for inputs in begun.values()} == {out / "records"}


def test_all_goes_from_photos_to_a_whole_checkpoint(tmp_path: Path) -> None:
    stages, begun = noted(stage1_read(0.1))
    metrics = train("all", Inputs(tmp_path, tmp_path), Run(tmp_path / "out"), (), stages)
    assert list(metrics) == ["splade", "stage1", *LATER]
    assert begun["splade"].components is None
    assert begun["stage1"].components == tmp_path / "out" / "splade"
    left = {path.stem for path in (tmp_path / "out" / "confidence").glob("*.safetensors")}
    assert left == set(metrics)


@pytest.mark.parametrize(
    ("trains", "kept"),
    [
        (("reader",), False),
        (("fusion_reader", "saliency"), False),
        (("cell_tagger",), False),
        (("saliency", "verifier", "dense_reader"), True),
        (("fusion_reader", "reading_choice"), True),
        ((), True),
    ],
)
def test_a_choice_of_how_to_read_goes_with_what_it_was_learned_with(
    tmp_path: Path, trains: tuple[str, ...], kept: bool
) -> None:
    """Also where a finished run is called again and copies what it began with."""
    start = tmp_path / "start"
    said: list[str] = []
    start.mkdir()
    for name in ("reading_choice", "reader", "saliency"):
        (start / f"{name}.safetensors").write_text("before")

    @dataclass(frozen=True, slots=True)
    class Ships(TrainingStage):
        def run(self, inputs: Inputs, settings: Any, run: Run) -> Metrics:
            copy_components(start, run.folder)
            for name in trains:
                path = tmp_path / f"{name}.safetensors"
                path.write_text("trained")
                ship(path, run.folder)
            return {}

    stages = [Ships("some", backbone.STAGE.settings)]
    for _ in range(2):
        run = Run(tmp_path / "out", say=said.append)
        train("some", Inputs(components=start), run, (), stages)
        assert (run.folder / "reading_choice.safetensors").is_file() is kept
    assert (start / "reading_choice.safetensors").read_text() == "before"
    assert all(f"another {trains[0]}.safetensors: train stage5 again" in line for line in said)
    assert len(said) == (0 if kept else 2)


def test_an_image_that_adds_nothing_stops_what_would_build_on_it(tmp_path: Path) -> None:
    stages, begun = noted(stage1_read(0.04))
    inputs = Inputs(tmp_path, tmp_path)
    with pytest.raises(UserError, match=r"adds 4\.0 points to the question alone on okvqa/val"):
        train("all", inputs, Run(tmp_path / "out"), (), stages)
    assert list(begun) == ["splade", "stage1"]
    train("all", replace(inputs, limit=9), Run(tmp_path / "trial"), (), stages)
    assert len(begun) == len(STAGES) - 1  # no reader: stage1 trains it


def test_the_gate_is_stage1s() -> None:
    backbone.STAGE.check(stage1_read(0.1))
    with pytest.raises(UserError, match="5 are needed before later stages build on it"):
        backbone.STAGE.check(stage1_read(0.04))


def test_records_lie_next_to_the_folder_and_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage that learns from records claims its folder before it gathers."""
    begun: list[tuple[Gathering, Path]] = []

    class Stop(Exception):
        pass

    def begin(_source: Source, _rows: Any, gathering: Gathering, folder: Path, _run: Run) -> None:
        begun.append((gathering, folder))
        raise Stop

    monkeypatch.setattr("skipqa.training.pathway.stage.begin", begin)
    monkeypatch.setattr("skipqa.training.pathway.gather.questions", lambda *_: [])
    start = tmp_path / "start"
    (start / "trained").mkdir(parents=True)
    inputs = Inputs(tmp_path, tmp_path, limit=9, components=start)
    changes = ["train.steps=7", "records.okvqa_train=3"]
    with pytest.raises(Stop):
        train("stage4", inputs, Run(tmp_path / "out"), changes)
    assert begun == [(replace(Gathering().at_most(9), okvqa_train=3), tmp_path / "records")]
    with pytest.raises(UserError, match="holds a run with other settings"):
        train("stage4", inputs, Run(tmp_path / "out"))
    (start / "trained" / "saliency.safetensors").touch()
    with pytest.raises(UserError, match="holds a run with other trained"):
        train("stage4", inputs, Run(tmp_path / "out"), changes)
    (start / "trained" / "saliency.safetensors").rename(start / "saliency.safetensors")
    with pytest.raises(UserError, match="holds a run with other components"):
        train("stage4", inputs, Run(tmp_path / "out"), changes)


def test_splade_claims_its_questions_and_its_index(tmp_path: Path) -> None:
    manifest, questions = tmp_path / "manifest.json", tmp_path / "train.jsonl"
    manifest.write_text("{}")
    questions.write_text("{}")
    inputs = Inputs(pocket_kb=tmp_path, index=(tmp_path,))
    with pytest.raises(UserError, match="damaged"):
        train("splade", inputs, Run(tmp_path / "out"))
    questions.write_text("{}\n{}")
    manifest.write_text("[]")
    with pytest.raises(UserError, match="holds a run with other indexes, pocket_kb"):
        train("splade", inputs, Run(tmp_path / "out"))


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
        train(name, Inputs(tmp_path), Run(tmp_path / "out"), changes)
    assert not (tmp_path / "out").exists()


def test_all_of_a_preset_based_on_another_is_what_depends_on_its_decoder(tmp_path: Path) -> None:
    stages, begun = noted({"reader": {"ships": True}})
    inputs = Inputs(tmp_path, tmp_path, preset="desk")
    train("all", inputs, Run(tmp_path / "out"), (), stages)
    assert list(begun) == ["reader", "fast_path", "confidence"]
    assert begun["fast_path"].components == tmp_path / "out" / "reader"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("splade", "all")])
def test_only_splade_learns_without_photos(tmp_path: Path, name: str) -> None:
    preset = "desk" if name == "reader" else "pocket"
    with pytest.raises(UserError, match=f"{name} learns from photos: give --data"):
        train(name, Inputs(pocket_kb=tmp_path, preset=preset), Run(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_settings_of_a_pathway_stage_are_two_groups() -> None:
    pathways = [stage for stage in STAGES if isinstance(stage, PathwayStage)]
    assert len(pathways) == 5
    for stage in pathways:
        assert isinstance(stage.settings, PathwaySettings)
        assert stage.settings.records == Gathering()


def test_settings_are_taken_over_and_kept(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    chosen = {"decode": {"prompt": "short"}, "x": {"y": [1, True]}}
    write_settings(start / "settings.toml", chosen)
    copy_components(start, tmp_path / "run")
    assert read_settings(tmp_path / "run" / "settings.toml") == chosen
