"""The converted networks do what the published ones are known to do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer

from skipqa.backbones.backbone import Decoding
from skipqa.backbones.networks.llama import KVCache
from skipqa.backbones.presets.pocket import Pocket
from skipqa.backbones.text_encoder import MAX_TEXT_TOKENS
from skipqa.pipeline import Pipeline


@pytest.fixture(scope="module")
def backbone(pipeline: Pipeline) -> Pocket:
    return pipeline.backbone


@pytest.fixture(scope="module")
def tokenizer(backbone: Pocket) -> Tokenizer:
    return backbone.decoder_tokenizer


class TestDecoder:
    @pytest.mark.parametrize(
        ("prompt", "beginning"),
        [
            ("The capital of France is", "Paris"),
            ("One, two, three, four,", "five"),
            ("Question: What colour is the sky on a clear day?\nAnswer: The sky is", "blue"),
        ],
    )
    def test_predicts_sensibly(self, backbone: Pocket, prompt: str, beginning: str) -> None:
        assert backbone.generate(prompt, Decoding(4)).text.startswith(beginning)

    def test_completion_ends_with_its_line(self, backbone: Pocket) -> None:
        prompt = "Numbers: 1\nNumbers: 2\nNumbers: 3\nNumbers:"
        done = backbone.generate(prompt, Decoding(40))
        assert done.text == "4"
        assert done.new_tokens < 40
        assert done.flops > 0

    def test_log_probability_is_that_of_one_pass(self, backbone: Pocket) -> None:
        prompt, answer = "The capital of France is", "a large city on the banks of the Seine"
        decoder, tokenizer = backbone.decoder, backbone.decoder_tokenizer
        before, target = tokenizer.encode(prompt).ids, tokenizer.encode(f" {answer}").ids
        whole, end = torch.tensor([before + target]), len(before) + len(target)
        with torch.inference_mode():
            cache = KVCache(decoder.config, 1, end)
            hidden = decoder(
                decoder.embedding(whole), cache, torch.arange(end), end, from_zero=True
            )
            scores = decoder.logits(hidden[0, len(before) - 1 : -1]).log_softmax(-1)
        expected = float(scores.gather(1, torch.tensor(target)[:, None]).sum())
        assert backbone.log_prob(prompt, answer) == pytest.approx(expected, abs=1e-3)
        paris, banana = (backbone.log_prob(prompt, x) for x in ("Paris", "banana"))
        assert paris > banana + 3


class TestDecoderTokenizer:
    @pytest.mark.parametrize(
        "text",
        ["In 1969, 2 people", "a\nb\n\n  c\t", "crème brûlée – 東京 🍵", " leading space", "don't"],
    )
    def test_round_trip(self, tokenizer: Tokenizer, text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

    # The published vocabulary lacks the bytes of control characters and of unassigned planes.
    @given(st.text(st.characters(exclude_categories=["C"], max_codepoint=0x1FFFF), max_size=60))
    @settings(max_examples=50)
    def test_any_text_round_trips(self, tokenizer: Tokenizer, text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

    def test_digits_are_single(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("1969").tokens == ["1", "9", "6", "9"]

    @pytest.mark.parametrize("special", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    def test_special_tokens_are_single_ids(self, tokenizer: Tokenizer, special: str) -> None:
        assert len(tokenizer.encode(special).ids) == 1
        around = tokenizer.encode(f"hi{special}there").tokens
        assert around[1] == special
        assert len(around) == 3

    def test_size(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.get_vocab_size() == 49_152


class TestText:
    def test_likeness_follows_meaning(self, backbone: Pocket) -> None:
        texts = ["a cup of coffee", "an espresso", "a naval battle"]
        coffee, espresso, battle = backbone.encode_texts(texts).embeddings
        assert coffee @ espresso > 0.5 > 0.3 > coffee @ battle

    def test_a_batch_is_its_texts_one_by_one(self, backbone: Pocket) -> None:
        """Up to rounding: a product of few rows is summed in another order, so that texts of a few
        words differ in the last bits. FLOPs are the same exactly."""
        texts = ["short", "a somewhat longer text about tea", "", "What is it?", "tea " * 60]
        together = backbone.encode_texts(texts)
        alone = [backbone.encode_texts([text]) for text in texts]
        for index, one in enumerate(alone):
            close = torch.testing.assert_close
            close(one.embeddings[0], together.embeddings[index], atol=1e-6, rtol=0)
            close(one.states[0], together.states[index], atol=1e-5, rtol=0)
        assert together.flops == sum(one.flops for one in alone)
        torch.testing.assert_close(together.embeddings.norm(dim=1), torch.ones(len(texts)))

    def test_long_texts_are_cut(self, backbone: Pocket) -> None:
        (states,) = backbone.encode_texts(["word " * 1_000]).states
        assert len(states) == MAX_TEXT_TOKENS


class TestVision:
    def test_the_cup_is_recognised_where_it_is(self, backbone: Pocket, photo: str) -> None:
        with Image.open(photo) as opened:
            image = opened.convert("RGB")
        tokens, _ = backbone.encode_high_res(image, backbone.encode_low_res(image)[0])
        names = [concept.name for concept in backbone.concepts.entries]
        espresso = names.index("espresso")
        assert names[int(tokens.overview.argmax())] == "espresso"
        seen = tokens.concept_probs[:, espresso].view(tokens.grid, tokens.grid)
        assert seen[3:10, 4:11].mean() > 2 * seen[-3:].mean()  # the cup against the table's edge
