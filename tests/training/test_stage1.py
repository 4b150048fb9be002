"""Stage I as a whole, with tiny networks: what it leaves, and that a kill costs nothing."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_training
import torch
from safetensors.torch import load_file
from tiny_training import SETTINGS, VOCABULARY

from skipqa import components
from skipqa.backbones.llama import Llama
from skipqa.config import preset
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.training import mixture, stage1
from skipqa.training.run import Run
from skipqa.training.shipping import read_back

CPU = torch.device("cpu")
FILES = ("tagger", "drafter", "question", "reader")
Train = Callable[..., dict[str, Any]]


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> mixture.Mixture:
    folder = tmp_path_factory.mktemp("data")
    data = tiny_training.write_data(folder / "data")
    return mixture.read(data, tiny_training.write_pocket_kb(folder / "pocket-kb"))


@pytest.fixture(scope="module")
def train(mixed: mixture.Mixture) -> Train:
    def call(folder: Path, *, stop_at: str = "", parts: list[str] | None = None) -> dict[str, Any]:
        """Killed when the part `stop_at` reports its first step; `parts` hears what was trained."""

        def progress(what: str, done: int, total: int, loss: float | None) -> None:
            if what == stop_at:
                raise Killed
            if parts is not None and loss is not None and what not in parts:
                parts.append(what)

        run = Run(folder, seed=5, progress=progress)
        return stage1.run(mixed, SETTINGS, run, CPU, tiny_training.networks())

    return call


@pytest.fixture(scope="module")
def trained(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(folder)
    return folder


def same_files(first: Path, second: Path) -> bool:
    """Tensors bit for bit; the format does not order its metadata."""
    for name in FILES:
        a, b = (load_file(folder / f"{name}.safetensors") for folder in (first, second))
        if a.keys() != b.keys() or not all(torch.equal(a[key], b[key]) for key in a):
            return False
    return True


def test_it_leaves_four_components(trained: Path) -> None:
    left = {path.name for path in trained.iterdir()} - {"tensorboard"}
    others = {"metrics.json", "metrics.jsonl", "settings.toml"}
    assert left == {*(f"{name}.safetensors" for name in FILES), *others}
    tagger = Tagger(checkpoint.read_config(trained / "tagger.safetensors", TaggerConfig))
    checkpoint.load(tagger, trained / "tagger.safetensors", preset="pocket")
    assert tagger.config.word(tagger.config.kinds.index("flag")) == "flag of country 1"
    torch.testing.assert_close(
        tagger.meanings.norm(dim=-1), torch.ones(len(tagger.config.names)), rtol=0.01, atol=0
    )
    drafter = Drafter(checkpoint.read_config(trained / "drafter.safetensors", DrafterConfig))
    checkpoint.load(drafter, trained / "drafter.safetensors", preset="pocket")
    assert set(drafter.config.answers) >= {"red", "green", "blue", "orange", "hungary"}
    assert float(drafter.temperature) != 1
    published = tiny_training.decoder()
    reader = Llama(published.config)
    read_back(reader, published.state_dict(), trained / "reader.safetensors")
    assert torch.equal(reader.embedding.weight, published.embedding.weight)
    assert not torch.equal(reader.layers[0].qkv.weight, published.layers[0].qkv.weight)  # type: ignore[union-attr,union-attr]
    assert reader.config.vocabulary == VOCABULARY


def test_metrics_are_of_all_parts_and_sets(trained: Path) -> None:
    metrics = json.loads((trained / "metrics.json").read_text())
    sets = {"okvqa/held-out", "okvqa/val", "pocket-kb/val", "vqav2/val"}
    assert metrics["tagger"]["names"] == 9
    assert metrics["drafter"]["all_weights"].keys() == sets
    assert metrics["drafter"]["shipped"].keys() == sets
    assert metrics["reader"]["shipped"].keys() == sets
    joint = metrics["reader"]["joint"]
    assert joint.keys() == sets
    weights = {row["weight"] for row in joint.values()}
    assert weights == {joint["okvqa/held-out"]["weight"]}
    best = max(joint["okvqa/held-out"]["by_weight"].values())
    assert joint["okvqa/held-out"]["accuracy"] == best
    for part in ("drafter", "reader"):
        assert metrics[part]["ranks"]["rank"] in SETTINGS.ranks
    assert f"drafter_weight = {weights.pop()}" in (trained / "settings.toml").read_text()


def test_the_pipeline_can_be_set_so(trained: Path) -> None:
    """And answers as it does with what is shipped, but for the weight that the data chose."""
    config = preset("pocket", tomllib.loads((trained / "settings.toml").read_text()))
    assert config.decode.prompt == "short"
    folder = components.shipped("pocket")
    assert folder is not None
    shipped = preset("pocket", tomllib.loads((folder / "settings.toml").read_text()))
    weight = config.decode.drafter_weight
    decode = dataclasses.replace(shipped.decode, drafter_weight=weight)
    assert config == dataclasses.replace(shipped, decode=decode)


def test_a_seed_decides(train: Train, trained: Path, tmp_path: Path) -> None:
    train(tmp_path)
    assert same_files(tmp_path, trained)


@pytest.mark.parametrize(
    ("stop_at", "again"),
    [
        ("tagger-3", ["tagger-3", "tagger-4", "tagger"]),
        ("drafter-focus", ["drafter-focus"]),
        ("reader", ["reader", "reader-focus"]),
    ],
)
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(
    train: Train, trained: Path, tmp_path: Path, stop_at: str, again: list[str]
) -> None:
    with pytest.raises(Killed):
        train(tmp_path, stop_at=stop_at)
    parts: list[str] = []
    metrics = train(tmp_path, parts=parts)
    assert parts[: len(again)] == again  # what was finished is not trained again
    assert same_files(tmp_path, trained)
    assert metrics == json.loads((trained / "metrics.json").read_text())


def test_a_finished_run_does_nothing(train: Train, trained: Path) -> None:
    parts: list[str] = []
    metrics = train(trained, parts=parts)
    assert parts == []
    assert metrics == json.loads((trained / "metrics.json").read_text())


def test_too_little_is_refused(tmp_path: Path) -> None:
    data = tiny_training.write_data(tmp_path / "data")
    mixed = mixture.read(data, limit=1)
    with pytest.raises(UserError, match="too few questions"):
        stage1.run(mixed, SETTINGS, Run(tmp_path / "out"), CPU, tiny_training.networks())


def test_differences_are_small(trained: Path) -> None:
    """Of every matrix that training changed no more than its best directions are kept."""
    rank = json.loads((trained / "metrics.json").read_text())["reader"]["ranks"]["rank"]
    tensors = load_file(trained / "reader.safetensors")
    factors = [value for name, value in tensors.items() if name.endswith((".up", ".down"))]
    assert factors
    assert all(len(value) == rank for value in factors)


def test_settings_survive_being_written_down() -> None:
    assert json.loads(json.dumps(dataclasses.asdict(stage1.Stage1())))["drafts"]["rounds"] == 7.0
