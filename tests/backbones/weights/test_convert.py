"""Converted weights in the cache: made once, whole or not at all, named by the delta's bytes."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from skipqa import assets, components
from skipqa.backbones.networks.efficientnet_lite import EfficientNetLite
from skipqa.backbones.presets.pocket import FineTuned, Pocket
from skipqa.backbones.text_encoder import MiniLm
from skipqa.backbones.weights import convert, loading
from skipqa.config import EncodeConfig
from skipqa.errors import UserError
from skipqa.training.export import write_delta

READER = Path(components.__file__).parent / "checkpoints" / "pocket" / "reader.safetensors"


@pytest.fixture
def empty_cache(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Everything is downloaded, nothing converted."""
    mine = tmp_path / "home"
    mine.mkdir()
    (mine / "assets").symlink_to(home / "assets")
    monkeypatch.setenv("SKIPQA_HOME", str(mine))
    yield mine / "converted"
    for path in mine.glob("converted/*/weights.safetensors"):  # half a gigabyte
        path.unlink()


def test_set_up_has_made_it_and_the_bytes_name_it(home: Path, tmp_path: Path) -> None:
    """The first question waits for no conversion."""
    said: list[str] = []
    found = convert.decoder(said.append, READER)
    assert found.parent == home / "converted"
    copy = tmp_path / "another name.safetensors"
    copy.write_bytes(READER.read_bytes())
    assert convert.decoder(said.append, copy) == found
    assert said == []
    assert found != convert.decoder()


def test_a_kill_leaves_nothing_and_the_next_start_makes_it(empty_cache: Path, home: Path) -> None:
    code = "import sys, pathlib; from skipqa.backbones.weights import convert\n"
    code += "convert.decoder(delta=pathlib.Path(sys.argv[1]))"
    process = subprocess.Popen([sys.executable, "-c", code, READER], env=os.environ)
    while not list(empty_cache.glob("*.partial")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    (leftover,) = empty_cache.iterdir()
    assert leftover.suffix == ".partial"

    said: list[str] = []
    made = convert.decoder(said.append, READER)
    assert said == ["converting smollm2-135m-instruct with its trained delta"]
    assert list(empty_cache.iterdir()) == [made]  # and no copy of the published one
    for name in ("weights.safetensors", "tokenizer.json"):
        assert filecmp.cmp(made / name, home / "converted" / made.name / name, shallow=False)
    assert convert.decoder(said.append, READER) == made
    assert len(said) == 1


def test_a_damaged_one_says_what_to_delete(empty_cache: Path) -> None:
    digest = assets.sha256_of(READER)[:8]
    torn = empty_cache / f"{assets.SMOLLM2.key}-{digest}-{convert.FORMAT}"
    torn.mkdir(parents=True)
    (torn / "weights.safetensors").write_bytes(b"half")
    backbone = Pocket(EncodeConfig(), learned=FineTuned(reader=READER))
    with pytest.raises(UserError, match="delete that folder") as error:
        _ = backbone.decoder
    assert str(torn) in str(error.value)


def test_the_vision_encoder_with_its_delta(empty_cache: Path, tmp_path: Path) -> None:
    """The published weights plus the delta; the folder of the plain ones stays."""
    plain = convert.vision()
    published = load_file(plain / "weights.safetensors")
    moved = {name: value + 0.5 for name, value in published.items() if name.startswith("stem")}
    network = EfficientNetLite()
    network.load_state_dict(published | moved)
    delta = tmp_path / "vision.safetensors"
    write_delta(network, published, delta, preset="pocket")
    said: list[str] = []
    made = convert.vision(said.append, delta)
    digest = assets.sha256_of(delta)[:8]
    assert made == empty_cache / f"{assets.EFFICIENTNET_LITE2.key}-{digest}-{convert.FORMAT}"
    assert said == [f"converting {assets.EFFICIENTNET_LITE2.name} with its trained delta"]
    tuned = load_file(made / "weights.safetensors")
    assert tuned.keys() == published.keys()
    for name, value in published.items():
        if name in moved:
            torch.testing.assert_close(tuned[name], moved[name], rtol=0, atol=1e-2)
        else:
            assert torch.equal(tuned[name], value)
    assert convert.vision(said.append, delta) == made
    assert convert.vision(said.append) == plain
    assert len(said) == 1
    encoder = Pocket(EncodeConfig(), learned=FineTuned(vision=delta)).vision.network
    torch.testing.assert_close(encoder.stem.bias, tuned["stem.bias"])


class TestDeltaOfAnotherNetwork:
    def test_names(self, tmp_path: Path) -> None:
        path = tmp_path / "reader.safetensors"
        save_file({"layers.9.weight": torch.ones(2, 2)}, path)
        self._refused({"layers.0.weight": torch.ones(2, 2)}, path)

    def test_shapes(self, tmp_path: Path) -> None:
        path = tmp_path / "reader.safetensors"
        save_file({"weight.up": torch.ones(2, 5), "weight.down": torch.ones(2, 7)}, path)
        self._refused({"weight": torch.ones(5, 6)}, path)

    def test_half_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "reader.safetensors"
        path.write_bytes(READER.read_bytes()[:1_000])
        self._refused({"weight": torch.ones(5, 6)}, path)

    def test_in_the_vision_encoder(self, empty_cache: Path) -> None:
        with pytest.raises(UserError, match="does not fit the published network"):
            convert.vision(delta=READER)
        assert not list(empty_cache.glob(f"{assets.EFFICIENTNET_LITE2.key}-*-{convert.FORMAT}"))

    def test_in_the_text_encoder(self, home: Path) -> None:
        with pytest.raises(UserError, match="does not fit the published network"):
            _ = MiniLm(delta=READER).network

    def _refused(self, published: dict[str, torch.Tensor], path: Path) -> None:
        with pytest.raises(UserError, match="does not fit the published network") as error:
            loading.tuned(published, path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
