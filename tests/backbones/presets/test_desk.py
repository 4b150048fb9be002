"""The desk backbone on a tiny decoder of Qwen2's kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from skipqa import components
from skipqa.backbones.backbone import Decoding
from skipqa.backbones.networks import int8
from skipqa.backbones.networks.llama import Llama, LlamaConfig
from skipqa.backbones.presets.build import build
from skipqa.backbones.presets.desk import CHAT, Desk
from skipqa.backbones.presets.pocket import Pocket
from skipqa.backbones.weights import gguf_decoder
from skipqa.config import PRESETS, EncodeConfig, preset
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.projector import Projector, ProjectorConfig

FOLDER = Path(components.__file__).parent / "checkpoints" / "pocket"


@pytest.fixture
def desk(home: Path) -> Desk:
    """Random weights; SmolLM2's tokenizer has the same special tokens."""
    said: list[str] = []
    made = Desk(EncodeConfig(), said.append, weights="int8")
    tokenizer = Pocket(EncodeConfig()).decoder_tokenizer
    config = LlamaConfig(tokenizer.get_vocab_size(), 64, 2, 4, 2, 96, tied=True, qkv_bias=True)
    torch.manual_seed(0)
    network = Llama(config).requires_grad_(False)
    decoder = int8.build(config, "int8")
    state = dict(int8.stored_as("int8", network.state_dict().items()))
    decoder.load_state_dict(state, assign=True)
    vars(made).update(decoder=decoder.eval(), decoder_tokenizer=tokenizer, said=said)
    return made


def test_a_prompt_is_a_turn_of_a_chat(desk: Desk) -> None:
    expected = desk.decoder_tokenizer.encode(CHAT.format(prompt="What is this?"))
    assert expected.tokens.count("<|im_start|>") == 3
    assert desk.embed_prompt("What is this?").shape == (1, len(expected.ids), 64)
    *words, end = desk.answer_tokens("hot water")
    assert desk.decoder_tokenizer.decode(words) == "hot water"
    assert desk.decoder_tokenizer.id_to_token(end) == "<|im_end|>"
    assert end in desk.stop_tokens


def test_how_long_it_takes_is_said_once_before_the_answer(desk: Desk) -> None:
    said = vars(desk)["said"]
    candidates = (("tea", 0.0), ("coffee", -1.0))
    found = desk.generate("What is this?", Decoding(3, candidates=candidates))
    assert len(found.candidate_log_probs) == 3
    assert said == ["answering, in about 1 s"]
    desk.generate("What is this?", Decoding(3))
    assert len(said) == 1


def test_eight_bits_are_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Desk(EncodeConfig(), weights="int8").weights == "int8"
    module = "skipqa.backbones.presets.pocket.chosen_device"
    monkeypatch.setattr(module, lambda: torch.device("cuda"))
    assert Desk(EncodeConfig(), weights="int8").weights == "bfloat16"
    assert Desk(EncodeConfig(), weights="float32").weights == "float32"


def test_the_preset_builds_it() -> None:
    found = build(preset("desk"))
    assert type(found) is Desk
    assert found.widths.decoder == gguf_decoder.QWEN.config.width == 1_536
    with pytest.raises(UserError, match="desk fetches its own weights"):
        build(preset("desk"), weights=Path())
    with pytest.raises(UserError, match="desk has a decoder that takes no projector"):
        build(preset("desk"), projector=Projector(ProjectorConfig(4, 4)))


class TestComponents:
    """Those of the pocket that do not belong to its decoder."""

    def test_are_shared_and_not_copied(self) -> None:
        found, base = components.load_for("desk"), components.load_for("pocket")
        own = components.bundled("desk")
        assert own is not None
        assert (found.folder, found.vision, found.question) == (own, base.vision, base.question)
        for name in ("tagger", "drafter", "verifier", "concept_prior"):
            assert getattr(found, name) is not None
        assert base.reader is not None
        assert (found.reader, found.dense_reader) == (own / "reader.safetensors", None)
        chosen = components.read_settings(own / components.SETTINGS)
        assert found.settings["draft"] == chosen["draft"]
        assert found.settings["verify"] == base.settings["verify"]
        assert found.settings.keys() == base.settings.keys() - {"confidence"}
        decode = preset("desk", found.settings).decode
        assert decode == replace(PRESETS["desk"].decode, **chosen["decode"])

    def test_own_ones_come_on_top(self, tmp_path: Path) -> None:
        weights = {"layers.0.out.weight.up": torch.ones(2, 2)}
        path = tmp_path / "reader.safetensors"
        checkpoint.save_tensors(weights, path, component="reader", preset="desk")
        settings = {"decode": {"drafter_weight": 0.1}, "draft": {"threshold": 0.9}}
        components.write_settings(tmp_path / components.SETTINGS, settings)
        found = components.load_for("desk", tmp_path)
        assert found.reader == path
        assert found.drafter is not None
        assert found.folders == [FOLDER, tmp_path]
        assert found.settings["decode"] == settings["decode"]
        assert found.settings["draft"]["threshold"] == 0.9
        assert "counting_threshold" in found.settings["draft"]

    def test_a_folder_of_the_pocket_is_refused(self) -> None:
        with pytest.raises(UserError, match="pocket"):
            components.load_for("desk", FOLDER)
