"""The larger backbones against transformers: tiny random weights, whole tensors, float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_models import IMAGE, PATCH, eva_parts, write_ablation, write_eva, write_submission

from skipqa.backbones.backbone import Decoding
from skipqa.backbones.networks import clip
from skipqa.backbones.presets.clip_vicuna import ClipVicuna
from skipqa.backbones.presets.evaclip_vicuna import EvaClipVicuna
from skipqa.backbones.presets.llava import Llava
from skipqa.backbones.weights import hub
from skipqa.config import EncodeConfig
from skipqa.errors import MissingExtra, UserError

transformers = pytest.importorskip("transformers")
close = torch.testing.assert_close
SETTINGS = EncodeConfig(scales=(IMAGE,), cell=PATCH)


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> EvaClipVicuna:
    return EvaClipVicuna(SETTINGS, write_submission(tmp_path_factory.mktemp("submission")))


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Llava:
    return Llava(SETTINGS, write_ablation(tmp_path_factory.mktemp("ablation")))


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.randn(1, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(1))


def logits(backbone: ClipVicuna, embedded_1TD: torch.Tensor) -> torch.Tensor:
    from skipqa.backbones.networks.llama import KVCache

    length = embedded_1TD.shape[1]
    cache, places = KVCache(backbone.decoder_config, 1, length), torch.arange(length)
    return backbone.decoder.logits(
        backbone.decoder(embedded_1TD, cache, places, length, from_zero=True)
    )


def test_vicuna_has_the_logits_of_transformers(submission: EvaClipVicuna) -> None:
    reference = transformers.LlamaForCausalLM.from_pretrained(submission.folders[0])
    text = "What is this?"
    ids = [submission.published_decoder.bos_token_id, *submission._ids(text)]
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits
        assert expected.std() > 0.1
        close(logits(submission, submission.embed(text, None)), expected, rtol=1e-4, atol=1e-4)


def test_candidates_are_scored_next_to_the_completion(submission: EvaClipVicuna) -> None:
    prompt, candidates = "What is this?", (("tea", 0.0), ("a cup", 0.0))
    alone = submission.generate(prompt, Decoding(3))
    scored = submission.generate(prompt, Decoding(3, candidates=candidates))
    assert (alone.text, alone.candidate_log_probs) == (scored.text, ())
    apart, spent = submission.loglikelihood(prompt, ["tea", "a cup", alone.text])
    found = scored.candidate_log_probs
    assert found[0] == pytest.approx(apart[0], abs=1e-4), "the better of the two"
    assert found[-1] == pytest.approx(apart[-1], abs=1e-4)
    assert scored.flops < alone.flops + spent, "the prompt is read once"


def test_llava_is_that_of_transformers(ablation: Llava, pixels: torch.Tensor) -> None:
    reference = transformers.LlavaNextForConditionalGeneration.from_pretrained(ablation.folders[0])
    with torch.inference_mode():
        states = reference.model.vision_tower(pixels, output_hidden_states=True).hidden_states
        seen = ablation.clip.encode_image(pixels)
        close(seen.features, states[-2][:, 1:], rtol=1e-4, atol=1e-4)
        visual = reference.model.multi_modal_projector(states[-2][:, 1:])[0]
        assert ablation.projector is not None
        close(ablation.projector(seen.features[0]), visual, rtol=1e-4, atol=1e-4)
        embedded = ablation.embed("USER: <image> What is this?", visual)
        expected = reference.lm_head(reference.model.language_model(inputs_embeds=embedded)[0])
        assert expected.std() > 0.1
        close(logits(ablation, embedded), expected, rtol=1e-4, atol=1e-4)


def test_clip_is_that_of_transformers(ablation: Llava, pixels: torch.Tensor) -> None:
    """With CLIP's own vision encoder, whole images and texts; patches by their definition."""
    folder, config = ablation.folders[1], ablation.clip_config
    reference = transformers.CLIPModel.from_pretrained(folder)
    state = clip.from_hub_names(hub.Tensors(folder, torch.device("cpu"), torch.float32), config)
    network = hub.fill(lambda: clip.Clip(config), state)
    ids = torch.tensor([[256, 5, 6, 7, 257, 0], [256, 9, 257, 0, 0, 0]])
    with torch.inference_mode():
        both = reference(input_ids=ids, pixel_values=pixels)
        seen = network.encode_image(pixels)
        close(seen.whole, both.image_embeds, rtol=1e-4, atol=1e-5)
        close(
            network.encode_text(ids, torch.tensor([4, 2])), both.text_embeds, rtol=1e-4, atol=1e-5
        )

        x = reference.vision_model(pixels, output_hidden_states=True).hidden_states[-2][:, 1:]
        last = reference.vision_model.encoder.layers[-1]
        x = x + last.self_attn.out_proj(last.self_attn.v_proj(last.layer_norm1(x)))
        x = x + last.mlp(last.layer_norm2(x))
        x = reference.visual_projection(reference.vision_model.post_layernorm(x))
        close(seen.patches, torch.nn.functional.normalize(x, dim=-1), rtol=1e-4, atol=1e-5)


def test_eva_is_that_of_transformers(tmp_path: Path, pixels: torch.Tensor) -> None:
    """At twice the size it was trained at: positions are interpolated the same way."""
    torch.manual_seed(7)
    vision, text = eva_parts()
    torch.manual_seed(7)
    write_eva(tmp_path / "eva")
    tensors = hub.Tensors(tmp_path / "eva", torch.device("cpu"), torch.float32)
    config = clip.open_clip_config(tensors.shapes)
    network = hub.fill(lambda: clip.Clip(config), clip.from_open_clip_names(tensors, config))
    for layer in vision.encoder.layers:
        layer.self_attn.qkv.bias.data.chunk(3)[1].zero_()  # EVA's keys have no bias
    ids = torch.tensor([[256, 5, 6, 7, 257]])
    with torch.inference_mode():
        reference = vision(pixels, interpolate_pos_encoding=True, output_hidden_states=True)
        seen = network.encode_image(pixels)
        close(seen.features, reference.hidden_states[-2][:, 1:], rtol=1e-4, atol=1e-4)
        whole = network.vision_to_joint(vision.post_layernorm(reference.hidden_states[-1][:, 0]))
        close(seen.whole, torch.nn.functional.normalize(whole, dim=-1), rtol=1e-4, atol=1e-5)
        words = torch.nn.functional.normalize(text(ids).text_embeds, dim=-1)
        close(network.encode_text(ids, torch.tensor([4])), words, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [IMAGE, 2 * IMAGE])
def test_flops_of_an_image_are_what_torch_counts(submission: EvaClipVicuna, size: int) -> None:
    from skipqa.costs.flops import count_flops

    pixels = torch.zeros(1, 3, size, size)
    counted = count_flops(lambda: submission.clip.encode_image(pixels))
    assert clip.flops(submission.clip_config, size) == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize("name", ["submission", "ablation"])
def test_evidence_is_a_distribution_on_every_token(
    name: str, request: pytest.FixtureRequest
) -> None:
    backbone: ClipVicuna = request.getfixturevalue(name)
    image = Image.linear_gradient("L").resize((90, 40)).convert("RGB")
    tokens, flops = backbone.encode_low_res(image)
    assert backbone.encode_high_res(image, tokens) == (tokens, 0), "there is nothing finer"
    assert len(tokens) == backbone.widths.tokens == (IMAGE // PATCH) ** 2
    assert tokens.features.shape == (16, backbone.widths.vision)
    assert tokens.meaning.shape == (16, backbone.widths.text)
    for evidence in (tokens.concept_probs, tokens.overview[None]):
        assert evidence.shape[1] == len(backbone.concepts) == 1_000
        close(evidence.sum(1), torch.ones(len(evidence)))
    assert tokens.concept_probs.std(0).max() > 1e-6, "patches differ"
    assert flops > 0


def test_an_older_tokenizer_needs_the_whole_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error that transformers raises where sentencepiece is not installed."""

    def complain(folder: Path) -> None:
        raise ValueError("`tiktoken` is required to read a `tiktoken` file.")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", complain)
    with pytest.raises(MissingExtra, match=r"skipqa\[hub\]"):
        hub.read_tokenizer(tmp_path)


def test_weights_in_several_pickled_files_are_read(
    submission: EvaClipVicuna, tmp_path: Path
) -> None:
    """The format in which Vicuna is published."""
    whole = hub.Tensors(submission.folders[0], torch.device("cpu"), torch.float32)
    places = {name: f"pytorch_model-{i % 2 + 1}-of-2.bin" for i, name in enumerate(whole)}
    for file in set(places.values()):
        torch.save({n: whole[n] for n, at in places.items() if at == file}, tmp_path / file)
    index = {"metadata": {}, "weight_map": places}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    parts = hub.Tensors(tmp_path, torch.device("cpu"), torch.float32)
    assert parts.shapes == whole.shapes
    for name in whole:
        assert torch.equal(parts[name], whole[name])


class RunsCode:
    """Unpickled by Python's own rules, it would call a function of its choice."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("pickled code ran",))


@pytest.mark.parametrize("damage", ["code", "text", "nothing"])
def test_weights_that_hold_more_than_tensors_are_refused(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pytorch_model.bin"
    if damage == "code":
        torch.save({"weight": torch.zeros(2), "more": RunsCode()}, path)
    else:
        path.write_bytes(b"not weights at all" if damage == "text" else b"")
    with pytest.raises(UserError, match=r"pytorch_model\.bin") as error:
        hub.Tensors(tmp_path, torch.device("cpu"), torch.float32)
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""
