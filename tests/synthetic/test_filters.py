"""Each of the three filters by itself, and their order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scripted_vlm import ScriptedVLM
from written_question import candidate

from skipqa.errors import MissingExtra, UserError
from skipqa.prompted.asking import Asking
from skipqa.prompted.endpoint import Endpoint
from skipqa.synthetic.config import SyntheticConfig
from skipqa.synthetic.filters import DepictedByClip, Verbatim, all_three, judge

IMAGE = Image.new("RGB", (60, 40), "brown")
NOBODY = Asking(Endpoint("http://127.0.0.1:1/v1"), "none")
CONFIG = SyntheticConfig()


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("under pressure", 1.0),
        ("Under  Pressure", 1.0),
        ("coffee", 1.0),  # the full stop is no part of it
        ("under pressur", 0.0),  # not between word boundaries
        ("pressure under", 0.0),
        ("steam", 0.0),
        ("by forcing hot water under pressure", 0.0),  # too long
        ("(", 0.0),
    ],
)
def test_the_answer_stands_in_the_passage(answer: str, value: float) -> None:
    assert Verbatim(5)(candidate(answer=answer), IMAGE, NOBODY) == value


@given(st.text())
def test_any_answer_can_be_looked_for(answer: str) -> None:
    assert Verbatim(5)(candidate(answer=answer or "x"), IMAGE, NOBODY) in (0.0, 1.0)


def asking(vlm: ScriptedVLM) -> Asking:
    return Asking(Endpoint(vlm.url), "some-vlm")


def test_all_values_of_what_passes(vlm: ScriptedVLM) -> None:
    spent = asking(vlm)
    verdict = judge(all_three(CONFIG), candidate(), IMAGE, spent)
    assert verdict.passed
    assert verdict.values == {"verbatim": 1.0, "grammatical": 0.9, "depicted": 0.8}
    assert [call.purpose for call in spent.calls] == ["grammatical", "depicted"]


@pytest.mark.parametrize(
    ("script", "values", "by"),
    [
        ({"grammatical": '{"grammatical": 0.4}'}, {"verbatim": 1.0, "grammatical": 0.4}, "gr"),
        ({"grammatical": "yes, certainly"}, {"verbatim": 1.0, "grammatical": None}, "gr"),
        (
            {"depicted": '{"depicted": "30%"}'},
            {"verbatim": 1.0, "grammatical": 0.9, "depicted": 0.3},
            "depicted",
        ),
    ],
)
def test_the_first_filter_that_rejects_ends_it(
    vlm: ScriptedVLM, script: dict[str, str], values: dict[str, float | None], by: str
) -> None:
    vlm.script |= script
    verdict = judge(all_three(CONFIG), candidate(), IMAGE, asking(vlm))
    assert verdict.values == values
    assert verdict.rejected_by is not None
    assert verdict.rejected_by.startswith(by)


def test_nothing_is_asked_about_what_is_not_there(vlm: ScriptedVLM) -> None:
    verdict = judge(all_three(CONFIG), candidate(answer="steam"), IMAGE, asking(vlm))
    assert verdict.rejected_by == "verbatim"
    verdict = judge(all_three(CONFIG), candidate(answer=""), IMAGE, asking(vlm))
    assert (verdict.rejected_by, verdict.values) == ("written", {})
    assert not vlm.asked


@pytest.mark.parametrize(
    ("question", "names"), [("How are espressos made?", True), ("Why?", False)]
)
def test_a_question_may_name_what_it_is_about(question: str, names: bool) -> None:
    assert candidate(question=question).names_entity is names


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random CLIP of the published class, with a tokenizer of a few letters."""
    from transformers import (
        CLIPConfig,
        CLIPImageProcessor,
        CLIPModel,
        CLIPProcessor,
        CLIPTokenizer,
    )

    folder = tmp_path_factory.mktemp("clip")
    letters = [chr(n) for n in range(97, 123)]
    names = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{one}</w>" for one in letters)]
    vocabulary = {name: n for n, name in enumerate(names)}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[])
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2}
    text = {**small, **heads, "vocab_size": len(names), "bos_token_id": 0, "eos_token_id": 1}
    vision = {**small, **heads, "image_size": 32, "patch_size": 16}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    CLIPModel(config).save_pretrained(folder)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    CLIPProcessor(CLIPImageProcessor(**size), tokenizer).save_pretrained(folder)
    return folder


def test_clip_compares_the_image_with_the_entity(clip_folder: Path) -> None:
    """The cosine of the model's own features, computed apart."""
    import torch
    from transformers import CLIPModel, CLIPProcessor

    depicted = DepictedByClip(clip_folder, CONFIG)
    value = depicted(candidate(), IMAGE, NOBODY)
    model = CLIPModel.from_pretrained(clip_folder).eval()
    processor = CLIPProcessor.from_pretrained(clip_folder)
    inputs = processor(text=["a photo of espresso"], images=IMAGE, return_tensors="pt")
    with torch.no_grad():
        image = model.visual_projection(model.vision_model(inputs.pixel_values).pooler_output)[0]
        text = model.text_projection(model.text_model(inputs.input_ids).pooler_output)[0]
    assert value == pytest.approx(float(image @ text / (image.norm() * text.norm())), abs=1e-5)
    assert depicted.threshold == 0.28
    assert [one.name for one in all_three(CONFIG, clip_folder)] == [
        *("verbatim", "grammatical", "depicted")
    ]


def test_clip_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="is no folder of a published CLIP") as told:
        DepictedByClip(tmp_path, CONFIG)
    assert "\n" not in str(told.value)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"skipqa\[hub\]"):
        DepictedByClip(tmp_path, CONFIG)
