"""Pruning inside transformers' own models, tiny and random.

The reference of a pruned prompt is the untouched model with the removed columns masked: what nobody
attends to might as well not be there, if positions are those of the whole prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_vlms import (
    BOS,
    DECODER_ONLY,
    EOS,
    FAMILIES,
    IMAGE,
    SEVERAL_IMAGES,
    VIDEO,
    WITH_PROJECTOR,
    TinyVlm,
    build,
)
from torch import Tensor

from skipqa.errors import UserError
from skipqa.plugin import prune
from skipqa.plugin.saliency import count_kept

KEEP = 0.11
ONE = (-1, 11, 12, 13, 14)
TWO = (-1, 21, 22, -2, 23, 24, 25)
GREEDY = {
    "max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True,
    "output_logits": True, "suppress_tokens": [IMAGE, VIDEO],
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def vlm(request: pytest.FixtureRequest) -> TinyVlm:
    return build(request.param)


@pytest.fixture(scope="module", params=DECODER_ONLY)
def decoder_vlm(request: pytest.FixtureRequest) -> TinyVlm:
    return build(request.param)


@pytest.fixture(scope="module", params=SEVERAL_IMAGES)
def several(request: pytest.FixtureRequest) -> TinyVlm:
    return build(request.param)


def rows_of(vlm: TinyVlm) -> list[tuple[int, ...]]:
    """A batch of two prompts, of different lengths and, where the family can, numbers of images."""
    several = vlm.model.config.model_type != "instructblip"
    return [TWO, ONE] if several else [ONE, (-2, 31, 32)]


def forward(vlm: TinyVlm, inputs: dict[str, Any], **more: Any) -> Any:
    if vlm.model.config.text_config.is_encoder_decoder:
        more["decoder_input_ids"] = torch.full((len(inputs["input_ids"]), 2), 7)
    with torch.no_grad():
        return vlm.model(**inputs, **more)


def generate(vlm: TinyVlm, inputs: dict[str, Any], **more: Any) -> Any:
    torch.manual_seed(0)
    return vlm.model.generate(**inputs, **{**GREEDY, **more})


def positions_of(vlm: TinyVlm, inputs: dict[str, Any]) -> Tensor:
    """Of the whole prompt, as `generate` gives them to the model."""
    given = {name: value for name, value in inputs.items() if name != "input_ids"}
    return vlm.model._prepare_position_ids_for_generation(inputs["input_ids"], given)


def masked(inputs: dict[str, Any], columns: Tensor) -> dict[str, Any]:
    """The same prompt with all columns masked but those that stayed."""
    mask = torch.zeros_like(inputs["attention_mask"])
    for row, stayed in zip(mask, columns, strict=True):
        row[stayed[stayed >= 0]] = 1
    return {**inputs, "attention_mask": mask * inputs["attention_mask"]}


def listeners(model: Any) -> Iterator[tuple[str, str, Any]]:
    """Everything a module has of its own: names of attributes, and the hooks."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            yield name, attribute, len(value) if isinstance(value, dict) else 0


def test_keeping_all_changes_no_bit(vlm: TinyVlm) -> None:
    inputs = vlm.inputs(*rows_of(vlm))
    before = forward(vlm, inputs).logits
    text = generate(vlm, inputs).sequences
    with prune(vlm.model, keep=1) as handle:
        assert torch.equal(forward(vlm, inputs).logits, before)
        assert torch.equal(generate(vlm, inputs).sequences, text)
    assert handle.last is not None
    assert handle.last.kept == handle.last.total
    assert handle.last.pruned_length == handle.last.prompt_length == inputs["input_ids"].shape[1]


def test_undo_leaves_nothing_behind(vlm: TinyVlm) -> None:
    inputs = vlm.inputs(*rows_of(vlm))
    before, text = forward(vlm, inputs).logits, generate(vlm, inputs).sequences
    listening = sorted(listeners(vlm.model))
    handle = prune(vlm.model, keep=KEEP)
    assert sorted(listeners(vlm.model)) != listening
    forward(vlm, inputs)
    generate(vlm, inputs)
    handle.undo()
    handle.undo()  # twice is once
    assert sorted(listeners(vlm.model)) == listening
    assert torch.equal(forward(vlm, inputs).logits, before)
    assert torch.equal(generate(vlm, inputs).sequences, text)


def test_prompt_and_cache_shrink_as_counted(vlm: TinyVlm) -> None:
    inputs = vlm.inputs(ONE)
    whole, total = inputs["input_ids"].shape[1], vlm.sizes[0]
    expected = whole - total + count_kept(KEEP, total)
    with prune(vlm.model, keep=KEEP) as handle:
        out = forward(vlm, inputs, output_hidden_states=True)
        generated = generate(vlm, inputs)
    assert handle.last is not None
    (image,) = handle.last.images
    assert (len(image.positions), image.total) == (count_kept(KEEP, total), total)
    assert list(image.positions) == sorted(set(image.positions))
    assert (handle.last.prompt_length, handle.last.pruned_length) == (whole, expected)
    read = out.language_model_outputs if "language_model_outputs" in out else out
    if vlm.model.config.text_config.is_encoder_decoder:
        assert read.encoder_last_hidden_state.shape[1] == expected
        cross = generated.past_key_values.cross_attention_cache
        assert {layer.keys.shape[2] for layer in cross.layers} == {expected}
        return
    assert {states.shape[1] for states in read.hidden_states} == {expected}
    assert out.logits.shape[1] == expected
    assert read.past_key_values.get_seq_length() == expected
    assert generated.past_key_values.get_seq_length() == expected + GREEDY["max_new_tokens"] - 1


def test_output_still_begins_with_the_prompt(decoder_vlm: TinyVlm) -> None:
    """User code cuts the prompt off by its own length."""
    inputs = decoder_vlm.inputs(ONE)
    with prune(decoder_vlm.model, keep=KEEP):
        out = generate(decoder_vlm, inputs).sequences
    length = inputs["input_ids"].shape[1]
    assert out.shape[1] == length + GREEDY["max_new_tokens"]
    assert torch.equal(out[:, :length], inputs["input_ids"])


def test_same_twice(vlm: TinyVlm) -> None:
    inputs = vlm.inputs(*rows_of(vlm))
    found = []
    for _ in range(2):
        with prune(vlm.model, keep=KEEP) as handle:
            found.append((forward(vlm, inputs).logits, handle.last))
    (first, one), (second, two) = found
    assert torch.equal(first, second)
    assert one.images == two.images


def test_forward_is_the_masked_model(decoder_vlm: TinyVlm) -> None:
    vlm = decoder_vlm
    inputs = vlm.inputs(ONE)
    inputs["position_ids"] = positions_of(vlm, inputs)
    with prune(vlm.model, keep=KEEP) as handle:
        pruned = forward(vlm, inputs).logits
    reference = forward(vlm, masked(inputs, handle.last.columns)).logits
    torch.testing.assert_close(pruned, reference[:, handle.last.columns[0]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beams", [1, 2])
def test_generation_is_that_of_the_masked_model(decoder_vlm: TinyVlm, beams: int) -> None:
    """Two prompts of different lengths, that keep different numbers of tokens.

    Most models make beams first, so that every beam is a row that is pruned.
    """
    vlm = decoder_vlm
    inputs = vlm.inputs(*rows_of(vlm))
    with prune(vlm.model, keep=KEEP) as handle:
        pruned = generate(vlm, inputs, num_beams=beams)
    reference = generate(
        vlm,
        masked(
            inputs, handle.last.columns[:: len(handle.last.columns) // len(inputs["input_ids"])]
        ),
        position_ids=positions_of(vlm, inputs),
        num_beams=beams,
    )
    assert torch.equal(pruned.sequences, reference.sequences)
    for mine, other in zip(pruned.logits, reference.logits, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beams", [1, 2])
def test_an_encoder_reads_the_tokens_that_stayed_and_no_others(beams: int) -> None:
    """T5 knows distances alone, so the reference is its own generation from a shorter prompt."""
    vlm = build("instructblip_t5")
    inputs = vlm.inputs(ONE, (-2, 31, 32))
    seen: list[dict[str, Tensor]] = []
    encoder = vlm.model.language_model.encoder
    hook = encoder.register_forward_pre_hook(lambda m, a, call: seen.append(call), with_kwargs=True)
    generate(vlm, inputs)
    hook.remove()
    with prune(vlm.model, keep=KEEP) as handle:
        pruned = generate(vlm, inputs, num_beams=beams)
    columns = handle.last.columns
    rows = torch.arange(2)[:, None]
    reference = vlm.model.language_model.generate(
        inputs_embeds=seen[0]["inputs_embeds"][rows, columns],
        attention_mask=inputs["attention_mask"][rows, columns],
        num_beams=beams,
        **GREEDY,
    )
    assert torch.equal(pruned.sequences, reference.sequences)
    for mine, other in zip(pruned.logits, reference.logits, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_drafted_tokens_are_checked_as_ever(several: TinyVlm) -> None:
    """Prompt lookup reads several tokens in one step and cuts the cache where they were wrong."""
    inputs = several.inputs((*ONE, *ONE[1:], *ONE[1:]))
    with prune(several.model, keep=KEEP):
        plain = generate(several, inputs).sequences
        assert torch.equal(generate(several, inputs, prompt_lookup_num_tokens=3).sequences, plain)


def test_a_prompt_in_a_batch_is_the_prompt_alone(vlm: TinyVlm) -> None:
    rows = rows_of(vlm)
    with prune(vlm.model, keep=KEEP) as handle:
        together = forward(vlm, vlm.inputs(*rows)).logits
        batch = handle.last
        alone = [forward(vlm, vlm.inputs(row)).logits[0, -1] for row in rows]
        texts = [generate(vlm, vlm.inputs(row)).sequences[0, -5:] for row in rows]
        text = generate(vlm, vlm.inputs(*rows)).sequences[:, -5:]
    assert {image.row for image in batch.images} == {0, 1}
    assert torch.equal(text, torch.stack(texts))
    if vlm.model.config.model_type.startswith(("qwen", "instructblip")):
        # Others count padding in the positions of a plain forward, pruned or not.
        torch.testing.assert_close(together[:, -1], torch.stack(alone), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("row", [TWO, (-1, -2, 21, 22), (21, -1, 22, -2)])
def test_each_image_keeps_its_own(several: TinyVlm, row: tuple[int, ...]) -> None:
    """Also where nothing stands between two images, and where one ends the prompt."""
    inputs = several.inputs(row)
    with prune(several.model, keep=KEEP) as handle:
        logits = forward(several, inputs).logits
        generate(several, inputs)
    counts = [count_kept(KEEP, size) for size in several.sizes]
    assert [(len(image.positions), image.total) for image in handle.last.images] == list(
        zip(counts, several.sizes, strict=True)
    )
    assert logits.shape[1] == inputs["input_ids"].shape[1] - sum(several.sizes) + sum(counts)


def test_the_question_decides(several: TinyVlm) -> None:
    def positions(*words: int) -> tuple[int, ...]:
        forward(several, several.inputs((-1, *words)))
        return handle.last.images[0].positions

    with prune(several.model, keep=KEEP) as handle:
        kept = {positions(*words) for words in itertools.combinations(range(10, 20), 2)}
        assert positions(11, 12) == positions(12, 11)
    assert len(kept) > 1


@pytest.mark.parametrize("name", WITH_PROJECTOR)
def test_a_visual_token_that_says_a_word_of_the_question_is_kept(name: str) -> None:
    vlm = build(name)
    merger = vlm.model.model
    word = vlm.model.get_input_embeddings().weight[14].detach()
    projector = getattr(merger, "multi_modal_projector", None) or merger.connector

    def plant(module: Any, args: Any, features: Tensor) -> Tensor:
        features = features.clone()
        features[:, 7] = 3 * word
        return features

    projector.register_forward_hook(plant)
    with prune(vlm.model, keep=KEEP) as handle:
        forward(vlm, vlm.inputs(ONE))
        assert 7 in handle.last.images[0].positions


def likeliest(out: Any) -> int:
    """As `generate` chooses with the settings above."""
    logits = out.logits[0, -1].clone()
    logits[[EOS, *GREEDY["suppress_tokens"]]] = -torch.inf
    return int(logits.argmax())


def test_decoding_by_hand_is_generation(several: TinyVlm) -> None:
    """Without positions or a mask: those who write the loop themselves pass the cache alone."""
    inputs = several.inputs(ONE)
    with prune(several.model, keep=KEEP):
        expected = generate(several, inputs).sequences[0, -5:].tolist()
        out = forward(several, inputs)
        written = [likeliest(out)]
        while len(written) < 5:
            step = {"input_ids": torch.tensor([written[-1:]])}
            out = forward(several, step, past_key_values=out.past_key_values)
            written.append(likeliest(out))
    assert written == expected


def test_a_conversation_goes_on(several: TinyVlm) -> None:
    """New tokens with the old cache, and a mask of everything, as for the untouched model."""
    inputs = several.inputs(ONE)
    with prune(several.model, keep=KEEP) as handle:
        first = generate(several, inputs)
        said = torch.cat([first.sequences, torch.tensor([[51, 52, 53]])], 1)
        new = said[:, -4:]  # the last token that was generated is not yet in the cache
        mask = torch.ones_like(said)
        cache = first.past_key_values
        pruned = generate(
            several, {"input_ids": new, "attention_mask": mask}, past_key_values=cache
        )
        with pytest.raises(UserError, match="do not continue"):
            generate(several, {"input_ids": said, "attention_mask": mask}, past_key_values=cache)
    whole = {**inputs, "input_ids": said, "attention_mask": mask}
    if "mm_token_type_ids" in inputs:
        whole["mm_token_type_ids"] = (said == IMAGE).int()
    positions = positions_of(several, whole)
    followed = torch.arange(inputs["input_ids"].shape[1], said.shape[1])[None]
    columns = torch.cat([handle.last.columns, followed], 1)
    reference = generate(several, masked(whole, columns), position_ids=positions)
    assert torch.equal(pruned.sequences[:, -5:], reference.sequences[:, -5:])
    torch.testing.assert_close(pruned.logits[0], reference.logits[0], rtol=1e-4, atol=1e-4)


def test_text_alone_is_untouched(several: TinyVlm) -> None:
    with_image = several.inputs(ONE)
    text = {
        "input_ids": torch.tensor([[BOS, *range(11, 60)]]),
        "attention_mask": torch.ones(1, 50, dtype=torch.long),
    }
    before, said = forward(several, text).logits, generate(several, text).sequences
    with prune(several.model, keep=KEEP) as handle:
        forward(several, with_image)
        kept = handle.last
        assert torch.equal(forward(several, text).logits, before)
        assert torch.equal(generate(several, text).sequences, said)
        assert handle.last is kept


def test_embeddings_instead_of_ids() -> None:
    vlm = build("llava")
    inputs = vlm.inputs(ONE)
    with prune(vlm.model, keep=KEEP) as handle:
        forward(vlm, inputs)
        by_ids = handle.last
        ids = inputs.pop("input_ids")
        inputs["inputs_embeds"] = vlm.model.get_input_embeddings()(ids).detach()
        forward(vlm, inputs)
    assert handle.last.pruned_length == by_ids.pruned_length


def test_ends_of_rows_do_not_take_places() -> None:
    """LLaVA-NeXT writes one and the same vector behind every row of patches."""
    vlm = build("llava_next")
    ends = {16 + 9 * row + 8 for row in range(4)}
    with prune(vlm.model, keep=0.5) as handle:
        forward(vlm, vlm.inputs(ONE))
        assert not ends & set(handle.last.images[0].positions)
    with prune(vlm.model, keep=0.96) as handle:
        forward(vlm, vlm.inputs(ONE))
        assert len(ends & set(handle.last.images[0].positions)) == 50 - 48


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_positions_are_those_of_the_grid(name: str) -> None:
    vlm = build(name)
    inputs = vlm.inputs(TWO)
    seen: list[Tensor] = []
    reader = vlm.model.model.language_model.rotary_emb
    hook = reader.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    try:
        forward(vlm, inputs)
        with prune(vlm.model, keep=KEEP) as handle:
            forward(vlm, inputs)
    finally:
        hook.remove()
    whole, pruned = seen
    assert torch.equal(pruned, whole[:, :, handle.last.columns[0]])


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_videos_are_left_whole(name: str) -> None:
    """An image is pruned beside a video, the video is not."""
    vlm = build(name)
    inputs = vlm.inputs((-1, 31, *[60] * 24, 32, 33))
    ids = inputs["input_ids"]
    ids[ids == 60] = VIDEO
    inputs["mm_token_type_ids"][ids == VIDEO] = 2
    inputs["pixel_values_videos"] = torch.randn(96, 96)
    inputs["video_grid_thw"] = torch.tensor([[1, 8, 12]])
    inputs["position_ids"] = positions_of(vlm, inputs)
    with prune(vlm.model, keep=KEEP) as handle:
        pruned = forward(vlm, inputs).logits
        generate(vlm, {**inputs})
    (image,) = handle.last.images
    assert image.total == 36
    columns = handle.last.columns[0]
    assert (ids[0, columns] == VIDEO).sum() == 24
    reference = forward(vlm, masked(inputs, handle.last.columns)).logits
    torch.testing.assert_close(pruned, reference[:, columns], rtol=1e-4, atol=1e-4)


def test_markers_and_special_tokens_are_no_question() -> None:
    vlm = build("smolvlm")
    inputs = vlm.inputs((-1,))
    with prune(vlm.model, keep=KEEP), pytest.raises(UserError, match="no text beside"):
        forward(vlm, inputs)


def test_without_a_mask() -> None:
    """Gaps in the positions are not taken for packed sequences."""
    vlm = build("llava")
    inputs = vlm.inputs(ONE)
    with prune(vlm.model, keep=KEEP):
        with_mask = forward(vlm, inputs, use_cache=False).logits
        del inputs["attention_mask"]
        assert torch.equal(forward(vlm, inputs, use_cache=False).logits, with_mask)


def test_with_one_prompt_without_an_image() -> None:
    vlm = build("llava")
    rows = [ONE, (41, 42, 43)]
    with prune(vlm.model, keep=KEEP) as handle:
        text = generate(vlm, vlm.inputs(*rows)).sequences[:, -5:]
        assert handle.last.columns[1].tolist().count(-1) > 0
    alone = generate(vlm, {k: v[1:, -4:] for k, v in vlm.inputs(*rows).items() if "pixel" not in k})
    assert torch.equal(text[1], alone.sequences[0, -5:])


def test_refusals() -> None:
    vlm = build("llava")
    inputs = vlm.inputs(ONE)
    with pytest.raises(UserError, match=r"cannot prune a Linear; supported are Llava"):
        prune(torch.nn.Linear(2, 2))
    for keep in (0, -0.1, 1.1, float("nan"), "half", True):
        with pytest.raises(UserError, match="0 < keep <= 1"):
            prune(vlm.model, keep=keep)
    with prune(vlm.model, keep=KEEP):
        with pytest.raises(UserError, match="prunes already"):
            prune(vlm.model, keep=KEEP)
        with pytest.raises(UserError, match="labels"):
            forward(vlm, inputs, labels=inputs["input_ids"])
        with pytest.raises(UserError, match="logits_to_keep"):
            forward(vlm, inputs, logits_to_keep=torch.tensor([3]))
        with pytest.raises(UserError, match="static"):
            generate(vlm, inputs, cache_implementation="static", disable_compile=True)
        cache = forward(vlm, inputs).past_key_values
        with pytest.raises(UserError, match="empty cache"):
            forward(vlm, {**inputs, "attention_mask": None}, past_key_values=cache)
    prune(vlm.model, keep=KEEP).undo()


def test_keeping_all_refuses_nothing() -> None:
    vlm = build("llava")
    inputs, ids = vlm.inputs(ONE), vlm.inputs(ONE)["input_ids"]
    static = {"cache_implementation": "static", "disable_compile": True}
    text = generate(vlm, inputs, **static).sequences
    loss = forward(vlm, inputs, labels=ids).loss
    with prune(vlm.model, keep=1):
        assert torch.equal(generate(vlm, inputs, **static).sequences, text)
        assert torch.equal(forward(vlm, inputs, labels=ids).loss, loss)
        forward(vlm, vlm.inputs((-1,)))


def test_a_failed_call_leaves_nothing_for_the_next() -> None:
    vlm = build("llava")
    text = {"input_ids": torch.tensor([[BOS, *range(11, 60)]])}
    before = forward(vlm, text).logits
    with prune(vlm.model, keep=KEEP):
        with pytest.raises(UserError):
            forward(vlm, vlm.inputs(ONE), logits_to_keep=torch.tensor([1]))
        with pytest.raises(UserError, match="no text"):
            forward(vlm, vlm.inputs((-1,)))
        assert torch.equal(forward(vlm, text).logits, before)
