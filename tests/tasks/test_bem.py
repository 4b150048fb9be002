"""The BEM scorer around a stand-in model: the real one is not on any package registry."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from skipqa.errors import MissingExtra, UserError
from skipqa.tasks import evqa
from skipqa.tasks.bem import Bem

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", "what", "?"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    (tmp_path / "saved_model.pb").write_bytes(b"")
    return tmp_path


def test_inputs_follow_the_official_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def model(inputs: dict[str, Any]) -> np.ndarray:
        seen.append(inputs)
        return np.array([[-1.0, 1.0]], dtype=np.float32)

    saved_model = SimpleNamespace(load=lambda path: model)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(saved_model=saved_model))
    scorer = Bem(folder)
    assert evqa.score("What?", "DOGS", ["a dog"], "automatic", scorer) == 1.0
    ids = [VOCABULARY[token] for token in seen[0]["input_ids"][0]]
    sentence = "[CLS] dog ##s [SEP] a dog [SEP] what ? [SEP]".split()
    assert ids[:10] == sentence
    assert set(ids[10:]) == {"[PAD]"}
    assert seen[0]["segment_ids"][0][:11].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 0]
    assert seen[0]["input_ids"].shape == seen[0]["segment_ids"].shape == (1, 512)
    with pytest.raises(UserError, match="512 tokens"):
        scorer("dog " * 600, "dog", "what")


def test_missing_parts_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingExtra, match=r"skipqa\[bem\]"):
        Bem(folder)
    (folder / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"vocab\.txt does not exist"):
        Bem(folder)
