"""The stage from photos to a component, on a tiny world; and that a token says what is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny_training
import torch
from drawn_album import NAMES, album, pixels
from safetensors.torch import load_file

from skipqa.backbones.presets.pocket import FineTuned, Pocket
from skipqa.backbones.presets.pocket_vision import TaggedVision
from skipqa.components import bundled, change_settings, load
from skipqa.config import EncodeConfig, override
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.cell_tagger import CellTagger, CellTaggerConfig
from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.stages.regions import in_box
from skipqa.training.cells import stage
from skipqa.training.cells.material import Material
from skipqa.training.cells.quality import CELLS, WINDOWS, Judged, by_side, feature_maps
from skipqa.training.cells.scenes import composed, photographed
from skipqa.training.cells.stage import PART, STAGE, CellTraining, names_better
from skipqa.training.run import Run
from skipqa.training.stage import Inputs
from skipqa.training.stage1 import mixture, photos

SMALL = override(
    STAGE.settings,
    {
        "train": {"steps": 4, "warmup": 1, "batch": 4, "boxed": 2, "pasted": 2, "hidden": 8},
        "calibrated_on": 4,
        "scored": 8,
    },
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_training.shrink_pictures(monkeypatch)


def tagger(names: tuple[tuple[str, str], ...]) -> Tagger:
    torch.manual_seed(0)
    words, kinds = tuple(name for _, name in names), tuple(kind for kind, _ in names)
    return Tagger(TaggerConfig(words, kinds, hidden=8)).eval().requires_grad_(False)


def vision(own: Tagger) -> TaggedVision:
    trained = bundled("pocket")
    assert trained is not None
    learned = FineTuned(own, trained / "vision.safetensors")
    found = Pocket(EncodeConfig(), learned=learned).vision
    assert isinstance(found, TaggedVision)
    return found


@pytest.fixture
def components(tmp_path: Path) -> Path:
    """The bundled ones with a tagger of the tiny world's names."""
    folder, shipped = tmp_path / "components", bundled("pocket")
    assert shipped is not None
    shutil.copytree(shipped, folder)
    names = (("", "disk"), ("", "sky"), ("dog", "dog 0"), ("dog", "dog 2"), ("flag", "country 1"))
    (folder / "tagger.safetensors").unlink()
    checkpoint.save(tagger(names), folder / "tagger.safetensors", preset="pocket")
    change_settings(folder / "settings.toml", encode={"scales": [photos.PIXELS, photos.HIGH_RES]})
    return folder


def test_from_photos_to_a_component(
    home: Path, data: Path, pocket_kb: Path, components: Path, tmp_path: Path
) -> None:
    """Twice, the same bits; what else is in the folder is what the stage began with."""
    tiny_training.add_crowded(pocket_kb)
    names = [*tiny_training.photo_names(0, 24), *tiny_training.photo_names(201, 15)]
    boxes = [{"image": name, "boxes": [["disk", 0.5, 0.5, 0.3, 0.6]]} for name in names]
    tiny_training.write_lines(data / "coco/boxes.jsonl", boxes)
    inputs, found = Inputs(data, pocket_kb, components=components), []
    said: list[str] = []
    for name in ("first", "second"):
        run = Run(tmp_path / name, say=said.append)
        metrics = STAGE.run(inputs, SMALL, run)[PART]
        assert metrics["names"] == 4  # nobody shows the sky in a box
        read_tokens = ["grounding", "region_query", "verifier"] if metrics["ships"] else []
        assert metrics["train_again"] == read_tokens
        assert any(", ".join(read_tokens) in line for line in said)
        assert metrics.keys() >= {"composites", "photos", "crowded/val"}
        path = run.folder / "trained" / "cell_tagger.safetensors"
        found.append(load_file(path))
        assert (run.folder / path.name).is_file() == metrics["ships"]
        for one in ("reader", "vision", "tagger"):
            before, after = (f / f"{one}.safetensors" for f in (components, run.folder))
            assert before.read_bytes() == after.read_bytes()
        changed = path.stat().st_mtime_ns
        assert STAGE.run(inputs, SMALL, run)[PART] == metrics
        assert path.stat().st_mtime_ns == changed  # a finished part is not trained again
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert sum(f"photos at {photos.HIGH_RES} pixels: 0.0 GB" in line for line in said) == 2


def test_what_reads_tokens_has_to_be_trained_again(tmp_path: Path) -> None:
    said: list[str] = []
    run = Run(tmp_path, say=said.append)
    assert stage.learned_without(run) == said == []
    for name in ("cell_tagger", "tagger", "fusion_reader", "grounding", "reader"):
        (tmp_path / f"{name}.safetensors").touch()
    assert stage.learned_without(run) == ["grounding", "fusion_reader"]
    [line] = said
    assert line.endswith("train again grounding, fusion_reader")


def test_photos_are_as_sharp_as_answering_sees_them(data: Path, pocket_kb: Path) -> None:
    """Trained on and judged."""
    names = tiny_training.photo_names(0, 24)
    boxes = {name: {"disk": ((0.2, 0.2, 0.8, 0.8),)} for name in names}
    whole = mixture.read(data, pocket_kb)
    said: list[str] = []
    material = Material.of(whole, boxes, (("", "disk"),), lambda *_: None, said.append)
    [count], size = {line.split()[0] for line in said}, photos.HIGH_RES
    assert material.pixels.pixels.shape == (int(count), 3, size, size)
    for boxed in (material.train.boxed, material.held_out.boxed):
        shown = photographed(material.pixels, boxed, 1)
        seen = material.pixels([one.photo for one in boxed])
        assert torch.equal(shown.high_res, seen)
        assert shown.low_res.shape[-1] == photos.PIXELS


def test_scenes_are_made_for_the_scales_that_are_set(
    data: Path, components: Path, tmp_path: Path
) -> None:
    change_settings(components / "settings.toml", encode={"scales": [photos.PIXELS, 96]})
    with pytest.raises(UserError, match=r"of 64 and 128 pixels: encode\.scales .* ends with 96"):
        STAGE.run(Inputs(data, components=components), SMALL, Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_component_needs_its_taggers_names(components: Path) -> None:
    cells = CellTagger(CellTaggerConfig(("gizmo",), ("",), hidden=8))
    checkpoint.save(cells, components / "cell_tagger.safetensors", preset="pocket")
    with pytest.raises(UserError, match=r"names that tagger\.safetensors .* lacks"):
        load(components, preset="pocket")


def test_tokens_say_what_was_pasted_and_where(home: Path, tmp_path: Path) -> None:
    """Of three colours on a grey ground; the encoder is left as it is."""
    own = vision(tagger(NAMES))
    before = {name: value.clone() for name, value in own.network.state_dict().items()}
    material = Material(album(), album(), {}, pixels())
    settings = CellTraining(
        steps=60, batch=8, boxed=0, pasted=0, hidden=32, lr=0.01, warmup=5, ema_decay=0.9
    )
    cells = stage.train(material, own, settings, Run(tmp_path / "run"))
    after = own.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)

    scenes = composed(album(), pixels(), 8, torch.Generator().manual_seed(5))
    maps = feature_maps(own, scenes)
    windows = own.recognise(maps)
    found = own.with_cells(cells).recognise(maps)
    assert own.cell_tagger is None
    assert torch.equal(found.overview_BC, windows.overview_BC)
    assert found.tags_BT is not None
    assert windows.tags_BT is not None
    assert torch.equal(found.tags_BT, windows.tags_BT)
    grid, start = maps[-1].shape[-1], own.network.config.classes
    inside, outside = [], []
    for box, image, name in zip(scenes.boxes, scenes.image, scenes.names, strict=True):
        if (box[2:] - box[:2]).min() > 0.25:  # a cell is a quarter of the image here
            there = in_box(tuple(box.tolist()), grid)
            evidence = found.probs_BVC[image, :, start:]
            inside.append(evidence[there].mean(0).argmax() == name)
            outside.append(evidence[there, name].mean() > evidence[~there, name].mean())
    assert sum(inside) > 0.9 * len(inside)
    assert all(outside)


def test_boxes_are_counted_by_their_side() -> None:
    found = [
        Judged(0.1, True, 0.2, 0.0),
        Judged(0.1, False, 0.4, 1.0),
        Judged(0.5, True, 0.6, 0.0),
    ]
    scored = by_side(found)
    assert list(scored) == ["below 12 %", "larger", "all"]
    assert scored["below 12 %"] == pytest.approx(
        {"boxes": 2, "named": 0.5, "evidence": 0.3, "none": 0.5}
    )
    assert "none" not in by_side([one._replace(none=None) for one in found])["all"]


def test_it_has_to_name_composites_and_photos_as_well() -> None:
    def compared(cells: float) -> dict[str, object]:
        return {WINDOWS: {"all": {"named": 0.5}}, CELLS: {"all": {"named": cells}}}

    assert names_better({"composites": compared(0.5), "photos": compared(0.6)})
    assert not names_better({"composites": compared(0.9), "photos": compared(0.4)})
    assert names_better({"composites": compared(0.6), "crowded/val": compared(0.4)})
