"""Which visual tokens stay: properties of the score and of the selection."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from skipqa.errors import UserError
from skipqa.plugin.saliency import count_kept, mean_direction, most_salient, saliency
from skipqa.plugin.selection import MergedPrompt, image_columns, select

SIZES = st.integers(1, 60)
KEEPS = st.integers(1, 100).map(lambda percent: percent / 100)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Visual tokens, words of a question, and the mean direction of a vocabulary.

    Some with a large common part, as embeddings of real models have.
    """
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    num_visual, num_words, width = draw(SIZES), draw(st.integers(1, 12)), draw(st.integers(8, 32))
    common = torch.randn(2, width, generator=generator) * draw(st.sampled_from([0.0, 1.0, 5.0]))
    visual = torch.randn(num_visual, width, generator=generator) + common[0]
    words = torch.randn(50, width, generator=generator) + common[1]
    scale = draw(st.sampled_from([0.01, 1.0, 30.0]))  # projected tokens are longer than words
    return visual * scale, words[:num_words], mean_direction(words)


def kept(scene: tuple[Tensor, Tensor, Tensor], keep: float) -> list[int]:
    scores = saliency(*scene)
    return most_salient(scores, count_kept(keep, len(scores))).tolist()


@given(scenes(), KEEPS)
def test_order_and_number(scene: tuple[Tensor, Tensor, Tensor], keep: float) -> None:
    positions, total = kept(scene, keep), len(scene[0])
    assert positions == sorted(set(positions))
    assert set(positions) <= set(range(total))
    assert len(positions) == math.ceil(Fraction(str(keep)) * total)


@given(scenes(), KEEPS, st.randoms(use_true_random=False))
def test_order_of_the_words_is_nothing(
    scene: tuple[Tensor, Tensor, Tensor], keep: float, random: object
) -> None:
    visual, words, vocabulary = scene
    order = list(range(len(words)))
    random.shuffle(order)  # type: ignore[attr-defined]
    torch.testing.assert_close(
        saliency(visual, words[order], vocabulary), saliency(visual, words, vocabulary)
    )
    assert kept((visual, words[order], vocabulary), keep) == kept(scene, keep)


@given(scenes(), KEEPS, st.data())
def test_a_token_that_is_a_word_of_the_question_stays(
    scene: tuple[Tensor, Tensor, Tensor], keep: float, data: st.DataObject
) -> None:
    visual, words, vocabulary = scene
    place = data.draw(st.integers(0, len(visual) - 1))
    word = data.draw(st.integers(0, len(words) - 1))
    length = data.draw(st.sampled_from([0.1, 1.0, 20.0]))
    visual[place] = length * words[word]
    assert place in kept((visual, words, vocabulary), keep)
    assert place in kept((visual, words, None), keep)


@given(scenes(), KEEPS, KEEPS)
def test_fewer_are_among_more(scene: tuple[Tensor, Tensor, Tensor], one: float, two: float) -> None:
    assert set(kept(scene, min(one, two))) <= set(kept(scene, max(one, two)))


def test_what_resembles_everything_does_not_win() -> None:
    """Without centring, the largest cosine is that of the token that is a bit of every word."""
    words = torch.eye(6)
    everything = words.sum(0)
    question = words[:1] + 0.9 * everything
    visual = torch.stack([everything, words[0] - words[3], words[1] - words[3], words[2]])
    cosine = torch.nn.functional.cosine_similarity(visual, question)
    assert cosine.argmax() == 0
    assert saliency(visual, question, mean_direction(words + 0.9 * everything)).argmax() == 1


def test_one_image_of_one_colour() -> None:
    """All tokens alike, and nothing in them that is not common: nothing divides by zero."""
    scores = saliency(torch.ones(9, 4), torch.ones(2, 4), torch.ones(4) / 2)
    assert scores.isfinite().all()


def test_ties_go_to_the_first() -> None:
    assert most_salient(torch.tensor([0.0, 1, 0, 1, 0]), 3).tolist() == [0, 1, 3]


def prompt_of(layout: str, sizes: list[int] | None = None) -> MergedPrompt:
    """`i` is a placeholder of an image, `q` a word of the question, `.` neither; | ends a row."""
    rows = [list(row) for row in layout.split("|")]
    visual = torch.tensor([[one == "i" for one in row] for row in rows])
    question = torch.tensor([[one == "q" for one in row] for row in rows])
    words = torch.randn(*visual.shape, 4, generator=torch.Generator().manual_seed(1))
    return MergedPrompt(words, visual, question, sizes)


def test_images_are_runs_or_as_the_model_says() -> None:
    def found(prompt: MergedPrompt) -> list[tuple[int, list[int]]]:
        return [(row, columns.tolist()) for row, columns in image_columns(prompt)]

    assert found(prompt_of("iiqi|qqii")) == [(0, [0, 1]), (0, [3]), (1, [2, 3])]
    assert found(prompt_of("iiqi|qqii", [1, 1, 1, 2]))[:2] == [(0, [0]), (0, [1])]
    assert found(prompt_of("iiqi|qqii", [4])) == found(prompt_of("iiqi|qqii"))
    with pytest.raises(UserError, match="two prompts"):
        image_columns(prompt_of("iiqi|qqii", [2, 3]))


def first(number: int) -> object:
    return lambda scores: torch.arange(number)


def test_rows_that_keep_the_same_number_need_no_padding() -> None:
    prompt = prompt_of("iiiq.|.iiiq")
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    shorter, last = select(prompt, prompt.words, mask, saliency, first(1))
    assert shorter is not None
    assert shorter.columns.tolist() == [[0, 3, 4], [0, 1, 4]] == last.columns.tolist()
    assert shorter.mask.tolist() == [[1, 1, 0], [0, 1, 1]]
    assert shorter.removed == 2


def test_other_rows_are_padded_on_the_left() -> None:
    """What padding there was before goes."""
    prompt = prompt_of(".iiqq|iiiiq")
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    shorter, last = select(prompt, prompt.words, mask, saliency, first(1))
    assert shorter is not None
    assert last.columns.tolist() == [[1, 3, 4], [-1, 0, 4]]
    assert shorter.mask.tolist() == [[1, 1, 1], [0, 1, 1]]
    grown = shorter.grown_mask(torch.ones(2, 7, dtype=torch.long), 2)
    assert grown.tolist() == [[1] * 5, [0, 1, 1, 1, 1]]
    assert torch.equal(shorter.grown_mask(None, 2), grown)


def test_nothing_to_remove() -> None:
    prompt = prompt_of("iiq")
    shorter, last = select(prompt, prompt.words, torch.ones(1, 3), saliency, first(2))
    assert shorter is None
    assert (last.kept, last.total, last.pruned_length) == (2, 2, 3)
