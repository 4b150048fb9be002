"""Presets and their overrides: a slip is an error that names the setting."""

from __future__ import annotations

import dataclasses
import tomllib
from typing import Any

import pytest

from skipqa.config import PRESETS, Config, preset, read_settings
from skipqa.errors import UserError


def test_a_preset_is_called_by_its_own_name() -> None:
    for name, config in PRESETS.items():
        assert config.preset == name
        assert preset(name) == config


def test_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no preset 'giant'; there is .*pocket"):
        preset("giant")


def test_overrides_from_toml_reach_nested_values_and_leave_the_rest() -> None:
    changes = tomllib.loads("budget.tokens = 32\nfuse.beta = 1\nencode.scales = [256, 768]\n")
    changed = preset("pocket", changes)
    assert changed.budget.tokens == 32
    assert changed.fuse.beta == 1.0
    assert isinstance(changed.fuse.beta, float)
    assert changed.encode.scales == (256, 768)
    original = PRESETS["pocket"]
    assert (
        dataclasses.replace(
            changed, budget=original.budget, fuse=original.fuse, encode=original.encode
        )
        == Config()
    )
    assert original == Config(), "the preset itself must not change"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"prunes": {}}, "unknown setting prunes"),
        ({"budget": {"token": 3}}, r"unknown setting budget.token; known are .*passages, .*tokens"),
        ({"budget": 3}, "budget is a group of settings, not 3"),
        ({"budget": {"tokens": "many"}}, "budget.tokens takes a int, not 'many'"),
        ({"budget": {"tokens": 3.5}}, "budget.tokens takes a int"),
        ({"budget": {"tokens": True}}, "budget.tokens takes a int"),
        ({"fuse": {"beta": True}}, "fuse.beta takes a float"),
        ({"encode": {"scales": 256}}, "encode.scales takes a tuple"),
        (
            {"regions": {"proposals": "boxen"}},
            "regions.proposals takes clusters or boxes, not 'boxen'",
        ),
        ({"regions": {"proposals": 3}}, "regions.proposals takes a str, not 3"),
        ({"regions": {"max_regions": 0}}, "regions.max_regions takes 1 to 1,000,000, not 0"),
        ({"budget": {"passages": -1}}, "budget.passages takes 0 to"),
        ({"fuse": {"beta": 1.5}}, r"fuse.beta takes 0.0 to 1.0, not 1.5"),
        ({"verify": {"threshold": float("nan")}}, "verify.threshold takes 0.0 to 1.0, not nan"),
        ({"preset": "giant"}, "a preset is chosen by its name"),
        ({"encode": {"scales": []}}, "encode.scales takes 32 to 4,096"),
        ({"encode": {"scales": [256, 8]}}, "encode.scales takes 32 to 4,096"),
        ({"encode": {"scales": [256, "8"]}}, "encode.scales takes 32 to 4,096"),
    ],
)
def test_slips_are_errors_of_one_line(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as error:
        preset("pocket", changes)
    assert "\n" not in str(error.value)


def test_settings_are_toml_or_bare_words() -> None:
    pairs = ["budget.tokens=32", "regions.proposals=boxes", "encode.scales = [256, 768]"]
    settings = read_settings([*pairs, "regions.max_regions=4", 'preset="pocket"'])
    assert settings == {
        "budget": {"tokens": 32},
        "regions": {"proposals": "boxes", "max_regions": 4},
        "encode": {"scales": [256, 768]},
        "preset": "pocket",
    }
    assert preset("pocket", settings).regions.proposals == "boxes"
    assert read_settings([]) == {}


@pytest.mark.parametrize(
    "pairs",
    [
        ["budget.tokens"],
        ["=3"],
        ["two words=3"],
        ["budget.tokens=3", "budget.tokens=3"],
        ["budget=3", "budget.tokens=3"],
        ["[budget]=3"],
    ],
)
def test_what_is_no_setting_is_one_line(pairs: list[str]) -> None:
    with pytest.raises(UserError, match=r"a setting is stage\.name=value") as error:
        read_settings(pairs)
    assert pairs[-1] in str(error.value)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_keep_to_their_own_limits(name: str) -> None:
    assert preset(name, dataclasses.asdict(PRESETS[name])) == PRESETS[name]
