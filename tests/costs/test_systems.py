"""The presets' own shapes, with few layers so that counting is quick: layers are alike."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from skipqa.backbones.networks.llama import VICUNA_7B
from skipqa.claims.paper import doubts
from skipqa.cli.costs import costs, show
from skipqa.costs.presets import architecture
from skipqa.costs.systems import (
    Architecture,
    System,
    changed,
    decoder_peak_bytes,
    expected_flops,
    kv_cache_bytes,
    parts,
    prompt_tokens,
)
from skipqa.errors import UserError
from skipqa.pipeline import Pipeline

PRESETS = ("pocket", "desk", "submission-7b", "ablation-13b")


def shallow(name: str) -> Architecture:
    full = architecture(name)
    assert full.drafter is not None
    vision = full.vision
    if isinstance(vision, partial) and name not in ("pocket", "desk"):
        vision = partial(vision.func, dataclasses.replace(vision.args[0], layers=2))
    return dataclasses.replace(
        full,
        vision=vision,
        text=dataclasses.replace(full.text, layers=2),
        decoder=dataclasses.replace(full.decoder, layers=2),
        drafter=dataclasses.replace(full.drafter, layers=2),
        load=dataclasses.replace(full.load, L_a=2),
    )


@pytest.mark.parametrize("system", ["dense", "skip"])
@pytest.mark.parametrize("name", PRESETS)
def test_formulas_agree_with_the_counter(name: str, system: System) -> None:
    preset = shallow(name)
    for part in parts(preset, preset.load, system):
        assert part.flops == pytest.approx(part.counted_flops(), rel=0.02), part.name


@pytest.mark.parametrize("name", PRESETS)
def test_skip_never_costs_more_than_its_routing(name: str) -> None:
    """What SKIP adds are its own heads; every shared part shrinks or stays."""
    preset = architecture(name)
    dense, skip = (
        {p.name: p.flops for p in parts(preset, preset.load, system)}  # type: ignore[arg-type]
        for system in ("dense", "skip")
    )
    added = {"RCSR queries"}  # one per region instead of one per image
    assert all(skip[part] <= dense[part] for part in dense if part not in added)
    routing = sum(skip[p] for p in ("QVS scoring", "DBC controller", "SKV verifier"))
    assert routing + skip.get("RCSR regions", 0) < 0.05 * sum(skip.values())


@pytest.mark.parametrize("name", PRESETS)
def test_keeping_everything_leaves_only_routing_on_top(name: str) -> None:
    preset = architecture(name)
    load = preset.load
    full = dataclasses.replace(
        load, V_kept=load.V, K_kept=load.K, K_read=load.K * (load.K_read > 0)
    )
    assert prompt_tokens(preset, full, "skip") == prompt_tokens(preset, full, "dense")


def test_without_passages_nothing_of_retrieval_is_paid() -> None:
    preset = shallow("submission-7b")
    found = parts(preset, dataclasses.replace(preset.load, K_kept=0, K_read=0), "skip")
    names = {part.name for part in found}
    assert not names & {"RCSR regions", "RCSR queries", "SKV verifier", "BSCA fusion"}
    assert "passage encoder" not in names


def test_expected_cost_charges_drafted_questions_for_what_always_runs() -> None:
    preset = architecture("submission-7b")
    found = parts(preset, preset.load, "skip")
    always = sum(part.flops for part in found if part.always)
    assert expected_flops(found, 1.0) == always
    assert expected_flops(found, 0.0) == sum(part.flops for part in found)
    assert {part.name for part in found if part.always} == {
        "vision encoder",
        "question encoder",
        "projector",
        "SKV drafter",
    }


def test_memory() -> None:
    assert kv_cache_bytes(VICUNA_7B, 2_196) == 2 * 32 * 4_096 * 2_196 * 2
    preset = shallow("submission-7b")
    dense, skip = (decoder_peak_bytes(preset, preset.load, s) for s in ("dense", "skip"))  # type: ignore[arg-type]
    # The widest moment is gate, up and their product next to the residual stream, in two bytes.
    widest = 4_096 + 4 * 11_008
    assert 0.5 * widest * 2_196 * 2 < dense < 2 * widest * 2_196 * 2
    assert dense / skip == pytest.approx(2_196 / 684, rel=0.05)


def test_the_7b_preset_has_the_shapes_it_claims() -> None:
    preset = architecture("submission-7b")
    cost = {part.name: part.flops for part in parts(preset, preset.load, "dense")}
    assert cost["decoder, prompt"] / 2_196 == pytest.approx(2 * 6.6e9, rel=0.1)  # 2 per weight
    assert cost["vision encoder"] / 577 == pytest.approx(2 * 1.0e9, rel=0.1)


def test_the_pocket_preset_is_counted_as_it_runs(trained_pipeline: Pipeline, photo: Path) -> None:
    asked = "How is this drink brewed?"
    answer = trained_pipeline.answer(photo, asked, fast_path=False)
    trace = answer.trace
    preset = architecture("pocket")
    T = len(trained_pipeline.backbone.encode_texts([asked]).states[0])
    load = changed(preset.load, {"T": T})
    cost = {part.name: part.flops for part in parts(preset, load, "skip")}
    for stage, named in {
        "encode": ("vision encoder", "question encoder"),
        "draft": ("SKV drafter",),
        "look": ("high-resolution encoder",),
    }.items():
        assert trace[stage].flops == pytest.approx(sum(cost[name] for name in named), rel=0.01)
    assert trace["prune"].kept == load.V_kept
    assert len(answer.state.regions) <= load.R


def test_loads_that_make_no_sense_are_refused() -> None:
    load = architecture("submission-7b").load
    for change in ({"V_kept": 577}, {"K_kept": 17}, {"R": 65}, {"T": 0}, {"draft_rate": 1.5}):
        with pytest.raises(UserError):
            dataclasses.replace(load, **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no preset"):
        architecture("nonsense")


def test_what_follows_from_a_letter_follows() -> None:
    seven, pocket = architecture("submission-7b").load, architecture("pocket").load
    assert changed(seven, {"K_kept": 3}).K_read == 3  # its decoder reads all kept passages
    assert changed(seven, {"K_kept": 3, "K_read": 0}).K_read == 0
    assert changed(seven, {"V_kept": 16}).R == 4
    assert changed(pocket, {"K_kept": 2}).K_read == 2
    assert changed(pocket, {"K_kept": 9}).K_read == pocket.K_read


@pytest.mark.parametrize("name", ["submission-7b", "ablation-13b"])
def test_the_papers_totals_are_contradicted_by_its_shapes(name: str) -> None:
    preset = architecture(name)
    dense, skip = (parts(preset, preset.load, s) for s in ("dense", "skip"))  # type: ignore[arg-type]
    assert doubts(name, preset, preset.load, dense, skip)
    assert doubts("pocket", preset, preset.load, dense, skip) == []


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    app.command()(costs)
    ran = CliRunner().invoke(app, ["--preset", "pocket", "--K-kept", "4", "--L_a", "1", "--json"])
    assert ran.exit_code == 0, ran.output
    said = json.loads(ran.stdout)
    assert said["load"]["K_kept"] == 4
    for system in said["systems"].values():
        for part in system["parts"]:
            assert part["formula_flops"] == pytest.approx(part["counted_flops"], rel=0.02)
    show(said)
    assert "SKV verifier" in capsys.readouterr().out
    assert isinstance(CliRunner().invoke(app, ["--system", "x"]).exception, UserError)
