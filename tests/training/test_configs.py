"""The paper's hyperparameters as files: every key is a setting, and what is set arrives."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from skipqa.config import PRESETS
from skipqa.errors import UserError
from skipqa.training import processes
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stages import STAGES, settings_of, train

CONFIGS = Path(processes.__file__).parent / "configs"
FILES = sorted(CONFIGS.glob("*.toml"))


def leaves(table: Mapping[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, *path, key)
        else:
            yield (*path, key), value


def test_each_larger_preset_has_one() -> None:
    assert {path.stem for path in FILES} == {name for name in PRESETS if name.endswith("b")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_is_a_setting_and_has_its_value(path: Path) -> None:
    found = settings_of(path)
    written = tomllib.loads(path.read_text())
    assert written.keys() == {"reader", *(f"stage{n}" for n in range(2, 7))}
    for (stage, *keys), value in leaves(written):
        setting = found[stage]
        for key in keys:
            setting = getattr(setting, key)
        assert setting == value, (stage, keys)
    assert found["stage1"] == next(one.settings for one in STAGES if one.name == "stage1")


def variants(settings: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every setting named `variant`, however deep."""
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        if dataclasses.is_dataclass(value):
            yield from variants(value, *path, one.name)
        elif one.name == "variant":
            yield (*path, one.name), value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_stage_trains_the_presets_own_variant(path: Path) -> None:
    """A file that leaves one out trains the default, A."""
    stages = {name: one for name, one in settings_of(path).items() if name.startswith("stage")}
    found = {
        ".".join(at): value for name, one in stages.items() for at, value in variants(one, name)
    }
    assert found == dict.fromkeys(found, PRESETS[path.stem].variant)
    assert found.keys() >= {
        *("stage2.train.variant", "stage3.train.variant", "stage3.train.region_query.variant"),
        *("stage5.train.variant", "stage6.train.saliency.variant", "stage6.train.fusion.variant"),
    }
    assert {PRESETS[name].variant for name in ("submission-7b", "ablation-13b")} == {"A", "B"}


def test_they_are_the_papers() -> None:
    """Appendix D: tables of the stages, and the submission's own values."""
    found = settings_of(CONFIGS / "ablation-13b.toml")
    rates = {name: found[name].train.lr for name in ("reader", "stage2", "stage3", "stage4")}
    assert rates == {"reader": 2e-5, "stage2": 5e-5, "stage3": 2e-5, "stage4": 1e-4}
    steps = [found[name].train.steps for name in ("reader", "stage2", "stage3", "stage4", "stage6")]
    assert steps == [10_000, 5_000, 15_000, 8_000, 3_000]
    assert (found["stage6"].train.lr, found["stage6"].train.weight_decay) == (5e-6, 0.01)
    lora = settings_of(CONFIGS / "submission-7b.toml")["reader"].lora
    assert (lora.rank, lora.rank * lora.scale, lora.dropout, lora.mlp) == (64, 128, 0.05, False)


@dataclasses.dataclass(frozen=True, slots=True)
class Told(TrainingStage):
    """Gives back its settings."""

    def run(self, inputs: Inputs, settings: Any, run: Run) -> Metrics:
        return dataclasses.asdict(settings)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    lr: float = 1.0
    steps: int = 3


STAGE = Told("one", Group())


def test_an_option_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[one]\nlr = 2.0\nsteps = 9\n")
    inputs = Inputs(pocket_kb=tmp_path, settings=path)
    assert train("one", inputs, Run(tmp_path), ["steps=4"], [STAGE]) == {"lr": 2.0, "steps": 4}
    assert train("all", inputs, Run(tmp_path), (), [STAGE])["one"] == {"lr": 2.0, "steps": 9}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[one]\nrate = 2", r"unknown setting one\.rate; known are"),
        ("[two]\nlr = 2", "no stage 'two'; there is one"),
        ("[one\n", "is damaged"),
        (None, "no settings at"),
    ],
)
def test_bad_files_are_one_line(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=says) as error:
        train("one", Inputs(settings=path), Run(tmp_path), (), [STAGE])
    assert "\n" not in str(error.value)
