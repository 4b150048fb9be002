from pathlib import Path

import pytest
import torch
from torch import nn

from skipqa.errors import UserError
from skipqa.nn.budget import DifficultyBudgetConfig, DiscreteBudgetConfig, build_budget
from skipqa.nn.checkpoint import load, read_config, read_header, save
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.projector import Projector, ProjectorConfig
from skipqa.nn.region_query import RegionQueryConfig, build_region_query
from skipqa.nn.saliency import SaliencyConfig, build_saliency
from skipqa.nn.verifier import Verifier, VerifierConfig


def components() -> list[nn.Module]:
    return [
        build_saliency(SaliencyConfig(6)),
        build_saliency(SaliencyConfig(6, "B")),
        build_region_query(RegionQueryConfig(5, 3, 4, hidden=8, vocabulary=40)),
        build_region_query(RegionQueryConfig(5, 3, 4, "B", hidden=8)),
        build_budget(DiscreteBudgetConfig(5, 4)),
        build_budget(DifficultyBudgetConfig(5, 4)),
        Verifier(VerifierConfig(4, 5)),
        Drafter(
            DrafterConfig(
                9, 5, 4, answers=("red", "two", "a dog"), width=16, layers=1, heads=2, ffn=32
            )
        ),
        Projector(ProjectorConfig(5, 4)),
        BipartiteFusion(FusionConfig(6, 4, 2)),
    ]


@pytest.mark.parametrize("index", range(10))
def test_round_trip(index: int, tmp_path: Path) -> None:
    torch.manual_seed(1)
    trained = components()[index]
    torch.manual_seed(2)
    fresh = components()[index]
    save(trained, tmp_path / "deep" / "x.safetensors", preset="pocket")
    load(fresh, tmp_path / "deep" / "x.safetensors", preset="pocket")
    for name, value in trained.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value), name
    assert read_config(tmp_path / "deep" / "x.safetensors", type(trained.config)) == trained.config
    header = read_header(tmp_path / "deep" / "x.safetensors")
    assert header.preset == "pocket"
    assert header.component == type(trained).__name__
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["x.safetensors"]


def test_wrong_pairings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "qvs.safetensors"
    save(build_saliency(SaliencyConfig(6)), path, preset="submission-7b")
    same = build_saliency(SaliencyConfig(6))
    with pytest.raises(UserError, match=r"'submission-7b'.*'ablation-13b'.*not interchangeable"):
        load(same, path, preset="ablation-13b")
    with pytest.raises(UserError, match="hidden 256 != 128"):
        load(build_saliency(SaliencyConfig(6, hidden=128)), path, preset="submission-7b")
    with pytest.raises(UserError, match="holds no ProjectorConfig"):
        read_config(path, ProjectorConfig)
    with pytest.raises(UserError, match="holds a ProductSaliency, not a AlignedSaliency"):
        load(build_saliency(SaliencyConfig(6, "B")), path, preset="submission-7b")


def test_bad_files_are_named(tmp_path: Path) -> None:
    model = build_saliency(SaliencyConfig(6))
    with pytest.raises(UserError, match="no checkpoint"):
        load(model, tmp_path / "absent.safetensors", preset="pocket")
    (tmp_path / "torn.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(UserError, match="damaged"):
        load(model, tmp_path / "torn.safetensors", preset="pocket")
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="not a skipqa component"):
        load(model, tmp_path / "other.safetensors", preset="pocket")
