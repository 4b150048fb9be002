"""The stage `reader` as a whole, on what a tiny stage I left; what the command refuses."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_training
import torch
from safetensors.torch import load_file
from tiny_training import QWEN, SETTINGS

from skipqa import assets, components
from skipqa.backbones.presets import build
from skipqa.backbones.presets.desk import CHAT, Desk
from skipqa.backbones.weights.gguf_decoder import PublishedDecoder
from skipqa.config import RetrieveConfig, preset
from skipqa.errors import UserError
from skipqa.knowledge import Library
from skipqa.nn.lora import LoraConfig
from skipqa.training.pipelines import Source
from skipqa.training.reader.settings import ReaderSchedule, ReaderSettings
from skipqa.training.reader.stage import ReaderStage
from skipqa.training.run import Run
from skipqa.training.stage import Inputs
from skipqa.training.stage1 import backbone, mixture, photos, reader_quality
from skipqa.training.stage1.finding import Retrieval
from skipqa.training.stage1.networks import Networks
from skipqa.training.stage1.reader import Prompts
from skipqa.training.stage1.reading import FEW
from skipqa.training.stages import train

LORA = LoraConfig(rank=2)
TRAINING = ReaderSchedule(epochs=0.3, focus_epochs=0.2, batch=8)
STAGE = ReaderStage("reader", ReaderSettings(0, 0, words=4, train=TRAINING, lora=LORA))


class TinyDesk(Desk):
    published = PublishedDecoder(assets.QWEN, QWEN)


def networks(*_: object) -> Networks:
    return replace(tiny_training.networks(), decoder=tiny_training.qwen())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inputs]:
    """Data, an index, and in place of what is bundled with the pocket a tiny stage I."""
    folder = tmp_path_factory.mktemp("world")
    data = tiny_training.write_data(folder / "data")
    pocket_kb = tiny_training.write_pocket_kb(folder / "pocket-kb")
    index = tiny_training.write_index(folder / "colours")
    library = partial(Library.open, [index])
    retrieval = Retrieval(library, components.TRAINING_FREE, RetrieveConfig())
    with pytest.MonkeyPatch.context() as patch:
        tiny_training.shrink_pictures(patch)
        backbone.train(
            mixture.read(data, pocket_kb),
            SETTINGS,
            Run(folder / "pocket", seed=5),
            lambda _: tiny_training.networks(),
            torch.device("cpu"),
            lambda: retrieval,
        )
        here = {"pocket": folder / "pocket"}
        patch.setattr(components, "bundled", here.get)
        patch.setitem(build.SMALL, "desk", TinyDesk)
        yield Inputs(data, pocket_kb, index=(index,), preset="desk")


def begin(world: Inputs, folder: Path, **changes: Any) -> dict[str, Any]:
    return STAGE.run(world, STAGE.settings, Run(folder, seed=5, **changes))


@pytest.fixture(scope="module")
def trained(
    world: Inputs, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any], list[str], list[str]]:
    """The folder, the metrics, what was said, and the prompts that were made."""
    folder, said, written = tmp_path_factory.mktemp("desk") / "run", [], []

    class Noted(Prompts):
        def __init__(self, texts: Any, tokenizer: Any, form: Any) -> None:
            super().__init__(texts, tokenizer, form)
            written.extend(form.written(text) for text in texts if text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_quality, "Prompts", Noted)
        stage = ReaderStage("reader", STAGE.settings, networks)
        metrics = stage.run(world, stage.settings, Run(folder, seed=5, say=said.append))
    return folder, metrics, said, written


Trained = tuple[Path, dict[str, Any], list[str], list[str]]


def test_what_it_takes_is_said_before_it_starts(trained: Trained) -> None:
    _, _, (line,), _ = trained
    assert line.startswith("reader: 0.0M factors of rank 2 beside 4 matrices, ")
    assert "on the CPU: about" in line
    assert "by computation" in line


def test_prompts_are_the_presets_own(trained: Trained) -> None:
    _, _, _, written = trained
    before, after = CHAT.split("{prompt}")
    assert all(text.startswith(before) and text.endswith(after) for text in written)
    assert any("\nThe photo shows: " in text for text in written)
    assert any(text.count("Fact: ") == 3 for text in written)  # as many as the preset reads


def test_it_leaves_a_reader_its_settings_and_a_card(trained: Trained) -> None:
    folder, metrics, _, _ = trained
    found = metrics["reader"]
    assert found["ships"]
    assert found["before"].keys() == {"found", "unread"}
    assert found["shipped"].keys() == {"few", "found", "unread", "blind"}
    assert found["bytes"] == (folder / "reader.safetensors").stat().st_size
    loaded = components.load_for("desk", folder)
    assert loaded.reader == folder / "reader.safetensors"
    assert loaded.tagger is not None  # the pocket's
    config = preset("desk", loaded.settings)
    assert config.decode.prompt == "chat"
    assert config.decode.drafter_weight == found["weights"]["drafter_weight"]
    assert config.draft.threshold == found["fast_path"]["threshold"]
    assert tomllib.loads((folder / "settings.toml").read_text()).keys() == {"draft", "decode"}
    card = (folder / "README.md").read_text()
    assert assets.QWEN.sha256 in card
    assert "| okvqa/held-out | " in card
    assert not (folder / "state").exists()
    named = {name for name in load_file(folder / "reader.safetensors") if name.endswith(".up")}
    assert named == {f"layers.{i}.{part}.weight.up" for i in range(2) for part in ("qkv", "out")}


def test_later_stages_begin_with_it_and_the_pockets_settings(trained: Trained) -> None:
    source = Source("desk", trained[0])
    below = components.read_settings(components.bundled("pocket") / "settings.toml")  # type: ignore[operator]
    assert below["decode"]["prompt"] == "short"
    assert source.config == preset("desk", components.load_for("desk", trained[0]).settings)
    assert source.config.decode.prompt == "chat"
    fingerprint = source.fingerprint()
    assert (fingerprint["preset"], len(fingerprint["base"])) == ("desk", 16)
    assert "base" not in Source("pocket", components.bundled("pocket")).fingerprint()


FURTHER = replace(
    STAGE.settings, questions=6, scored=4, train=replace(TRAINING, epochs=0.0, focus_epochs=0.5)
)


def go_on(world: Inputs, run: Run) -> dict[str, Any]:
    stage = ReaderStage("reader", FURTHER, lambda *_: tiny_training.networks())
    return stage.run(replace(world, preset="pocket"), FURTHER, run)


@pytest.fixture(scope="module")
def further(world: Inputs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("further") / "run"
    return folder, go_on(world, Run(folder, seed=5))["reader"]


def test_the_pockets_own_reader_goes_on(
    world: Inputs, further: tuple[Path, dict[str, Any]]
) -> None:
    """Its file is as large as before, and what was chosen with it stays."""
    folder, metrics = further
    begun = components.bundled("pocket")
    assert begun is not None
    assert set(metrics["prompts"]) == {"reader/focus"}
    assert metrics["shipped"]["found"].keys() == {
        f"{source}/held-out" for source in ("okvqa", "coco", "pocket-kb")
    }
    was = load_file(begun / "reader.safetensors")
    now = load_file(folder / "trained" / "reader.safetensors")
    assert all(now[name].shape == value.shape for name, value in was.items())
    assert any(not torch.equal(now[name], value) for name, value in was.items())
    for name in ("settings.toml", "tagger.safetensors"):
        assert (folder / name).read_bytes() == (begun / name).read_bytes()
    shipped = load_file(folder / "reader.safetensors")
    expected = now if metrics["ships"] else was
    assert all(torch.equal(shipped[name], value) for name, value in expected.items())


def test_with_a_dense_systems_passages_alone_it_is_the_dense_baselines(
    world: Inputs, tmp_path: Path
) -> None:
    """Its file has the reader's ranks; what everyone else answers with stays as it was."""
    written: list[str] = []

    class Noted(Prompts):
        def __init__(self, texts: Any, tokenizer: Any, form: Any) -> None:
            super().__init__(texts, tokenizer, form)
            written.extend(text for text in texts if text)

    settings = replace(FURTHER, many=1.0, interpolation=1.0)
    stage = ReaderStage("reader", settings, lambda *_: tiny_training.networks())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_quality, "Prompts", Noted)
        run = Run(tmp_path / "run", seed=5)
        metrics = stage.run(replace(world, preset="pocket"), settings, run)
    stage.check(metrics)
    found, begun = metrics["dense_reader"], components.bundled("pocket")
    assert begun is not None
    assert "reader" not in metrics
    assert found["before"].keys() == found["shipped"].keys() == {"many"}
    assert set(found["prompts"]) == {"reader/focus"}
    assert max(text.count("Fact: ") for text in written) > max(FEW)
    was, now = (
        load_file(path)
        for path in (
            begun / "reader.safetensors",
            tmp_path / "run" / "trained" / "dense_reader.safetensors",
        )
    )
    assert {n: v.shape for n, v in was.items()} == {n: v.shape for n, v in now.items()}
    assert any(not torch.equal(now[name], value) for name, value in was.items())
    loaded = components.load(tmp_path / "run", preset="pocket")
    assert (loaded.dense_reader is not None) == found["ships"]
    assert loaded.reader is not None
    assert loaded.reader.read_bytes() == (begun / "reader.safetensors").read_bytes()


def test_a_dense_baselines_reader_of_a_larger_decoder_ships_next_to_that_decoders_own(
    world: Inputs, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is a whole checkpoint: whatever else is bundled comes with it."""
    pocket, desk = components.bundled("pocket"), trained[0]
    monkeypatch.setattr(components, "bundled", {"pocket": pocket, "desk": desk}.get)
    settings = replace(STAGE.settings, many=1.0)
    metrics = ReaderStage("reader", settings, networks).run(world, settings, Run(tmp_path, seed=5))
    before, found = components.load_for("desk"), components.load_for("desk", tmp_path)
    assert (found.dense_reader is not None) == metrics["dense_reader"]["ships"]
    assert before.reader is not None
    assert found.reader is not None
    assert found.reader.read_bytes() == before.reader.read_bytes()
    assert found.settings == before.settings
    assert found.settings["decode"]["prompt"] == "chat"


@pytest.mark.parametrize(
    ("killed_at", "looked"),
    [
        ("tagger/1", False),
        ("finding passages", True),
        ("reading okvqa/held-out, found", True),
        ("reader", True),
    ],
)
def test_killed_anywhere_it_ends_with_the_same_file_and_looks_once(
    killed_at: str,
    looked: bool,
    world: Inputs,
    further: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed(Exception):
        pass

    def stop(what: str, done: int, *_: object) -> None:
        if what.startswith(killed_at) and done >= (2 if killed_at in ("tagger/1", "reader") else 0):
            raise Killed

    folder = tmp_path / "run"
    with pytest.raises(Killed):
        go_on(world, Run(folder, seed=5, progress=stop, save_every_s=0.0))
    if looked:
        monkeypatch.setattr(photos, "decode", lambda *_: pytest.fail("looks again"))
    metrics = go_on(world, Run(folder, seed=5))["reader"]
    assert metrics == further[1]
    one, other = (load_file(f / "trained" / "reader.safetensors") for f in (folder, further[0]))
    assert one.keys() == other.keys()
    assert all(torch.equal(other[name], value) for name, value in one.items())


def test_its_factors_keep_their_ranks(world: Inputs, tmp_path: Path) -> None:
    settings = replace(FURTHER, lora=LoraConfig(rank=4))
    with pytest.raises(UserError, match="keep their ranks: leave lora out"):
        STAGE.run(replace(world, preset="pocket"), settings, Run(tmp_path / "run"))


@pytest.mark.parametrize(
    ("many", "epochs", "says"),
    [
        (0.03, 0.0, r"nothing is trained: set train\.epochs or train\.focus_epochs"),
        (1.0, 0.3, r"nothing is trained: set train\.focus_epochs"),
    ],
)
def test_settings_that_train_nothing_claim_no_folder(
    many: float, epochs: float, says: str, world: Inputs, tmp_path: Path
) -> None:
    """The command as mended may use it."""
    nothing = replace(TRAINING, epochs=epochs, focus_epochs=0.0)
    settings = replace(STAGE.settings, many=many, train=nothing)
    with pytest.raises(UserError, match=says):
        STAGE.run(world, settings, Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_read_and_another_refused(world: Inputs, trained: Trained) -> None:
    folder, metrics, _, _ = trained
    again = begin(world, folder)
    assert again == json.loads(json.dumps(metrics))
    with pytest.raises(UserError, match="holds a run with other seed"):
        STAGE.run(world, STAGE.settings, Run(folder, seed=6))


def test_a_reader_that_loses_does_not_ship(
    world: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_quality.ReaderEval, "accuracy", lambda *_: 0.5)
    monkeypatch.setattr(
        reader_quality.ReaderEval,
        "accuracies",
        lambda self, _, forms=(): {
            form: dict.fromkeys(self.rows_of, 0.5 if forms else 0.4) for form in self.prompts
        },
    )
    stage = ReaderStage("reader", STAGE.settings, networks)
    metrics = stage.run(world, stage.settings, Run(tmp_path / "run", seed=5))
    assert not metrics["reader"]["ships"]
    with pytest.raises(UserError, match="worse than the decoder did before: it stays"):
        stage.check(metrics)
    assert (tmp_path / "run" / "trained" / "reader.safetensors").is_file()
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert not left & {"reader.safetensors", "settings.toml", "README.md"}


@pytest.mark.parametrize(
    ("name", "preset", "says"),
    [
        ("reader", "submission-7b", "preset submission-7b: its decoder reads visual tokens"),
        ("stage1", "desk", "stage1 trains nothing for preset desk: it uses what is trained for"),
        ("stage4", "desk", "stage4 trains nothing for preset desk: it uses what is trained for"),
        ("splade", "ablation-13b", "preset ablation-13b: it trains pocket's text encoder"),
        ("stage5", "ablation-13b", "what looking up gains is measured with pocket's reader"),
        ("confidence", "ablation-13b", "nothing is bundled with preset ablation-13b: give"),
        ("reader", "dusk", "no preset 'dusk'; there is"),
    ],
)
def test_other_presets_are_one_line(
    name: str, preset: str, says: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says) as error:
        train(name, Inputs(data, tmp_path, preset=preset), Run(tmp_path / "out"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
