"""Stage I as a whole, with tiny networks: what it leaves, and that a kill costs nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_training
import torch
from safetensors.torch import load_file
from tiny_training import SETTINGS, VOCABULARY, make_example

from skipqa import components
from skipqa.backbones.networks.efficientnet_lite import LITE2, EfficientNetLite
from skipqa.backbones.networks.llama import Llama
from skipqa.config import RetrieveConfig, preset
from skipqa.errors import UserError
from skipqa.knowledge import Library
from skipqa.nn import checkpoint
from skipqa.nn.cell_tagger import CellTagger, CellTaggerConfig
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.training.export import read_back
from skipqa.training.run import Run
from skipqa.training.stage import Inputs
from skipqa.training.stage1 import backbone, common_sense, encoder, mixture, photos, tagger
from skipqa.training.stage1.drafter import ABSTAIN, TRAIN_GROUPS
from skipqa.training.stage1.encoder import LabelledPhotos
from skipqa.training.stage1.finding import Retrieval
from skipqa.training.stage1.inputs import PERCEPTUAL, Stage1Settings, group_rows
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.networks import Networks
from skipqa.training.stage1.photos import Things
from skipqa.training.stage1.pocket_kb import HeldOut

CPU = torch.device("cpu")
FILES = ("vision", "tagger", "drafter", "question", "reader")
Progress = Callable[[str, int, int, float | None], None]
Train = Callable[..., dict[str, Any]]
# By the part in whose first step a run is killed: what the next call trains, from the first on
GOES_ON_WITH = {
    "encoder": ["encoder", "tagger/0"],
    "seeing photos": ["tagger/0"],
    "tagger/3": ["tagger/3", "tagger/4", "tagger"],
    "drafter/focus": ["drafter/focus"],
    "reader": ["reader", "reader/focus"],
    "reader/focus": ["reader/focus"],
}


class Killed(Exception):
    pass


def networks(_: object) -> Networks:
    return tiny_training.networks()


@pytest.fixture(scope="module", autouse=True)
def _small_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        tiny_training.shrink_pictures(patch)
        yield


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> mixture.Mixture:
    folder = tmp_path_factory.mktemp("data")
    data = tiny_training.write_fvqa(tiny_training.write_data(folder / "data"))
    pocket_kb = tiny_training.add_crowded(tiny_training.write_pocket_kb(folder / "pocket-kb"))
    found = mixture.read(data, pocket_kb)
    said = [("disk", "A disk can roll. A disk is made of wood."), ("red", "A red can glow.")]
    library = Library.open([tiny_training.write_passages(folder / "conceptnet", said)])
    found.examples += common_sense.questions(found, library, HeldOut.of(pocket_kb), 12, seed=5)
    return found


@pytest.fixture(scope="module")
def retrieval(tmp_path_factory: pytest.TempPathFactory) -> Retrieval:
    index = tiny_training.write_index(tmp_path_factory.mktemp("knowledge") / "colours")
    return Retrieval(partial(Library.open, [index]), components.TRAINING_FREE, RetrieveConfig())


@pytest.fixture(scope="module")
def train(mixed: mixture.Mixture, retrieval: Retrieval) -> Train:
    def call(folder: Path, told: Progress = lambda *_: None) -> dict[str, Any]:
        run = Run(folder, seed=5, progress=told)
        return backbone.train(mixed, SETTINGS, run, networks, CPU, lambda: retrieval)

    return call


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a kill leaves on the disk, by the part whose first step it hits; see `trained`."""
    return {part: tmp_path_factory.mktemp("killed") / "run" for part in GOES_ON_WITH}


@pytest.fixture(scope="module")
def trained(
    train: Train, killed: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One whole run, copied whenever a kill is to be tested: a kill leaves just that."""
    folder = tmp_path_factory.mktemp("trained")

    def copied(what: str, *_: object) -> None:
        if what in killed and not killed[what].exists():
            shutil.copytree(folder, killed[what])

    train(folder, copied)
    return folder


def note_trained(parts: list[str], what: str, done: int, total: int, loss: float | None) -> None:
    if loss is not None and what not in parts:
        parts.append(what)


def same_files(first: Path, second: Path) -> bool:
    """Tensors bit for bit; the format does not order its metadata."""
    for name in FILES:
        a, b = (load_file(folder / f"{name}.safetensors") for folder in (first, second))
        if a.keys() != b.keys() or not all(torch.equal(a[key], b[key]) for key in a):
            return False
    return True


def test_it_leaves_five_components(trained: Path) -> None:
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
    first, *answers = drafter.config.answers
    assert first == ABSTAIN
    assert {*answers} >= {"red", "green", "blue", "orange", "hungary"}
    assert float(drafter.temperature) != 1
    frequency = drafter.vocabulary()
    assert sum(math.exp(frequency[answer]) for answer in answers) == pytest.approx(1, abs=0.01)
    assert [*frequency.values()][1:] == sorted((frequency[a] for a in answers), reverse=True)
    assert frequency[ABSTAIN] == frequency[answers[-1]]
    published_vision = tiny_training.networks().vision
    seeing = EfficientNetLite(published_vision.config)
    read_back(seeing, published_vision.state_dict(), trained / "vision.safetensors")
    assert not torch.equal(seeing.stem.weight, published_vision.stem.weight)
    published = tiny_training.decoder()
    reader = Llama(published.config)
    read_back(reader, published.state_dict(), trained / "reader.safetensors")
    assert torch.equal(reader.embedding.weight, published.embedding.weight)
    assert not torch.equal(reader.layers[0].qkv.weight, published.layers[0].qkv.weight)  # type: ignore[union-attr,arg-type]
    assert reader.config.vocabulary == VOCABULARY


def test_weights_are_interpolated_with_the_published_ones(
    mixed: mixture.Mixture, tmp_path: Path
) -> None:
    published, targets = tiny_training.networks().vision, tagger.targets(mixed)
    pixels, things = photos.decode(mixed.photos), Things.of(mixed)

    labelled = LabelledPhotos(pixels, things, targets, mixed.train_photos())

    def finetuned(alpha: float) -> dict[str, torch.Tensor]:
        run = Run(tmp_path / str(alpha), seed=5)
        training = dataclasses.replace(SETTINGS.encoder, wise_ft_alpha=alpha)
        return encoder.finetune(published, labelled, run, training).state_dict()

    nothing, half, all_of_it = finetuned(0.0), finetuned(0.5), finetuned(1.0)
    for name, value in published.state_dict().items():
        assert torch.equal(nothing[name], value)
        torch.testing.assert_close(half[name], (value + all_of_it[name]) / 2)
    assert not torch.equal(half["stem.weight"], all_of_it["stem.weight"])


def test_metrics_are_of_all_parts_and_sets(trained: Path) -> None:
    metrics = json.loads((trained / "metrics.json").read_text())
    assert tuple(metrics) == backbone.PARTS
    sets = {f"{source}/held-out" for source in ("okvqa", "coco", "fvqa", "pocket-kb", "crowded")}
    sets |= {f"{source}/val" for source in ("okvqa", "vqav2", "fvqa", "pocket-kb", "crowded")}
    sets |= {"unseen/val"}
    assert metrics["encoder"]["of_things"] == 26
    assert metrics["tagger"]["names"] == 10
    assert metrics["tagger"]["recognised_in_crowds"].keys() == {"held-out", "val"}
    for when in ("low_res", "high_res"):
        found = metrics["tagger"][when]
        assert found.keys() == {"cross_fitted_map", "recognised"}
        assert found["recognised"].keys() == {"all", "small"}
        probs = [fraction for sets in found["recognised"].values() for fraction in sets.values()]
        assert all(0 <= fraction <= 1 for fraction in (found["cross_fitted_map"], *probs))
    for which in ("all_weights", "shipped", "blind"):
        assert metrics["drafter"][which].keys() == sets
    assert metrics["reader"]["shipped"].keys() == {"few", "found", "unread", "blind"}
    assert all(found.keys() == sets for found in metrics["reader"]["shipped"].values())
    joint, ranking = metrics["reader"]["joint"], metrics["reader"]["ranking"]
    assert joint.keys() == sets
    for row in joint.values():
        assert row.keys() == {"accuracy", "found", "unread"}
        assert row["accuracy"] == row["found"]["accuracy"]
        assert all(0 <= row[form]["accuracy"] <= 1 for form in ("found", "unread"))
    assert joint["fvqa/val"]["unread"]["by_type"].keys() == {"image", "kb"}
    assert metrics["reader"]["weights"] == ranking["weights"][ranking["chosen"]]
    validated = ranking["cross_validated"]
    assert (ranking["chosen"] == "fitted") == (validated["fitted"] >= validated["grid"])
    fast = metrics["reader"]["fast_path"]
    assert fast.keys() == sets | {"threshold"}
    assert all(fast[name]["full"] == pytest.approx(joint[name]["accuracy"]) for name in sets)
    for part in ("drafter", "reader"):
        assert metrics[part]["ranks"]["rank"] in SETTINGS.ranks


def test_the_pipeline_can_be_set_so(trained: Path) -> None:
    """To the weight and the threshold that the data chose, and is otherwise as without them."""
    reader = json.loads((trained / "metrics.json").read_text())["reader"]
    config = preset("pocket", tomllib.loads((trained / "settings.toml").read_text()))
    assert config.decode.prompt == "short"
    for name, weight in reader["weights"].items():
        assert getattr(config.decode, name) == weight
    threshold = reader["fast_path"]["threshold"]
    assert config.draft.threshold == pytest.approx(threshold, abs=1e-4)
    assert config.draft.counting_threshold == config.draft.threshold
    plain = preset("pocket")
    draft = dataclasses.replace(
        plain.draft,
        threshold=config.draft.threshold,
        counting_threshold=config.draft.counting_threshold,
    )
    decode = dataclasses.replace(plain.decode, prompt="short", lower_case=True, **reader["weights"])
    assert config == dataclasses.replace(plain, draft=draft, decode=decode)


def test_the_folder_is_read_as_components(trained: Path) -> None:
    found = components.load(trained, preset="pocket")
    for name in ("vision", "question", "reader"):
        assert getattr(found, name) == trained / f"{name}.safetensors"
    assert found.tagger is not None
    assert found.drafter is not None
    assert found.settings["decode"]["prompt"] == "short"
    assert found.settings["decode"]["passages"] == "auto"  # no fusion reader is left to ask for


def test_nothing_that_another_encoder_taught_stays_next_to_the_new_one(tmp_path: Path) -> None:
    start, bundled = tmp_path / "start", components.bundled("pocket")
    assert bundled is not None
    shutil.copytree(bundled, start)
    tags = checkpoint.read_config(start / "tagger.safetensors", TaggerConfig)
    cells = CellTagger(CellTaggerConfig(tags.names[:2], tags.kinds[:2], hidden=4))
    components.save(components.Components(cell_tagger=cells), start, preset="pocket")
    said: list[str] = []
    run = Run(tmp_path / "run", say=said.append)
    found = backbone._retrieval(Inputs(components=start), run)
    assert found.components.sparse_query == start / "sparse_query.safetensors"
    left = {path.stem for path in run.folder.glob("*.safetensors")}
    before = {path.stem for path in start.glob("*.safetensors")}
    assert before - left == {"cell_tagger", "grounding", "region_query", "verifier"}
    assert left >= {"sparse_query", "concept_prior", "bridge"}
    [line] = said
    assert line.endswith("another vision encoder: grounding, region_query, verifier, cell_tagger")
    assert components.load(run.folder, preset="pocket").cell_tagger is None


def test_no_name_of_an_unseen_entity_is_learned(trained: Path) -> None:
    """The collie is in images of `val`, next to others and alone."""
    names = checkpoint.read_config(trained / "tagger.safetensors", TaggerConfig).names
    assert "beans" in names
    assert "collie" not in names
    answers = checkpoint.read_config(trained / "drafter.safetensors", DrafterConfig).answers
    assert "collie" not in answers


def test_the_size_is_told_before(mixed: Mixture) -> None:
    few, many = (dataclasses.replace(SETTINGS, views=views) for views in (1, 3))
    each = 2 * len(mixed.photos) * photos.CELLS * LITE2.features
    assert backbone.memory_bytes(mixed, many) - backbone.memory_bytes(mixed, few) == 2 * each
    pooled = 2 * (photos.WINDOWS + photos.CROPS) / photos.CELLS
    assert backbone.memory_bytes(mixed, few) == pytest.approx(each * (1 + pooled))


def test_groups_are_by_source_and_split(mixed: Mixture) -> None:
    groups = group_rows(mixed)
    for name, rows in groups.items():
        source, _, split = name.partition("/")
        assert {(mixed.examples[row].source, mixed.examples[row].split) for row in rows.tolist()} == {(source, split)}  # fmt: skip  # noqa: E501
    assert groups.keys() >= {*TRAIN_GROUPS}
    nothing = group_rows(Mixture())
    assert {name: len(rows) for name, rows in nothing.items()} == dict.fromkeys(TRAIN_GROUPS, 0)


@pytest.mark.parametrize(("perceptual", "kept"), [(3, 3), (10, 10), (40, 10), (400, 10)])
def test_of_the_perceptual_questions_a_fraction_is_kept(perceptual: int, kept: int) -> None:
    """One for four of the others, from all over; all where there are fewer."""
    held_out = [make_example(0, "?", {"x": 1.0}, "okvqa", "held-out")] * 40
    seen = [make_example(0, "?", {"x": 1.0}, "coco", "held-out")] * perceptual
    rows = group_rows(Mixture([*held_out, *seen]))[PERCEPTUAL].tolist()
    assert len(rows) == kept
    assert rows == sorted(set(rows))
    assert rows[-1] >= 40 + perceptual * 3 // 4 - 1


def test_features_come_from_the_exported_encoder(
    train: Train, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the one that was trained: 8 bits are a little off."""
    seen_with: list[EfficientNetLite] = []

    def extract(encoder: EfficientNetLite, *_: object, **__: object) -> None:
        seen_with.append(encoder)
        raise Killed

    monkeypatch.setattr(photos, "extract", extract)
    for _ in range(2):  # trained just now, and by an earlier call
        with pytest.raises(Killed):
            train(tmp_path)
    published = tiny_training.networks().vision
    shipped = EfficientNetLite(published.config)
    read_back(shipped, published.state_dict(), trained / "vision.safetensors")
    for seen_by in seen_with:
        for name, value in shipped.state_dict().items():
            assert torch.equal(seen_by.state_dict()[name], value)


def test_a_seed_decides(train: Train, trained: Path, tmp_path: Path) -> None:
    train(tmp_path)
    assert same_files(tmp_path, trained)


@pytest.mark.parametrize("stop_at", GOES_ON_WITH)
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(
    train: Train, trained: Path, killed: dict[str, Path], tmp_path: Path, stop_at: str
) -> None:
    shutil.copytree(killed[stop_at], tmp_path, dirs_exist_ok=True)
    parts: list[str] = []
    metrics = train(tmp_path, partial(note_trained, parts))
    again = GOES_ON_WITH[stop_at]
    assert parts[: len(again)] == again  # what was finished is not trained again
    assert same_files(tmp_path, trained)
    assert metrics == json.loads((trained / "metrics.json").read_text())


def test_a_finished_run_does_nothing(train: Train, trained: Path) -> None:
    parts: list[str] = []
    metrics = train(trained, partial(note_trained, parts))
    assert parts == []
    assert metrics == json.loads((trained / "metrics.json").read_text())


def test_too_little_is_refused(tmp_path: Path, retrieval: Retrieval) -> None:
    data = tiny_training.write_data(tmp_path / "data")
    mixed = mixture.read(data, limit=1)
    with pytest.raises(UserError, match="too few questions"):
        backbone.train(mixed, SETTINGS, Run(tmp_path / "out"), networks, CPU, lambda: retrieval)


def test_differences_are_small(trained: Path) -> None:
    """Of every matrix that training changed no more than its best directions are kept."""
    rank = json.loads((trained / "metrics.json").read_text())["reader"]["ranks"]["rank"]
    tensors = load_file(trained / "reader.safetensors")
    factors = [value for name, value in tensors.items() if name.endswith((".up", ".down"))]
    assert factors
    assert all(len(value) == rank for value in factors)


def test_settings_survive_being_written_down() -> None:
    assert json.loads(json.dumps(dataclasses.asdict(Stage1Settings())))["drafter"]["epochs"] == 7.0
